"""A PyTorch transformer, forward and backward, or the forward timing loop of the benchmarks.

    python3 transformer.py train [STEPS]     forward and backward, prints the number of steps
    python3 transformer.py threads [STEPS]   eight threads that train a model each, prints their losses
    python3 transformer.py paired LIBFLOOR   the same loop at each line of standard input: `measure` prints ms an
                                             iteration, of the best of 20 stretches; `floor_begin` and `floor_end` call that of the library
    python3 transformer.py time [ROUNDS [PROFILER]]  12 layers, fp16, batch 1, 16 tokens: ms an iteration, one line a round.
                                             PROFILER is kineto, "kineto with CPU" or proton, which then profiles the program
"""
import contextlib
import ctypes
import sys
import tempfile
import threading
import time

import torch


def model(layers, width, heads):
    layer = torch.nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True, dropout=0.0)
    return torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).cuda()


def train(steps):
    net = model(6, 512, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    data = torch.randn(8, 128, 512, device="cuda")
    for _ in range(steps):
        optimizer.zero_grad()
        loss = net(data).square().mean()
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()
    print(f'{{"steps": {steps}, "loss": {loss.item():.4f}}}')


def threads(steps):
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.manual_seed(1)
    nets = [model(2, 256, 4) for _ in range(8)]
    data = [torch.randn(8, 64, 256, device="cuda") for _ in nets]
    losses = [0.0] * len(nets)

    def work(i):
        optimizer = torch.optim.SGD(nets[i].parameters(), lr=1e-3)
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(steps):
                optimizer.zero_grad()
                loss = nets[i](data[i]).square().mean()
                loss.backward()
                optimizer.step()
            losses[i] = loss.item()

    torch.cuda.synchronize()
    workers = [threading.Thread(target=work, args=(i,)) for i in range(len(nets))]
    print("training", flush=True)
    began = time.perf_counter()
    [it.start() for it in workers]
    [it.join() for it in workers]
    print(f"{time.perf_counter() - began:.2f} s", file=sys.stderr)
    print(" ".join(f"{it:.5f}" for it in losses))


@torch.no_grad()
def paired(library):
    net, data = small()
    floor = ctypes.CDLL(library)
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() != "measure":
            print(getattr(floor, line.strip())(), flush=True)
            continue
        for _ in range(40):
            net(data)
        torch.cuda.synchronize()
        figures = []
        for _ in range(20):
            start = time.perf_counter()
            for _ in range(10):
                net(data)
            torch.cuda.synchronize()
            figures.append((time.perf_counter() - start) * 100)
        # The best of many short stretches is disturbed least by others that use the machine.
        print(f"{min(figures):.4f}", flush=True)


def small():
    net = model(12, 768, 12).half().eval()
    data = torch.randn(1, 16, 768, device="cuda", dtype=torch.half)
    for _ in range(30):
        net(data)
    torch.cuda.synchronize()
    return net, data


@contextlib.contextmanager
def proton(path):
    import triton.profiler

    triton.profiler.start(path, context="shadow")
    yield
    triton.profiler.finalize()


def profiled(profiler, path):
    """Returns the context in which this profiler is on. It writes what it found to `path`, if it writes at all."""
    gpu, cpu = torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU
    return {
        None: contextlib.nullcontext,
        "kineto": lambda: torch.profiler.profile(activities=[gpu]),
        "kineto with CPU": lambda: torch.profiler.profile(activities=[cpu, gpu]),
        "proton": lambda: proton(path),
    }[profiler]()


@torch.no_grad()
def timing(rounds, profiler=None):
    net, data = small()
    with tempfile.TemporaryDirectory() as directory, profiled(profiler, directory + "/profile"):
        for _ in range(20):
            net(data)
        torch.cuda.synchronize()
        for _ in range(rounds):
            start = time.perf_counter()
            for _ in range(20):
                net(data)
            torch.cuda.synchronize()
            print(f"{(time.perf_counter() - start) * 50:.4f}", flush=True)


if __name__ == "__main__":
    what = sys.argv[1]
    if what == "paired":
        sys.exit(paired(sys.argv[2]))
    n = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    {"train": train, "threads": threads, "time": timing}[what](n, *sys.argv[3:])
