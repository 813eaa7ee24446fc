"""What tracing costs a PyTorch program, every way in turn in one process; see README.md. Called by run.sh.

A process differs from the next by more than stacks cost. So one program runs all the time: tracers attach
to it and leave, and CUPTI's kernel records alone, the floor, are switched on and off by itself."""

import os
import signal
import statistics
import subprocess
import sys
import time

from h200 import BEFORE, BIN, NO_STACKS, PYTHON, STACKS, XPUTRACE, interval, rotated

# Nothing is printed, so that no time goes into the names of stacks.
QUIETLY = " end(|| @time.clear());"
SCRIPTS = {
    "no stacks": [NO_STACKS + QUIETLY],
    "native stacks": [STACKS + QUIETLY, "--python", "off"],
    "stacks": [STACKS + QUIETLY],
}
OF_BEFORE = ", before"


class Program:
    """A program that measures itself when asked, while tracers and the floor come and go."""

    def __init__(self, line, scripts, floors={"floor": "floor_begin"}, env=None, question="measure"):
        self.scripts, self.floors, self.question = scripts, floors, question
        self.process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **(env or {})})
        assert self.line() == "ready"

    def line(self):
        line = self.process.stdout.readline()
        assert line, f"the program ended: status {self.process.wait()}"
        return line.strip()

    def ask(self, what):
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return self.line()

    def measure(self, how):
        """Returns the figures that the program measured."""
        if how == "bare":
            return self.figures()
        if how in self.floors:
            assert self.ask(self.floors[how]) == "0"
            figures = self.figures()
            assert self.ask("floor_end") == "0"
            return figures
        binary = BEFORE if how.endswith(OF_BEFORE) else XPUTRACE
        script = self.scripts[how.removesuffix(OF_BEFORE)]
        line = [binary, "-p", str(self.process.pid), "-e", *script]
        tracer = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said = []
        while not (said and said[-1].startswith("Attached")):
            said.append(tracer.stdout.readline())
            assert said[-1], f"the tracer ended: {said}"
        time.sleep(0.1)  # what a script switches at its beginning has happened
        figures = self.figures()
        tracer.send_signal(signal.SIGINT)
        said += tracer.communicate(timeout=60)[0].splitlines()
        assert tracer.returncode == 0, said
        return figures

    def figures(self):
        return [float(it) for it in self.ask(self.question).split()]


def main(rounds):
    hows = ["bare", "floor", *SCRIPTS, *([how + OF_BEFORE for how in SCRIPTS] if BEFORE else [])]
    line = [PYTHON, str(BIN / "transformer.py"), "paired", str(BIN / "libfloor.so")]
    program, samples = Program(line, SCRIPTS), {how: [] for how in hows}
    for how in hows:
        program.measure(how)
    for r in range(rounds):
        for how in rotated(hows, r):
            samples[how] += program.measure(how)
        print("  round", r + 1, {how: values[-1] for how, values in samples.items()}, flush=True)
    print(f"PyTorch forward, ms, in one process ({rounds} rounds)")
    for how, values in samples.items():
        print(f"  {how:22} median {statistics.median(values):.4f}")
    pairs = [(how, "floor") for how in hows[2:]] + [("floor", "bare"), ("stacks", "native stacks"), ("native stacks", "no stacks")]
    for how, base in pairs:
        ratios = [a / b for a, b in zip(samples[how], samples[base])]
        low, high = interval(ratios)
        print(f"  {how} / {base}: {statistics.median(ratios):.4f}  95 % [{low:.4f}, {high:.4f}]", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 25)
