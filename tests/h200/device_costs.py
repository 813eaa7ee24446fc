"""What handlers inside kernels cost on a real GPU; see README.md. Called by run.sh.

    device_costs.py [ROUNDS [WORD…]]   the programs that have a word in their names; every way in turn, the medians, their ratio
                                       to bare, and registers and blocks a multiprocessor of the kernel that ran
    device_costs.py begin [ROUNDS]     from the start of a run to the first probed launch of a program with 100 kernels"""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from h200 import BIN, OUT, PYTHON, XPUTRACE, account, maps, rotated, trace

HERE = Path(__file__).parent

# Handlers by way. KERNEL stands for the pattern of the program's kernels.
BARE, UNPROBED = None, 'device_exit("nosuch", |t| @n.count());'
WAYS = {
    "bare": BARE,
    "unprobed: no kernel matches": UNPROBED,
    "recompiled: no place matches": 'device_barrier("KERNEL", |t| {});',
    "empty, at entry and exit": 'device_entry("KERNEL", |t| {}); device_exit("KERNEL", |t| {});',
    "a condition that is false, at exit": 'device_exit("KERNEL", |t| if t.threadIdx.x == 9999 { @n.count() });',
    "`@n.count()` at each thread's exit": 'device_exit("KERNEL", |t| @n.count());',
    "the same at entry, and another at exit": 'device_entry("KERNEL", |t| @n.count()); device_exit("KERNEL", |t| @m.count());',
    "`@n[t.blockIdx.x].count()`": 'device_exit("KERNEL", |t| @n[t.blockIdx.x].count());',
    "`@s.sum(t.threadIdx.x)`": 'device_exit("KERNEL", |t| @s.sum(t.threadIdx.x));',
    "`@x.max(t.time)`": 'device_exit("KERNEL", |t| @x.max(t.time));',
    "`@h.hist(t.threadIdx.x)`": 'device_exit("KERNEL", |t| @h.hist(t.threadIdx.x));',
    "`@by[t.launch.ustack].count()`, once a block": 'device_entry("KERNEL", #{per: "block"}, |t| @by[t.launch.ustack].count());',
    "`@n.count()` at each access": 'device_mem("KERNEL", |t| @n.count());',
    "the same once a warp": 'device_mem("KERNEL", #{per: "warp"}, |t| @n.count());',
    "`@b[t.space, t.access].sum(t.bytes)` at each access": 'device_mem("KERNEL", |t| @b[t.space, t.access].sum(t.bytes ?? 0));',
    "`@n.count()` at entry, patched": 'device_entry("KERNEL", #{via: "patch"}, |t| @n.count());',
    "`@n.count()` at each access to memory, patched": 'device_mem("KERNEL", #{via: "patch"}, |t| @n.count());',
}
# What is asked of every program, if it has no list of its own.
FEW = [it for it in WAYS if it.split(":")[0] in ("bare", "unprobed", "recompiled")] + [
    "empty, at entry and exit",
    "`@n.count()` at each thread's exit",
    "`@n.count()` at each access",
    "`@n.count()` at entry, patched",
]
# Of a program that takes long to start.
FEWEST = [it for it in FEW if not it.startswith("unprobed") and "each access" not in it]
# gemm has barriers: ptxas compiles what the driver gets as PTX alone.
PTX_ALONE = "recompiled: the program has PTX alone"

PROGRAMS = {
    "vectorAdd, 1 K elements": ("vectorAdd", [BIN / "vectors", 1_024, 200], list(WAYS)),
    "vectorAdd, 64 K elements": ("vectorAdd", [BIN / "vectors", 65_536, 200], FEW),
    "vectorAdd, 1 M elements": ("vectorAdd", [BIN / "vectors", 1_048_576, 200], list(WAYS)),
    "vectorAdd, 16 M elements": ("vectorAdd", [BIN / "vectors", 16_777_216, 200], list(WAYS)),
    "tiled matrix product, 2048 × 2048": ("gemm", [BIN / "gemm", 2048, 30], FEW),
    "Triton's addition, 16 M elements": ("triton_add", [PYTHON, HERE / "triton_add.py", 16_777_216, 200], FEW),
    "torch.compile, 6 layers": ("triton_*", [PYTHON, HERE / "compiled.py", 200], FEWEST),
}

SHAPE = """
import "occupancy" as occupancy;
kernel(|k| if KERNELS { @registers[k.name].max(k.registers); @blocks[k.name].max(occupancy::blocks_per_sm(k)) });
"""


