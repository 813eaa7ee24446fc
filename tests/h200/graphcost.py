"""What tracing adds to the launch of a graph, by its number of nodes; see README.md. Called by run.sh.

    graphcost.py [ROUNDS]

Every way in turn: nothing, CUPTI's own records of graphs and of kernels with nothing else, one event a launch (`graph`), one
event a kernel. Prints medians in microseconds."""

import os
import statistics
import subprocess
import sys
from pathlib import Path

from h200 import BIN, XPUTRACE, interval, rotated

SCRIPTS = {"graph": "graph(|g| @n.count());", "kernel": "kernel(|k| @n.count());"}
# The numbers of CUPTI's activity kinds GRAPH_TRACE and CONCURRENT_KERNEL.
FLOORS = {"CUPTI graph": "51", "CUPTI kernel": "10"}
WAYS = ["bare", *FLOORS, *SCRIPTS]
LAUNCHES = {10: 300, 1000: 100, 10_000: 20}


def once(way, nodes):
    line = [str(BIN / "graphcost"), str(nodes), "3", str(LAUNCHES[nodes])]
    env = dict(os.environ)
    if way in SCRIPTS:
        line = [XPUTRACE, "-q", "-o", "/dev/null", "-e", SCRIPTS[way], "--", *line]
    elif way in FLOORS:
        env |= {"CUDA_INJECTION64_PATH": str(BIN / "libfloor.so"), "FLOOR_KIND": FLOORS[way]}
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, env=env)
    rows = [list(map(float, it.split())) for it in done.stdout.splitlines() if len(it.split()) == 2]
    assert done.returncode == 0 and rows, f"{way}: {done.stderr[-800:]}"
    return [statistics.median(column) for column in zip(*rows)]


def main(rounds):
    for nodes in LAUNCHES:
        samples = {way: [] for way in WAYS}
        for r in range(rounds):
            for way in rotated(WAYS, r):
                samples[way].append(once(way, nodes))
        for at, what in enumerate(["the call", "the call and the wait"]):
            medians = {way: statistics.median(it[at] for it in samples[way]) for way in WAYS}
            more = {way: interval([a[at] - b[at] for a, b in zip(samples[way], samples["bare"])]) for way in WAYS if way != "bare"}
            text = ", ".join(f"{way} {value:.2f}" for way, value in medians.items())
            text += "; more than bare: " + ", ".join(f"{way} 95 % [{low:+.2f}, {high:+.2f}]" for way, (low, high) in more.items())
            print(f"{nodes} nodes, µs of {what}: {text}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 9)
