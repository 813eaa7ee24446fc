"""How much of the GPU's time has a launch stack that reaches the program's start, and a line of the program.

    reach.py [NAME...]      traces each program (or those named), and prints the shares; called by run.sh

The programs are of the kinds that people run: PyTorch forward and backward, generate, torch.compile, JAX, CuPy, Triton.
"""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

XPUTRACE, BIN, OUT = os.environ["XPUTRACE"], Path(os.environ["BIN"]), Path(os.environ["OUT"])
SCRIPT = "kernel(|k| @gpu[k.launch.ustack].sum(k.duration));"

PROGRAMS = {
    "train": (BIN / "transformer.py", "train", 20),
    "generate": """
import torch, transformers
net = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=6, n_embd=384, n_head=6)).cuda().half().eval()
tokens = torch.randint(0, 50000, (1, 16), device="cuda")
print(net.generate(tokens, max_new_tokens=48, do_sample=False, pad_token_id=0).shape)
""",
    "compile": """
import torch
net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 16)).cuda()
compiled = torch.compile(net)
x = torch.randn(64, 256, device="cuda")
for _ in range(20):
    compiled(x).sum().backward()
torch.cuda.synchronize()
""",
    "jax": (BIN / "jax_step.py", 100),
    "cupy": """
import cupy
a = cupy.random.rand(512, 512)
for _ in range(20):
    a = cupy.sqrt(a @ a.T + 1) / 30
print(float(a.sum()))
""",
    "triton": """
import torch, triton, triton.language as tl

@triton.jit
def add(x, y, out, n, size: tl.constexpr):
    at = tl.program_id(0) * size + tl.arange(0, size)
    tl.store(out + at, tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)

x = torch.rand(1 << 16, device="cuda")
out = torch.empty_like(x)
for _ in range(20):
    add[(64,)](x, x, out, x.numel(), size=1024)
torch.cuda.synchronize()
""",
}


def command_of(name):
    program = PROGRAMS[name]
    if isinstance(program, str):
        path = BIN / f"reach_{name}.py"
        path.write_text(program)
        program = (path,)
    return program[0].name, ["python3", *map(str, program)]


def phase(stack):
    if "autograd::Engine" in stack:
        return "backward"
    return "optimizer" if "/optim/" in stack else "forward"


def shares(path, file):
    """Returns the GPU time by root, by phase, and by phase where the stack has a line of the file."""
    roots, phases, lined = Counter(), Counter(), Counter()
    for line in path.read_text().splitlines():
        stack, _, nanos = line.rpartition(" ")
        roots[stack.split(";")[0].split(" (")[0]] += int(nanos)
        phases[phase(stack)] += int(nanos)
        lined[phase(stack)] += int(nanos) if file in stack else 0
    return roots, phases, lined


def main(names):
    failed = 0
    for name in names or PROGRAMS:
        file, command = command_of(name)
        folded = OUT / f"reach_{name}.folded"
        line = [XPUTRACE, "-q", f"--folded={folded}", "-o", str(OUT / f"reach_{name}.txt"), "-e", SCRIPT, "--", *command]
        done = subprocess.run(line, capture_output=True, text=True, timeout=240)
        if done.returncode or not folded.exists():
            failed += 1
            print(f"{name}: status {done.returncode}\n{done.stdout[-500:]}{done.stderr[-1500:]}", flush=True)
            continue
        roots, phases, lined = shares(folded, file)
        total = max(sum(roots.values()), 1)
        # A stack that ends early says why, in brackets; a thread's first function may have no symbol.
        reached = sum(nanos for root, nanos in roots.items() if not root.startswith("["))
        print(f"{name}: {total / 1e6:.1f} ms of GPU time, {reached / total:.4f} of it reaches the start", flush=True)
        for root, nanos in roots.most_common(6):
            print(f"  {nanos / total:.4f} begins in {root}")
        for it, nanos in phases.items():
            print(f"  {it}: {nanos / total:.3f} of the time, {lined[it] / nanos:.4f} of it has a line of {file}")
        for line in done.stderr.splitlines():
            print("  " + line[:300])
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
