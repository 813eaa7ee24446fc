"""A PyTorch transformer, forward and backward, or the forward timing loop of the benchmarks.

    python3 transformer.py train [STEPS]     forward and backward, prints the number of steps
    python3 transformer.py time [ROUNDS]     12 layers, fp16, batch 1, 16 tokens: ms an iteration, one line a round
"""
import sys
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


@torch.no_grad()
def timing(rounds):
    net = model(12, 768, 12).half().eval()
    data = torch.randn(1, 16, 768, device="cuda", dtype=torch.half)
    for _ in range(30):
        net(data)
    torch.cuda.synchronize()
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(100):
            net(data)
        torch.cuda.synchronize()
        print(f"{(time.perf_counter() - start) * 10:.4f}", flush=True)


if __name__ == "__main__":
    what, n = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 20
    train(n) if what == "train" else timing(n)
