"""A model that torch.compile compiles, forward: compiled.py ITERATIONS. Prints microseconds an iteration and the result as JSON."""
import json
import sys

import torch

torch.manual_seed(1)
torch.set_float32_matmul_precision("high")
layers = [torch.nn.Sequential(torch.nn.LayerNorm(1024), torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)) for _ in range(6)]
net = torch.nn.Sequential(*layers).cuda().eval()
data = torch.randn(2048, 1024, device="cuda")
compiled = torch.compile(net)
iterations = int(sys.argv[1])
with torch.no_grad():
    for _ in range(5):
        out = compiled(data)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(iterations):
        out = compiled(data)
    end.record()
    torch.cuda.synchronize()
print(json.dumps({"us": 1000 * begin.elapsed_time(end) / iterations, "result": round(out.double().abs().sum().item(), 3)}))
