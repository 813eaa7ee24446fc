"""A Triton kernel that adds vectors: triton_add.py ELEMENTS LAUNCHES. Prints microseconds a launch and the result as JSON."""
import json
import sys

import torch
import triton
import triton.language as tl


@triton.jit
def triton_add(a, b, c, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(c + i, tl.load(a + i, mask=i < n) + tl.load(b + i, mask=i < n), mask=i < n)


elements, launches = int(sys.argv[1]), int(sys.argv[2])
a = torch.arange(elements, device="cuda", dtype=torch.float32) % 97
c = torch.empty_like(a)
run = lambda: triton_add[(triton.cdiv(elements, 1024),)](a, a, c, elements, BLOCK=1024)
for _ in range(3):
    run()
begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
torch.cuda.synchronize()
begin.record()
for _ in range(launches):
    run()
end.record()
torch.cuda.synchronize()
print(json.dumps({"us": 1000 * begin.elapsed_time(end) / launches, "result": c.double().sum().item()}))
