"""What of a launch goes into the collector's own code; see README.md. Called by run.sh.

    own.py [SECONDS]

Samples the launching thread of the loop of launches, under CUPTI alone and under scripts, and counts the samples whose innermost
function is the collector's. Differences between whole launches are drowned in the noise of a shared machine; a share of ten
thousand samples is not. Beside the collector, the functions of the C library that it calls are counted, less what they are without
it. BEFORE=PATH also measures another build."""

import collections
import os
import re
import statistics
import subprocess
import sys
import time

from h200 import BEFORE, BIN, OUT, SCRIPTS, XPUTRACE
from paired import OF_BEFORE

HZ = 4999
# Rust's functions in a program that has none of its own.
OURS = re.compile(r"xputrace_|^<?(std|core|alloc)::")
HELPERS = {
    "reading the clock": r"_*(vdso_)?clock_gettime(@.*)?",
    "finding the thread's variables": r"__tls_get_addr.*",
    "comparing names": r"_*strncmp.*",
    "copying": r"_*mem(move|cpy).*",
}


def sampled(how, seconds):
    """Returns nanoseconds of a launch by innermost function, and those of the whole launch."""
    env, line = dict(os.environ), ["stdbuf", "-oL", str(BIN / "loop"), "1000", "20000"]
    if how == "both domains":
        env |= {"CUDA_INJECTION64_PATH": str(BIN / "libfloor.so"), "FLOOR_CALLBACKS": "both"}
    else:
        binary = BEFORE if how.endswith(OF_BEFORE) else XPUTRACE
        line = [binary, "-q", "-o", "/dev/null", "-e", *SCRIPTS[how.removesuffix(OF_BEFORE)], "--", *line]
    program = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env, start_new_session=True)
    pid = program.pid if how == "both domains" else child(program)
    time.sleep(2)
    folded = OUT / "own.folded"
    probe = f"profile({HZ}.hz, |e| if e.tid == e.pid {{ @s[e.ustack].count() }});"
    subprocess.run([XPUTRACE, "-q", "-o", "/dev/null", "--folded", folded, "-e", probe, "-p", str(pid), "--for", f"{seconds}s"], check=True, timeout=120)
    os.kill(pid, 15)
    figures = [float(it) for it in re.findall(r"^\d+\.\d+$", program.communicate(timeout=60)[0], re.M)]
    launch, samples = statistics.median(figures), collections.Counter()
    for line in folded.read_text().splitlines():
        stack, n = line.rsplit(" ", 1)
        samples[stack.rsplit(";", 1)[-1]] += int(n)
    total = samples.total()
    return {name: launch * n / total for name, n in samples.items()}, launch


def child(tracer):
    """Returns the process id of the traced program, once it runs."""
    while tracer.poll() is None:
        found = subprocess.run(["pgrep", "-x", "-P", str(tracer.pid), "loop"], capture_output=True, text=True).stdout.split()
        if found:
            return int(found[0])
        time.sleep(0.05)
    sys.exit(f"xputrace ended with {tracer.returncode}")


def main(seconds):
    hows = ["both domains", *(how + of for how in ("no stacks", "joined", "stacks") for of in ([OF_BEFORE, ""] if BEFORE else [""]))]
    base = None
    print(f"ns a launch, by {HZ} samples a second in {seconds} s each")
    for how in hows:
        nanos, launch = sampled(how, seconds)
        helpers = {it: sum(n for name, n in nanos.items() if re.fullmatch(names, name)) for it, names in HELPERS.items()}
        base = base or helpers
        own = {name: n for name, n in nanos.items() if OURS.search(name)}
        called = {it: n - base[it] for it, n in helpers.items() if abs(n - base[it]) >= 1}
        print(f"{how:20} launch {launch:.0f}, the collector {sum(own.values()):.0f}, what it calls {sum(called.values()):.0f}", flush=True)
        for name, n in sorted({**own, **called}.items(), key=lambda it: -it[1])[:9]:
            print(f"    {n:6.1f} {name}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
