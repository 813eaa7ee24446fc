"""Copies, waits, allocations and calls against the ledgers that programs keep themselves, and all records against the sums of
those that CUPTI gave; see README.md. Called by run.sh.

    ledgers.py [SEEDS]

The programs are those of tests/live/programs: chosen by a seed, they call CUDA in every way, and print what they did. tests/live/programs/libcuptisum.so.c stands between
xputrace and libcupti, and sums the records that pass."""

import json
import os
import subprocess
import sys
from pathlib import Path

XPUTRACE, BIN, OUT = os.environ["XPUTRACE"], Path(os.environ["BIN"]), Path(os.environ["OUT"])

# Prints what the program prints, in the same lines.
SCRIPTS = {
    "copies": """
memcpy(|m| { @n[m.direction].count(); @bytes[m.direction].sum(m.bytes); });
memcpy(|m| { @copies.sum(m.copies ?? 1); if m.launch.start > m.start { @late.count(); } });
memcpy(|m| { @by[m.launch.api ?? "", m.direction, m.graph != ()].count(); @memories[m.direction, m.src, m.dst, m.is_async].count(); });
kernel(|k| @kernels.count());
launch(#{kinds: ["memcpy"]}, |l| @calls.count());
end(|| for it in ["HtoH", "HtoD", "DtoH", "DtoD"] { print(`${it} ${@n[it] ?? 0} ${@bytes[it] ?? 0}`) });
end(|| print(`calls ${@calls ?? 0}\nkernels ${@kernels ?? 0}\ncopies ${@copies ?? 0}\nlate ${@late ?? 0}`));
""",
    "calls": """
wait(|w| { @waits[w.kind].count(); @slowest[w.kind].max(w.duration); });
alloc(|a| if a.error == () { @allocs[a.kind].count(); @allocated.count(); @bytes.sum(a.bytes); @active += a.bytes; @peak.max(@active); });
alloc(|a| if a.error != () { @failed.count(); });
free(|f| { @active -= f.bytes ?? 1_000_000_000; @frees.count(); });
api("cudaMalloc", |a| @mallocs.count());
uprobe("libcudart:cudaMalloc", |e| @probed.count());
api(["cudaMalloc", "cuMemAlloc"], |a| @nested[a.api, a.nested ?? "the program"].count());
alloc(|a| @by[a.api, a.kind, a.nested ?? "the program", a.error ?? "ok"].count());
end(|| print(`allocs ${@allocated}\nfrees ${@frees}\nbytes ${@bytes}\nactive ${@active}\npeak ${@peak}`));
end(|| print(`device ${@allocs["device"]}\nmanaged ${@allocs["managed"]}\npinned ${@allocs["pinned"]}\npool ${@allocs["pool"]}`));
end(|| print(`copies ${@waits["copy"]}\nof_device ${@waits["device"]}\nof_context ${@waits["context"]}\nof_stream ${@waits["stream"]}\nof_event ${@waits["event"]}`));
end(|| print(`failed ${@failed}\nmallocs ${@mallocs}\nprobed ${@probed}`));
""",
}
# Prints what libcuptisum.so writes.
SUMS = """
kernel(|k| { @kernels.count(); @kernel_nanos.sum(k.duration) });
memcpy(|m| { @copies[m.direction == "PtoP"].count(); @copy_nanos[m.direction == "PtoP"].sum(m.duration); @copy_bytes[m.direction == "PtoP"].sum(m.bytes) });
memset(|m| { @sets.count(); @set_nanos.sum(m.duration); @set_bytes.sum(m.bytes) });
end(|| print(`kernel ${@kernels ?? 0} ${@kernel_nanos ?? 0} 0`));
end(|| print(`memcpy ${@copies[false] ?? 0} ${@copy_nanos[false] ?? 0} ${@copy_bytes[false] ?? 0}`));
end(|| print(`peer ${@copies[true] ?? 0} ${@copy_nanos[true] ?? 0} ${@copy_bytes[true] ?? 0}`));
end(|| print(`memset ${@sets ?? 0} ${@set_nanos ?? 0} ${@set_bytes ?? 0}\nother 0 0 0`));
"""
# Entries that both must have.
ENTRIES = {"copies": 7, "calls": 16}
ARGUMENTS = {"copies": lambda seed: [seed, 400, 4], "calls": lambda seed: [seed, 600]}


def ledger(text):
    """Returns the numbers by name; a line may have several names, and a name several numbers."""
    entries, name = {}, None
    for word in text.split():
        if word.lstrip("-").isdigit():
            entries.setdefault(name, []).append(int(word))
        else:
            name = word
    return entries


def traced(results, script, command):
    """Returns the run, its results, and what the script printed."""
    line = [XPUTRACE, "-q", "-f", "json", "-o", str(results), "-e", script, "--", *map(str, command)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, cwd=BIN)
    objects = [json.loads(it) for it in results.read_text().splitlines()] if results.exists() else []
    return done, objects, "\n".join(it["data"] for it in objects if it["type"] == "print")


def compare_sums(name, arguments):
    sums = OUT / "sums"
    sums.unlink(missing_ok=True)
    shim = ["env", f"LD_PRELOAD={BIN}/libcuptisum.so", f"CUPTI_SUMS={sums}"]
    done, _, printed = traced(OUT / f"sums_{name}.json", SUMS, [*shim, f"./{name}", *arguments])
    given = ledger(sums.read_text()) if sums.exists() else {}
    differ = {key: (given.get(key), it) for key, it in ledger(printed).items() if given.get(key) != it}
    print(f"records that CUPTI gave, {name} {arguments}: status {done.returncode}, {given}, differ (CUPTI, ours): {differ or 'none'}", flush=True)
    return bool(differ or done.returncode or not given)


def compare(name, seed):
    done, objects, printed = traced(OUT / f"ledger_{name}_{seed}.json", SCRIPTS[name], [f"./{name}", *ARGUMENTS[name](seed)])
    own, ours = ledger(done.stdout), ledger(printed)
    if name == "copies":
        # How many records a batch has is not known beforehand, only their bytes, and how many copies they stand for.
        own, ours = ({key: value[-1:] for key, value in it.items()} for it in (own, ours))
    differ = {key: (own.get(key), ours[key]) for key in ours if ours[key] != own.get(key, ours[key])}
    missing = ENTRIES[name] - len(own.keys() & ours.keys())
    print(f"{name}, seed {seed}: status {done.returncode}, {len(own.keys() & ours.keys())} entries, {missing} missing, differ (own, ours): {differ or 'none'}", flush=True)
    if differ or missing or done.returncode:
        print("\n".join(json.dumps(it)[:6000] for it in objects if it["type"] != "print") + "\n" + done.stdout[-800:] + done.stderr[-2000:])
    return bool(differ or missing or done.returncode or not objects)


def main(seeds):
    failed = sum(compare(name, seed) for name in SCRIPTS for seed in range(1, seeds + 1))
    failed += sum(compare_sums("copies", [seed, 400, 4]) for seed in range(1, seeds + 1))
    failed += sum(compare_sums(*it) for it in [("graphs", [200, 8]), ("requests", [4, 2000, 4]), ("sets", [500])])
    return failed != 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20))
