"""Running processes and windows in time on a real GPU; see README.md. Called by run.sh."""

import functools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h200
from h200 import BIN, EXACT, OUT, PYTHON, XPUTRACE, account, expect, interval, losses, maps

CASES = []
case = functools.partial(h200.case, cases=CASES)
# What a launch that is under way as tracing begins or ends may be, and what was launched earlier.
EDGES = {"before_attach", "unjoined", "lost_at_exit", "kernel_nanos", "lost"}


def start(command, **more):
    """Starts a program without us, and returns it once it has said that it works."""
    program = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)
    if command[0] == PYTHON:
        expect("first line", program.stdout.readline().strip(), "training")
    else:
        time.sleep(1.0)
    return program


def attach(pid, script, seconds, *options, name="attach", check=True):
    """Traces a running process for a while; returns the JSON results and the tracer's standard error."""
    out = OUT / f"{name}.json"
    line = [XPUTRACE, "-f", "json", "-o", str(out), "-p", str(pid), "--for", f"{seconds * 1000:.0f}ms", *options, "-e", script]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    if check:
        expect("status", (done.returncode, done.stderr[-1500:] if done.returncode else ""), (0, ""))
    return [json.loads(it) for it in out.read_text().splitlines()] if out.exists() else [], done


def bad(lost):
    return h200.bad(lost, EDGES)


def state(pid):
    """What a process holds: descriptors, threads, mappings, address space and memory in MB."""
    proc = Path("/proc", str(pid))
    status = dict(it.split(":", 1) for it in (proc / "status").read_text().splitlines())
    megabytes = lambda key: int(status[key].split()[0]) // 1024
    return {
        "fds": len(list((proc / "fd").iterdir())),
        "threads": len(list((proc / "task").iterdir())),
        "maps": len((proc / "maps").read_text().splitlines()),
        "space": megabytes("VmSize"),
        "rss": megabytes("VmRSS"),
    }


@functools.cache
def bare(steps):
    program = start([PYTHON, BIN / "transformer.py", "threads", steps])
    out, _ = program.communicate(timeout=300)
    return out


@case("100 attaches to PyTorch that trains in eight threads")
def hundred():
    steps, times = 4000, int(os.environ.get("ATTACHES", "100"))
    with ThreadPoolExecutor(1) as other:
        expected = other.submit(bare, steps)
        program = start([PYTHON, BIN / "transformer.py", "threads", steps])
        states, launches, edges, took = {0: state(program.pid)}, [], [], []
        for i in range(1, times + 1):
            if program.poll() is not None:
                break
            began = time.time()
            objects, _ = attach(program.pid, EXACT, 0.2)
            took.append(time.time() - began)
            lost = losses(objects)
            expect("losses", bad(lost), {})
            launches.append(lost["launches"])
            edges.append({k: lost[k] for k in sorted(EDGES) if lost.get(k) and k != "kernel_nanos"})
            if i in (1, 10, 50, times):
                time.sleep(0.2)
                states[i] = state(program.pid)
        ended_early = program.poll() is not None
        program_out, _ = program.communicate(timeout=300)
        expect("the program's result", program_out, expected.result())
    for i, it in states.items():
        print(f"  after {i}: {it}")
    print(f"  launches seen: {launches[:5]} … {launches[-5:]}; edges {edges[:3]} … {edges[-3:]}")
    print(f"  seconds an attach: median {statistics.median(took):.2f}, most {max(took):.2f}, {'program ended early' if ended_early else 'program ran on'}")
    assert all(launches), launches
    return f"{len(launches)} attaches, {sum(launches)} launches, result as bare: {program_out.strip()}"


@case("lines of a Python program that runs already")
def lines():
    program = start([PYTHON, BIN / "transformer.py", "threads", 600])
    objects, _ = attach(program.pid, "kernel(|k| @gpu[k.launch.ustack].sum(k.duration));", 1.0)
    program.communicate(timeout=300)
    rows = [it for it in objects if it["type"] == "map"][0]["data"]["@gpu"]
    text = json.dumps(rows)
    assert "transformer.py" in text, text[:3000]
    return f"{text.count('transformer.py')} frames in transformer.py, {len(rows)} rows"


def stretch(program, n):
    """Reads that many of the figures that the launch loop prints."""
    values = [program.stdout.readline() for _ in range(n)]
    assert all(values), f"the program ended early: status {program.wait()}, {program.stderr and program.stderr.read()}"
    return list(map(float, values))


@case("attach behind torch.profiler")
def behind_profiler():
    script = """
import time, torch
from torch.profiler import ProfilerActivity, profile
x = torch.randn(64, 64, device="cuda")
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
    for _ in range(50): torch.sin(x)
    torch.cuda.synchronize()
print("training", flush=True)
end = time.monotonic() + 6
while time.monotonic() < end:
    for _ in range(100): torch.cos(x)
    torch.cuda.synchronize()
print("over")
"""
    program = start([PYTHON, "-c", script])
    seen = [losses(attach(program.pid, EXACT, 0.5)[0]) for _ in range(2)]
    out, error = program.communicate(timeout=60)
    expect("the program", (program.returncode, out.strip()), (0, "over"))
    expect("losses", [bad(it) for it in seen], [{}, {}])
    assert all(it["launches"] for it in seen), seen
    return f"{[it['launches'] for it in seen]} launches"


