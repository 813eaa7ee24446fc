"""What tracing adds to a launch, beside what CUPTI itself adds; see README.md. Called by run.sh.

    launches.py [ROUNDS]

One program runs all the time, and every way takes its turn (see paired.py), each right after a bare stretch, because the machine
changes its speed. Prints nanoseconds a launch: medians of what each way adds to the bare launch before it, and of the differences
between ways, paired by round, with their 95 % intervals. BEFORE=PATH also measures another build."""

import csv
import statistics
import sys

from h200 import BEFORE, BIN, FLOORS, OUT, SCRIPTS, collector, interval, rotated, trace
from paired import OF_BEFORE, Program

# CUPTI's kernel records alone, and with callbacks that do nothing at the launch calls of both domains.
FLOOR_FUNCTIONS = {"floor": "floor_begin", "both domains": "floor_begin_both"}
assert FLOOR_FUNCTIONS.keys() <= FLOORS.keys()
WAYS = {how: SCRIPTS[how] for how in ("no stacks", "joined", "stacks")}
PAIRS = [("both domains", "floor"), ("no stacks", "floor"), ("joined", "both domains"), ("stacks", "both domains"), ("stacks", "joined")]


def main(rounds):
    trace("kernel(|k| @n.count());", [BIN / "requests", 1, 1, 1])
    # The collector is dormant until a tracer comes.
    env = {"CUDA_INJECTION64_PATH": collector(), "XPUTRACE_SOCKET": "@xputrace-nobody-listens"}
    program = Program([str(BIN / "costs"), str(BIN / "libfloor.so")], WAYS, floors=FLOOR_FUNCTIONS, env=env, question="launches")
    ways = [*FLOOR_FUNCTIONS, *WAYS, *([how + OF_BEFORE for how in WAYS] if BEFORE else [])]
    bare, added = {way: [] for way in ways}, {way: [] for way in ways}
    for way in ways:
        program.measure(way)
    for r in range(rounds):
        for way in rotated(ways, r):
            [before], [armed] = program.measure("bare"), program.measure(way)
            bare[way].append(before)
            added[way].append(armed - before)
    with open(OUT / "launches.csv", "w") as file:
        rows = csv.writer(file)
        rows.writerow(["way", "round", "bare_ns", "added_ns"])
        for way in ways:
            rows.writerows([way, r + 1, bare[way][r], round(added[way][r], 1)] for r in range(rounds))
    print(f"ns a launch, {rounds} rounds; bare: {statistics.median(sum(bare.values(), [])):.0f}")
    for way in ways:
        print(f"  {way:20} {told(added[way])}")
    for way, base in PAIRS + ([(how, how + OF_BEFORE) for how in WAYS] if BEFORE else []):
        print(f"  {way} - {base}: {told([a - b for a, b in zip(added[way], added[base])])}", flush=True)


def told(differences):
    low, high = interval(differences)
    return f"{statistics.median(differences):+.0f}  95 % [{low:+.0f}, {high:+.0f}]"


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 25)
