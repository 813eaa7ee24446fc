"""Two workers that train one model by data parallelism over NCCL, each on a GPU of its own, which it calls GPU 0.

    python3 ddp.py [STEPS]      prints the number of steps of each worker"""
import os
import subprocess
import sys


def work(rank, steps):
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(0)
    dist.init_process_group("nccl", rank=rank, world_size=2)
    net = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)).cuda()
    net = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    data = torch.randn(256, 1024, device="cuda")
    for _ in range(steps):
        optimizer.zero_grad()
        net(data).square().mean().backward()
        optimizer.step()
    torch.cuda.synchronize()
    print(f"worker {rank}: {steps} steps", flush=True)
    dist.destroy_process_group()


def main(steps):
    here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29531"}
    workers = [
        subprocess.Popen([sys.executable, __file__, str(steps), str(rank)], env={**os.environ, **here, "CUDA_VISIBLE_DEVICES": str(rank)})
        for rank in range(2)
    ]
    sys.exit(sum(it.wait() != 0 for it in workers))


steps = int(sys.argv[1]) if len(sys.argv) > 1 else 30
work(int(sys.argv[2]), steps) if len(sys.argv) > 2 else main(steps)