@case("launch cost before, during and after")
def cost():
    rounds, stretches = int(os.environ.get("ROUNDS", "9")), 150
    samples = {"before": [], "during": [], "after": [], "bare": [], "bare, late": []}

    def loop(attached):
        line = ["stdbuf", "-oL", str(BIN / "loop"), str(stretches), "10000"]
        program = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        values = stretch(program, stretches // 3)
        tracer = None
        if attached:
            tracer = subprocess.Popen([XPUTRACE, "-q", "-o", "/dev/null", "-p", str(program.pid), "--for", "1200ms", "-e", h200.NO_STACKS])
        during = stretch(program, stretches // 3)
        if tracer:
            expect("status", tracer.wait(), 0)
        rest = program.communicate()[0].split()
        return values, during, list(map(float, rest))

    for _ in range(rounds):
        before, during, after = loop(True)
        for name, values in [("before", before[-30:]), ("during", during), ("after", after[-30:])]:
            samples[name].append(statistics.median(values))
        before, _, after = loop(False)
        samples["bare"].append(statistics.median(before[-30:]))
        samples["bare, late"].append(statistics.median(after[-30:]))
    for name, values in samples.items():
        print(f"  {name:10} median {statistics.median(values):.1f} ns a launch  {[round(it) for it in values]}")
    change = [(a - b) - (d - c) for a, b, c, d in zip(samples["after"], samples["before"], samples["bare"], samples["bare, late"])]
    low, high = interval(change)
    return f"after - before, against the same of a bare run: median {statistics.median(change):.1f} ns, 95 % [{low:.1f}, {high:.1f}]"


@case("a tracer killed at random moments")
def killed():
    times, pick = int(os.environ.get("KILLS", "100")), random.Random(2)

    def once(i):
        program = subprocess.Popen([str(BIN / "requests"), "4", "80000", "4", "0"], stdout=subprocess.PIPE, text=True)
        time.sleep(0.8)
        line = [XPUTRACE, "-q", "-o", "/dev/null", "-p", str(program.pid), "--for", "700ms", "-e", h200.STACKS]
        tracer = subprocess.Popen(line, stderr=subprocess.PIPE)
        time.sleep(delays[i])
        was_over = tracer.poll() is not None
        tracer.send_signal(signal.SIGKILL)
        out, _ = program.communicate(timeout=120)
        return program.returncode, json.loads(out or "{}").get("launches"), was_over

    delays = [pick.uniform(0, 1.6) for _ in range(times)]
    with ThreadPoolExecutor(4) as workers:
        results = list(workers.map(once, range(times)))
    expect("results", {it[:2] for it in results}, {(0, 4 * 80000 * 4)})
    return f"{times} programs finished with their own result; {sum(it[2] for it in results)} tracers had ended by themselves"


def ranges(option, options=()):
    objects, done = h200.trace(EXACT, [BIN / "ranges", 200, 20], "--range", option, *options)
    lost, own, found = losses(objects), account(done), maps(objects)
    print(f"  {option}: {dict((k, v) for k, v in lost.items() if v)}; {found['@n']}")
    expect("launches", lost["launches"], own["launches"])
    expect("joined", lost["joined"], own["launches"])
    expect("kernels", {k.split("(")[0]: v for k, v in found["@n"].items()}, {"inside": own["launches"]})
    expect("losses", bad(lost), {})
    return f"{lost['launches']} launches in {own['ranges']} ranges"


@case("a window by cudaProfilerStart and Stop")
def profiler_range():
    return ranges("cudaProfiler")


@case("a window by an NVTX range")
def nvtx_range():
    return ranges("nvtx:step")


@case("a window by an NVTX range of PyTorch")
def torch_range():
    script = """
import torch
x = torch.randn(64, 64, device="cuda")
for i in range(40):
    torch.sin(x)
    torch.cuda.nvtx.range_push("step"); torch.cos(x); torch.cos(x); torch.cuda.nvtx.range_pop()
torch.cuda.synchronize()
"""
    objects, done = h200.trace(EXACT, [PYTHON, "-c", script], "--range", "nvtx:step")
    found, lost = maps(objects), losses(objects)
    expect("launches", lost["launches"], 80)
    expect("kernels", sum(found["@n"].values()), 80)
    assert all("cos" in it for it in found["@n"]), found
    return f"{found['@n']}"


@case("after a while, for a while")
def after():
    program = [BIN / "requests", 4, 400000, 4, 0]
    objects, _ = h200.trace(EXACT, program, "--after", "1500ms", "--for", "300ms")
    lost = losses(objects)
    expect("losses", bad(lost), {})
    assert 0 < lost["launches"] < 4 * 400000 * 4, lost
    return f"{lost['launches']} launches: {dict((k, v) for k, v in lost.items() if v)}"


if __name__ == "__main__":
    wanted = sys.argv[1:]
    chosen = [it for it in CASES if not wanted or any(word in it[0] for word in wanted)]
    sys.exit(h200.run_checks(chosen, "attach.txt"))