def run(script, command, *options):
    """Runs a program, under a script or bare; returns its own account and what the run said."""
    line = list(map(str, command))
    if script:
        line = [XPUTRACE, *options, "-o", "/dev/null", "-e", script, "--", *line]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{script}: {done.stderr[-800:]}"
    return account(done), done.stderr


def scripts(kernel, ways):
    for way in ways:
        script = WAYS[way]
        if way.startswith("recompiled") and kernel == "gemm":
            yield PTX_ALONE, BARE
        else:
            yield way, script and script.replace("KERNEL", kernel)


def shape(kernel, script, command):
    """Registers and blocks a multiprocessor of the kernels as they run under a script; CUPTI doesn't run beside patches."""
    if script and "patch" in script:
        return ""
    pattern = kernel.removesuffix("*")
    objects, _ = trace(SHAPE.replace("KERNELS", f'k.name.contains("{pattern}")') + (script or ""), command)
    found = maps(objects)
    both = sorted({(n, found["@blocks"].get(name)) for name, n in found.get("@registers", {}).items()})
    return ", ".join(f"{registers} registers, {blocks} blocks" for registers, blocks in both[:3])


def of_program(name, rounds):
    kernel, command, ways = PROGRAMS[name]
    all_ways = dict(scripts(kernel, ways))
    command_of = {it: command for it in all_ways}
    if PTX_ALONE in all_ways:
        command_of[PTX_ALONE] = [f"{command[0]}_ptx", *command[1:]]
    results, samples = set(), {it: [] for it in all_ways}
    # What is compiled once and kept, and CUDA's own cache.
    for way, script in all_ways.items():
        began = time.time()
        run(script, command_of[way], "-q")
        print(f"{name}, {way}: {time.time() - began:.1f} s for the first run", file=sys.stderr, flush=True)
    for r in range(rounds):
        for way in rotated(list(all_ways), r):
            own, _ = run(all_ways[way], command_of[way], "-q")
            samples[way].append(own["us"])
            results.add((own.get("result"), own.get("wrong")))
    bare = statistics.median(samples["bare"])
    print(f"\n{name}; the results: {sorted(results, key=str)}")
    for way, them in samples.items():
        us = statistics.median(them)
        print(f"{way:<52} {us:10.2f} us  {us / bare:6.2f} x  {min(them):10.2f} to {max(them):10.2f}  {shape(kernel, all_ways[way], command_of[way])}", flush=True)


def begin(rounds):
    """From the start of xputrace, and of the program alone, to the return of the first launch."""
    probe = 'device_exit("probed", |t| @n.count());'
    ways = {
        "bare": None,
        "launches alone": "launch(|l| @n.count());",
        # It finds what the last way of the round before has compiled.
        "one kernel of 100 probed": probe,
        "the same, nothing kept": probe,
    }
    samples = {it: [] for it in ways}
    for r in range(rounds + 1):
        for way, script in ways.items():
            env = os.environ | {"XDG_CACHE_HOME": str(OUT / "cache")}
            for kept in (OUT / "cache", Path("/var/cache/xputrace/twins")) if "nothing kept" in way else ():
                shutil.rmtree(kept, ignore_errors=True)
            line = [str(BIN / "hundred")]
            if script:
                line = [XPUTRACE, "-f", "json", "-o", str(OUT / "begin.json"), "-e", script, "--", *line]
            began = time.time()
            done = subprocess.run(line, capture_output=True, text=True, timeout=120, env=env)
            own = account(done)
            assert done.returncode == 0 and own["result"] == 65535, (own, done.stderr)
            if script == probe:
                found = maps([json.loads(it) for it in (OUT / "begin.json").read_text().splitlines()])
                assert found["@n"] == 65536, found
            if r:
                samples[way].append(1000 * (own["launched"] - began))
    bare = statistics.median(samples["bare"])
    for way, them in samples.items():
        print(f"{way:<30} {statistics.median(them):8.1f} ms, {statistics.median(them) - bare:8.1f} more than bare   {min(them):.1f} to {max(them):.1f}")


if __name__ == "__main__":
    words = sys.argv[1:]
    if words[:1] == ["begin"]:
        begin(int((words[1:] or ["7"])[0]))
    else:
        rounds, words = int((words or ["5"])[0]), words[1:]
        for name in PROGRAMS:
            if not words or any(re.search(it, name) for it in words):
                of_program(name, rounds)
