"""What each kind of event adds to the calls of a CUDA program, armed alone and all together; see README.md. Called by run.sh.

    costs.py [ROUNDS]

One program runs all the time, and every way takes its turn (see paired.py). Prints medians of nanoseconds a call: what a way adds
to the bare call just before, with the 95 % interval of these differences."""

import csv
import statistics
import sys

from h200 import BIN, OUT, collector, interval, rotated, trace
from paired import Program

# In the order of costs.cu.
OPERATIONS = ["launch", "copy", "set", "wait", "malloc and free", "range", "cudaGetDevice"]
SCRIPTS = {
    "kernel": "kernel(|k| @n.sum(k.duration));",
    "launch": "launch(|l| @n[l.api].count());",
    "kernel with its launch": "kernel(|k| @n.hist(k.start - k.launch.time));",
    "kernel with its stack": "kernel(|k| @n[k.launch.ustack].sum(k.duration));",
    "memcpy": "memcpy(|m| @n.sum(m.bytes));",
    "memcpy with its stack": "memcpy(|m| @n[m.launch.ustack].sum(m.bytes));",
    "memset": "memset(|m| @n.sum(m.bytes));",
    "wait": "wait(|w| @n.sum(w.duration));",
    "alloc and free": "alloc(|a| @n.sum(a.bytes)); free(|f| @m.count());",
    "nvtx": "nvtx(|r| @n[r.name].count());",
    "api(cudaGetDevice)": 'api("cudaGetDevice", |c| @n.count());',
}
ALL = "".join(script.replace("@n", f"@n{i}") for i, script in enumerate(SCRIPTS.values()))
STACKS = "let stacks = kernel(|k| @s[k.launch.ustack].count()); stacks.disable(); kernel(|k| @n.sum(k.duration));"
SWITCHED = {
    "kernel and stacks that are disabled": STACKS,
    "kernel and stacks that a handler has enabled": STACKS + " interval(20.ms, || stacks.enable());",
    "kernel and stacks disabled again": STACKS + " interval(20.ms, || { @t += 1; if @t == 1 { stacks.enable(); } else { stacks.disable(); } });",
}
FLOOR = "CUPTI's kernel records"
WAYS = {FLOOR: None, **SCRIPTS, **SWITCHED, "all of these": ALL}


def main(rounds):
    trace("kernel(|k| @n.count());", [BIN / "requests", 1, 1, 1])
    # NVTX's tool must be known as the program starts. The collector is dormant until a tracer comes.
    env = {"CUDA_INJECTION64_PATH": collector(), "NVTX_INJECTION64_PATH": collector(), "XPUTRACE_SOCKET": "@xputrace-nobody-listens"}
    scripts = {name: [script] for name, script in WAYS.items() if script}
    program = Program([str(BIN / "costs"), str(BIN / "libfloor.so")], scripts, floors={FLOOR: "floor_begin"}, env=env)
    # (bare, armed) of each round: the machine changes its speed, so each way has a bare stretch right before it.
    samples = {way: [] for way in WAYS}
    for way in WAYS:
        program.measure(way)
    for r in range(rounds):
        for way in rotated(list(WAYS), r):
            samples[way].append((program.measure("bare"), program.measure(way)))
    with open(OUT / "costs.csv", "w") as file:
        rows = csv.writer(file)
        rows.writerow(["armed", "round", "state", *OPERATIONS])
        for way, pairs in samples.items():
            for r, (bare, armed) in enumerate(pairs):
                rows.writerows([[way, r + 1, "bare", *bare], [way, r + 1, "armed", *armed]])
    print(f"ns a call: medians of all bare stretches; then what is added, medians of {rounds} rounds")
    print("| armed | " + " | ".join(OPERATIONS) + " |\n|---|" + "---|" * len(OPERATIONS))
    every = [bare for pairs in samples.values() for bare, _ in pairs]
    print("| nothing | " + " | ".join(f"{statistics.median(column):.0f}" for column in zip(*every)) + " |")
    for way, pairs in samples.items():
        print(f"| {way} | " + " | ".join(added(pairs, at) for at in range(len(OPERATIONS))) + " |", flush=True)


def added(pairs, at):
    differences = [armed[at] - bare[at] for bare, armed in pairs]
    low, high = interval(differences)
    return f"{statistics.median(differences):+.0f} [{low:+.0f}, {high:+.0f}]"


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 9)
