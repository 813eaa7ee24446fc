"""What other profilers cost a PyTorch program, beside xputrace; see README.md. Called by run.sh.

    others.py [ROUNDS [WAY…]]

A process each, in turn: they exclude each other in one process. A figure is the best of many short stretches of a forward pass."""

import csv
import statistics
import subprocess
import sys

from h200 import BIN, OUT, PYTHON, figures, interval, rotated

PROFILERS = ["kineto", "kineto with CPU", "proton"]
EVERYTHING = ["bare", "floor", "no stacks", "native stacks", "stacks", *PROFILERS]


def once(way):
    command = [PYTHON, BIN / "transformer.py", "time", 12]
    if way in PROFILERS:
        return figures([*command, way], "bare", min)
    return figures(command, way, min)


def main(rounds, ways):
    samples, missing = {way: [] for way in ways}, {}
    for r in range(rounds):
        for way in rotated(ways, r):
            if way in missing:
                continue
            try:
                samples[way].append(once(way))
            except (AssertionError, subprocess.TimeoutExpired) as error:
                missing[way] = str(error)
        print("  round", r + 1, {way: values[-1] for way, values in samples.items() if values}, flush=True)
    with open(OUT / "others.csv", "w") as file:
        rows = csv.writer(file)
        rows.writerow(["way", "round", "ms"])
        rows.writerows([way, r + 1, value] for way, values in samples.items() for r, value in enumerate(values))
    print(f"PyTorch forward, ms ({rounds} rounds, best stretch of each process)")
    for way, values in samples.items():
        if way in missing:
            print(f"  {way}: did not run here: {missing[way][-400:]}")
            continue
        ratios = [a / b for a, b in zip(values, samples["floor"])]
        low, high = interval(ratios)
        print(f"  {way:16} median {statistics.median(values):.4f}  / floor {statistics.median(ratios):.4f} [{low:.4f}, {high:.4f}]", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5, sys.argv[2:] or EVERYTHING)
