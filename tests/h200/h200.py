"""Checks and measurements of xputrace on a real GPU; see README.md. Called by run.sh."""

import functools
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

XPUTRACE = os.environ["XPUTRACE"]
# Another build to compare with, such as the one before a change.
BEFORE = os.environ.get("BEFORE")
BIN = Path(os.environ["BIN"])
OUT = Path(os.environ["OUT"])
PYTHON = "python3"

EXACT = """
kernel(|k| { @n[k.name].count(); @ns.sum(k.duration); @joined.count(); if k.launch == () { @unjoined.count() } });
launch(|l| @launches[l.api].count());
"""


# What the last traced run wrote to standard error: a case that fails shows it.
last_notes = ""


def trace(script, command, *options, env=None, check=True, timeout=120):
    """Traces a command with a script; returns the JSON results and the command's own output."""
    out = OUT / "trace.json"
    line = [XPUTRACE, "-f", "json", "-o", str(out), *options, "-e", script, "--", *map(str, command)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=timeout, env=env)
    global last_notes
    last_notes = done.stderr
    if check and done.returncode != 0:
        raise AssertionError(f"status {done.returncode}: {' '.join(line)}\n{done.stderr[-3000:]}")
    lines = out.read_text().splitlines() if out.exists() else []
    return [json.loads(it) for it in lines], done


def maps(objects):
    merged = {}
    for it in objects:
        if it["type"] == "map":
            merged.update(it["data"])
    return merged


def losses(objects):
    """Returns the account and losses of a run as one dict; losses by line are separate."""
    data = dict(objects[-1]["data"])
    data.pop("lines")
    return {**data, **(data.pop("account") or {})}


def account(done):
    """Returns the program's own account: the last JSON line that it printed."""
    return json.loads([it for it in done.stdout.splitlines() if it.startswith("{")][-1])


RESULTS = []


def case(name, needs=None, cases=RESULTS):
    def wrap(function):
        cases.append((name, needs, function))
        return function

    return wrap


def expect(what, got, wanted):
    assert got == wanted, f"{what}: got {got}, expected {wanted}"


def exact(command, launches=None, kernels=None, **more):
    objects, done = trace(EXACT, command, **more)
    found, lost, own = maps(objects), losses(objects), account(done)
    launches = own["launches"] if launches is None else launches
    kernels = own.get("kernels", launches) if kernels is None else kernels
    expect("launches", lost["launches"], launches)
    expect("joined", lost["joined"], launches)
    expect("kernels", sum(found["@n"].values()), kernels)
    expect("kernel nanoseconds against CUPTI's", found["@ns"], lost["collector_kernel_nanos"])
    expect("kernel records against CUPTI's", kernels, lost["collector_kernels"])
    expect("losses", bad(lost), {})
    return f"{launches} launches, {kernels} kernels, {found['@ns']} ns", found, lost, own


GOOD = {"outside", "launches", "joined", "captured", "kernels", "kernel_nanos", "collector_kernels", "collector_kernel_nanos", "account"}


def bad(lost, fine=frozenset()):
    """What no run should lose, except for what is fine here."""
    return {k: v for k, v in lost.items() if v and k not in GOOD and k not in fine}


OCCUPANCY = """
import "occupancy" as occupancy;
kernel(|k| @blocks[k.name, k.block.size, k.dynamic_shared] = occupancy::blocks_per_sm(k));
"""


@case("occupancy, against CUDA's own calculation")
def occupancy():
    objects, done = trace(OCCUPANCY, [BIN / "occupancy"])
    wanted = account(done)
    expect("blocks a multiprocessor", maps(objects)["@blocks"], wanted)
    return f"{len(wanted)} kernels of different shape"


CONTEXTS = """
context(|c| { @n[c.kind].count(); @ids[c.context].count() });
context(|c| if c.device == 0 && c.gpu.sms != () && (c.null_stream != () || c.kind == "destroy") { @sane.count() });
context(|c| if c.kind == "create" { @by[c.ustack].count() });
"""


@case("contexts that are created and destroyed")
def contexts():
    objects, done = trace(CONTEXTS, [BIN / "contexts", 4])
    found, own = maps(objects), account(done)
    # What is left at the end may be destroyed while the process exits.
    expect("created", found["@n"]["create"], own["created"])
    assert own["destroyed"] <= found["@n"]["destroy"] <= own["created"], found["@n"]
    expect("with ids and a GPU", found["@sane"], sum(found["@n"].values()))
    expect("contexts", len(found["@ids"]), own["created"])
    made = sum(n for stack, n in found["@by"].items() if "creates_a_context" in stack)
    expect("by the function that creates them", made, own["created"] - 1)
    return f"{own['created']} created, {found['@n']['destroy']} destroyed"


MIGRATIONS = """
migration(|m| @n[m.kind, m.cause].count());
migration(|m| if m.bytes != () { @bytes[m.kind].sum(m.bytes) });
migration(|m| if m.end < m.start || (m.kind == "HtoD") != (m.dst_device == 0 && m.src_device == ()) { @odd[m.kind].count() });
migration(|m| if m.bytes != () { @low.min(m.address); @high.max(m.address + m.bytes) });
kernel(|k| @kernels.count());
"""


@case("unified memory that moves there and back")
def unified_memory():
    objects, done = trace(MIGRATIONS, [BIN / "managed", 32, 4])
    found, lost, own = maps(objects), losses(objects), account(done)
    expect("losses", bad(lost, {"kernels_only", "migration"}), {})
    expect("kernels", found["@kernels"], own["turns"])
    moved, whole = found["@bytes"], own["bytes"] * own["turns"]
    # Pages that nobody has touched yet need not move; what the driver prefetches may do so more than once.
    for way in ("HtoD", "DtoH"):
        assert whole * 0.7 <= moved[way] <= whole * 2, (way, moved, whole)
    expect("odd ones", found.get("@odd", {}), {})
    assert own["address"] <= found["@low"] and found["@high"] <= own["address"] + own["bytes"], (found, own)
    kinds = {it.split(",")[0] for it in found["@n"]}
    assert {"HtoD", "DtoH", "cpu_fault", "gpu_fault"} <= kinds, kinds
    return f"{found['@n']}"


@case("payloads of NVTX marks that are floating-point numbers")
def payloads():
    objects, _ = trace("nvtx(|n| if n.kind == \"mark\" { @n[n.name, n.payload_text, n.payload].count() });", [BIN / "ranges", 1, 1])
    expect("marks", maps(objects)["@n"], {"loss,0.1,-": 2})
    return "a double and a float"


EXTERNAL = """
kernel(|k| @n[k.name, k.launch.external_kind].count());
kernel(|k| if k.launch.external != () { @ids[k.launch.external].count() });
"""


@case("ids that the program pushes for CUPTI")
def external_ids():
    env = os.environ | {"CUPTI_LIBRARY": os.environ.get("CUPTI_REAL", "libcupti.so.13")}
    objects, done = trace(EXTERNAL, [BIN / "externals", 10], env=env)
    found, own = maps(objects), account(done)
    expect("kernels", found["@n"], {"none,-": 21, "outer,custom0": 10, "inner,custom1": 10, "after,custom0": 10})
    expect("ids", found["@ids"], {str(100 + n): 2 for n in range(10)} | {str(200 + n): 1 for n in range(10)})
    expect("popped otherwise than pushed", own["bad"], 0)
    return "20 ids"


@case("C++, shared cudart")
def shared():
    return exact([BIN / "requests", 4, 250, 4])[0]


@case("C++, static cudart")
def static():
    return exact([BIN / "requests_static", 4, 250, 4])[0]


@case("driver API only")
def driver():
    return exact([BIN / "driver", 2000])[0]


@case("CUDA graph, 1:N")
def graph():
    return exact([BIN / "graphs", 2000, 8])[0]


@case("graphs without a kernel, in child graphs, switched off, conditional")
def graph_contents():
    objects, done = trace(EXACT, [BIN / "contents", 100])
    found, lost, own = maps(objects), losses(objects), account(done)
    expect("launches", lost["launches"], own["launches"])
    # A kernel in a child graph is joined like any other. CUPTI 13.0 gives the kernels of a conditional body
    # another correlation id than their graph's launch.
    expect("joined", lost["joined"], own["with_kernel"])
    expect("without a kernel", lost["without_kernel"], own["without_kernel"])
    expect("not known", lost["without_record"], own["not_known"])
    expect("lost", lost["lost"], 0)
    expect("kernels", sum(found["@n"].values()), own["with_kernel"] + own["in_condition"])
    expect("unjoined", lost["unjoined"], own["in_condition"])
    return f"{own['launches']} launches, {lost['without_kernel']} without a kernel, {lost['without_record']} not known"


@case("LLM, 92,000 launches")
def llm():
    return exact([BIN / "llm"])[0]


@case("two processes")
def two():
    objects, done = trace(EXACT, ["sh", "-c", f"{BIN}/requests 2 100 4 & {BIN}/graphs 500 4; wait"])
    own = [json.loads(it) for it in done.stdout.splitlines() if it.startswith("{")]
    lost = losses(objects)
    expect("launches", lost["launches"], sum(it["launches"] for it in own))
    expect("joined", lost["joined"], lost["launches"])
    return f"{lost['launches']} launches of two processes"


@case("nothing lost at the rate of four threads")
def rate():
    text, _, _, own = exact([BIN / "requests_static", 4, 50000, 8, 0])
    return f"{text}; {own['launches_per_second']} launches/s while traced"


@case("with stacks, four threads")
def stacks():
    script = EXACT + "kernel(|k| @s[k.launch.ustack].count());"
    objects, done = trace(script, [BIN / "requests_static", 4, 50000, 8, 0])
    lost = losses(objects)
    expect("joined", lost["joined"], account(done)["launches"])
    expect("stacks", sum(maps(objects)["@s"].values()), lost["joined"])
    return f"{lost['joined']} launches; {account(done)['launches_per_second']} launches/s while traced"


@case("recorded at the rate of four threads, and replayed")
def recorded():
    path = OUT / "rate.xpt"
    line = [XPUTRACE, "record", "-o", str(path), "--", str(BIN / "requests_static"), "4", "50000", "8", "0"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    expect("status", done.returncode, 0)
    own, size = account(done), path.stat().st_size
    replayed = subprocess.run([XPUTRACE, "-f", "json", "-e", EXACT, "--replay", str(path)], capture_output=True, text=True, timeout=120)
    expect("replay's status", replayed.returncode, 0)
    path.unlink()
    lost = losses([json.loads(it) for it in replayed.stdout.splitlines()])
    expect("launches", lost["launches"], own["launches"])
    expect("losses", bad(lost), {})
    return f"{lost['joined']} launches at {own['launches_per_second']} launches/s while recorded, {size} bytes"


@case("memory sets, by call, driver, and in graphs")
def sets():
    script = EXACT + """
    memset(|m| {
        @sets.count(); @bytes.sum(m.bytes); @values[m.value].count();
        if m.launch == () { @unjoined_sets.count() } else { @calls[m.launch.api].count() }
    });
    """
    objects, done = trace(script, [BIN / "sets", 200])
    found, lost, own = maps(objects), losses(objects), account(done)
    expect("sets", found["@sets"], own["sets"])
    expect("bytes", found["@bytes"], own["set_bytes"])
    expect("kernels", sum(found["@n"].values()), own["kernels"])
    expect("sets without a launch", found.get("@unjoined_sets", 0), 0)
    rounds = own["set_calls"] // 8
    # Inside graphs CUPTI repeats the value of the last memset outside, so it is not shown.
    expect("values", found["@values"], {"-": 2 * rounds, "1": rounds, "3": 2 * rounds, "5": rounds, "7": rounds, "9": rounds, "4660": rounds, "305419896": rounds})
    expect("launches of kernels and graphs", sum(found["@launches"].values()), own["launches"])
    return f"{own['sets']} sets of {own['set_bytes']} bytes, {own['kernels']} kernels; {found['@calls']}"


TAGGED = f"""
uprobe("{BIN}/requests:handle_request", |e| @request[e.tid] = e.arg0);
launch(|l| l.tag = @request[l.tid]);
kernel(|k| @gpu[k.launch.tag].count());
"""


@case("many GPU processes at once, each with a tag")
def many():
    command = f"for i in $(seq 24); do {BIN}/requests 1 8 4 & done; wait"
    objects, done = trace(TAGGED, ["sh", "-c", command])
    own = [json.loads(it) for it in done.stdout.splitlines() if it.startswith("{")]
    expect("programs", len(own), 24)
    lost = losses(objects)
    expect("launches", lost["launches"], sum(it["launches"] for it in own))
    expect("joined", lost["joined"], lost["launches"])
    return f"{lost['launches']} launches of {len(own)} processes; {maps(objects)['@gpu']}"


@case("self-timed kernels against globaltimer")
def globaltimer():
    script = 'kernel(|k| if k.short_name == "self_timed" { @ns.sum(k.duration); @n.count() });'
    objects, done = trace(script, [BIN / "requests", 4, 250, 4])
    found, own = maps(objects), account(done)["self_timed_ns"]
    ratio = found["@ns"] / own
    assert 1.0 <= ratio < 1.01, f"ratio {ratio}"
    return f"CUPTI {found['@ns']} ns, globaltimer {own} ns, ratio {ratio:.5f} (a kernel's own timer starts later and ends earlier)"


@case("PyTorch, forward and backward")
def pytorch():
    objects, done = trace(EXACT, [PYTHON, BIN / "transformer.py", "train", 10])
    lost = losses(objects)
    expect("joined", lost["joined"], lost["launches"])
    expect("ns", maps(objects)["@ns"], lost["collector_kernel_nanos"])
    return f"{lost['launches']} launches joined"


def profiled(command, *options, script=EXACT):
    """Traces a program that profiles itself; returns its account, the results, and what helps if they are wrong."""
    objects, done = trace(script, command, *options, timeout=300)
    gaps = [it["data"] for it in objects if it["type"] == "gap"]
    notes = [it["data"] for it in objects if it["type"] == "note"]
    about = f"\n  gaps {gaps}\n  notes {notes}\n  losses { {k: v for k, v in losses(objects).items() if v} }\n  stderr {done.stderr[-3000:]}"
    return account(done), objects, gaps, about


def shape(own):
    """Returns what torch.profiler reported, without times."""
    return [{name: count for name, (count, _) in it["kernels"].items()} for it in own["windows"]]


def difference(bare, traced):
    lines = []
    for at, (a, b) in enumerate(zip(bare, traced)):
        for name in sorted(a.keys() | b.keys()):
            if a.get(name) != b.get(name):
                lines.append(f"\n  window {at}: {name[:80]}: bare {a.get(name)}, traced {b.get(name)}")
    return "".join(lines[:20]) or f"bare {len(bare)} windows, traced {len(traced)}"


PROFILED = [PYTHON, BIN / "profiled.py", 3, 20]
# A kernel starts behind its launch, and not long behind it: also after torch.profiler has replaced CUPTI's clock.
TIMED = EXACT + "kernel(|k| @late[k.start < k.launch.time || k.start - k.launch.time > 10.s].count());"


@functools.cache
def profiled_bare():
    done = subprocess.run(list(map(str, PROFILED)), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"bare: status {done.returncode}: {done.stderr[-3000:]}"
    return account(done)


@case("torch.profiler in a traced program")
def torch_profiler():
    bare = profiled_bare()
    own, objects, gaps, about = profiled(PROFILED, script=TIMED)
    (OUT / "profiled.json").write_text(json.dumps({"bare": bare, "traced": own, "gaps": gaps}))
    kernels = [sum(it.values()) for it in shape(bare)]
    assert all(kernels), f"bare, torch.profiler sees no kernels: {kernels}"
    assert shape(bare) == shape(own), difference(shape(bare), shape(own)) + about
    # Times in the profiler are sane: the same kernels take about as long.
    nanos = [[sum(ns for _, ns in it["kernels"].values()) for it in run["windows"]] for run in (bare, own)]
    ratios = [b / a for a, b in zip(*nanos)]
    assert all(0.5 < it < 2 for it in ratios), f"kernel time in torch.profiler, traced over bare: {ratios}{about}"
    shown = [gap_in(window, gaps, about) for window in own["windows"]]
    lost, found = losses(objects), maps(objects)
    expect("launches" + about, lost["joined"] + lost["lost"], lost["launches"])
    expect("lost launches are those of the gaps" + about, lost["yielded"], lost["lost"])
    if all(it["saw_all"] for it in gaps):
        expect("launches in the gaps" + about, sum(it["launches"] for it in gaps), lost["lost"])
    expect("kernel nanoseconds against CUPTI's" + about, found["@ns"], lost["collector_kernel_nanos"])
    # A window is as long as what is before, between and behind: of 7 stretches 4 are ours.
    ours, theirs = sum(found["@n"].values()), sum(kernels)
    assert ours >= theirs, f"ours {ours}, torch.profiler's {theirs}{about}"
    mean = found["@ns"] / ours, sum(nanos[1]) / theirs
    assert 0.5 < mean[0] / mean[1] < 2, f"mean kernel: ours {mean[0]:.0f} ns, torch.profiler's {mean[1]:.0f} ns{about}"
    expect("kernels before their launch, or long behind it" + about, found["@late"], {"false": ours})
    return f"{theirs} kernels in torch.profiler as bare, {ours} in ours, mean {mean[1]:.0f} and {mean[0]:.0f} ns; {len(gaps)} gaps; {'; '.join(shown)}"


def gap_in(window, gaps, about):
    """Compares the gap in a window with the window; returns both in words."""
    entered, on, ending, ended = window["times"]
    # torch.profiler may unload CUPTI some time after a window: a short gap of its own.
    matching = [it for it in gaps if it["start"] < ending and it["end"] > on]
    expect(f"gaps in the window {window['times']}" + about, len(matching), 1)
    gap = matching[0]
    text = (f"gap {(gap['end'] - gap['start']) / 1e6:.1f} ms, window {(ended - entered) / 1e6:.1f} (on {(ending - on) / 1e6:.1f}) ms, "
            f"begins {(gap['start'] - entered) / 1e6:+.1f}, ends {(gap['end'] - ended) / 1e6:+.1f} ms")
    slack = 50_000_000
    assert entered <= gap["start"] <= on + slack, text + about
    assert ending <= gap["end"] <= ended + slack, text + about
    expect("tool" + about, gap["tool"], "torch.profiler")
    return text


@case("torch.profiler refused, or tracing ended")
def torch_profiler_keep():
    own, objects, gaps, about = profiled(PROFILED, "--on-conflict", "keep")
    lost = losses(objects)
    expect("kernels in torch.profiler" + about, [sum(it.values()) for it in shape(own)], [0] * len(own["windows"]))
    expect("joined" + about, lost["joined"], lost["launches"])
    bare = profiled_bare()
    ended, ended_objects, _, ended_about = profiled(PROFILED, "--on-conflict", "fail")
    assert shape(bare) == shape(ended), difference(shape(bare), shape(ended)) + ended_about
    expect("untraced" + ended_about, losses(ended_objects)["untraced_process"], 1)
    return f"keep: {lost['joined']} launches joined; fail: {losses(ended_objects)['joined']} before the first window"


@case("a uprobe's value as launch tag")
def tag():
    objects, done = trace(TAGGED, [BIN / "requests", 4, 250, 4])
    found = maps(objects)["@gpu"]
    expect("tags", found, {str(i): 5000 // 8 for i in range(1, 9)})
    return f"{found}"


@case("CPU probe counts")
def cpu():
    script = f'uprobe("{BIN}/requests:handle_request", |e| @n.count()); uprobe("libcudart:cudaLaunchKernel", |e| @launch.count());'
    objects, done = trace(script, [BIN / "requests", 4, 250, 4])
    found = maps(objects)
    expect("requests", found["@n"], 1000)
    expect("cudaLaunchKernel", found["@launch"], 5000)
    return f"{found}"


@case("handlers in every thread of a kernel")
def in_kernels():
    script = """
        device_entry("vectorAdd", |t| @entries.count());
        device_exit("_Z9vectorAdd*", |t| { @exits += 1; @blocks.max(t.blockIdx.x); @threads.stats(t.threadIdx.x); });
        device_exit("scale<float>", |t| if t.threadIdx.x == 0 { @of[t.kernel].count() });
        kernel(|k| @kernels[k.name].count());
    """
    objects, done = trace(script, [BIN / "vectors", 1_000_000, 50])
    found, own = maps(objects), account(done)
    expect("results", (own["wrong"], own["calls"], own["error"]), (0, 2, "no error"))
    threads, blocks = own["threads"] * 50, own["threads"] // 256
    expect("entries", found["@entries"], threads)
    expect("exits", found["@exits"], threads)
    expect("last block", found["@blocks"], blocks - 1)
    stats = next(it["data"]["@threads"] for it in objects if it["type"] == "stats")
    expect("threads", (stats["count"], stats["min"], stats["max"]), (threads, 0, 255))
    expect("blocks of the other kernel", found["@of"], {"scale<float>": 2 * blocks})
    expect("kernels", found["@kernels"], {"vectorAdd": 50, "scale<float>": 2})
    expect("losses", bad(losses(objects), {"kernels_only"}), {})
    return f"{threads} threads of 50 launches"


@case("kill -9 of the tracer: the target finishes")
def kill():
    marker = OUT / "finished"
    marker.unlink(missing_ok=True)
    tracer = subprocess.Popen([XPUTRACE, "-e", EXACT, "--", "sh", "-c", f"{BIN}/requests 4 200000 8 0 > {marker}"])
    time.sleep(2.0)
    tracer.send_signal(signal.SIGKILL)
    tracer.wait()
    for _ in range(300):
        if marker.exists() and marker.read_text().strip().endswith("}"):
            return f"target went on and finished: {marker.read_text().strip()}"
        time.sleep(0.1)
    raise AssertionError("the target did not finish within 30 s")


@case("CUDA without the collector")
def without_collector():
    # That CUDA ran is seen by the name of the driver's thread.
    objects, done = trace(EXACT, ["env", "-u", "CUDA_INJECTION64_PATH", BIN / "requests", 4, 25, 4])
    expect("untraced", losses(objects).get("untraced_process"), 1)
    assert "used CUDA, and its collector never connected" in done.stderr, done.stderr
    objects, done = trace(EXACT, [PYTHON, "-c", "import ctypes; ctypes.CDLL('libcuda.so.1')"])
    expect("untraced", losses(objects).get("untraced_process", 0), 0)
    return "one that ran is counted, one that did not is none"


@case("a script without root", needs="setpriv")
def rootless():
    line = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all",
            "env", "HOME=/tmp/nobody", XPUTRACE, "-f", "json", "-e", EXACT, "--", str(BIN / "requests"), "2", "50", "4"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
    objects = [json.loads(it) for it in done.stdout.splitlines() if it.startswith('{"type"')]
    expect("joined", losses(objects)["joined"], losses(objects)["launches"])
    return f"{losses(objects)['launches']} launches as nobody"


@case("doctor and the demo")
def demo():
    doctor = subprocess.run([XPUTRACE, "doctor"], capture_output=True, text=True, timeout=60)
    expect("doctor's status", doctor.returncode, 0)
    done = subprocess.run([XPUTRACE, "demo"], capture_output=True, text=True, timeout=120, cwd=OUT)
    expect("the demo's status", done.returncode, 0)
    (OUT / "doctor.txt").write_text(doctor.stdout)
    (OUT / "demo.txt").write_text(done.stdout + done.stderr)
    return f"doctor.txt and demo.txt beside this, {len(done.stdout.splitlines())} lines"


def run_checks(cases=RESULTS, report_to="check.txt"):
    report, failed = [], 0
    for name, needs, function in cases:
        if needs and not any((Path(d) / needs).exists() for d in os.environ["PATH"].split(":")):
            report.append(f"skipped  {name}: no {needs} here")
            continue
        began = time.time()
        try:
            report.append(f"passed   {name}: {function()} [{time.time() - began:.1f} s]")
        except Exception as error:  # a failing case must not hide the others
            failed += 1
            report.append(f"FAILED   {name}: {error}\n{last_notes[-2000:]}")
        print(report[-1], flush=True)
    (OUT / report_to).write_text("\n".join(report) + "\n")
    return failed


# ---- measurements: interleaved, paired, ratio of medians -------------------------------------

NO_STACKS = "kernel(|k| @time[k.name].sum(k.duration));"
JOINED = "kernel(|k| @latency.hist(k.start - k.launch.time));"
STACKS = "kernel(|k| @time[k.launch.ustack, k.name].sum(k.duration));"
SCRIPTS = {"no stacks": [NO_STACKS], "joined": [JOINED], "stacks": [STACKS], "native stacks": [STACKS, "--python", "off"]}
# CUPTI's kernel records alone, and with callbacks that do nothing at launch calls of these domains.
FLOORS = {"floor": "", "one domain": "runtime", "both domains": "both"}


def figures(command, how, summary):
    """Runs a workload in one of the ways; returns one number from the figures that it prints."""
    env = dict(os.environ)
    line = list(map(str, command))
    if how in FLOORS:
        env["CUDA_INJECTION64_PATH"] = str(BIN / "libfloor.so")
        if FLOORS[how]:
            env["FLOOR_CALLBACKS"] = FLOORS[how]
    elif how == "empty injection":
        env["CUDA_INJECTION64_PATH"] = str(BIN / "libempty.so")
    elif how == "dormant":
        # Loaded, but without a tracer: the collector stays dormant.
        env["CUDA_INJECTION64_PATH"] = collector()
        env["XPUTRACE_SOCKET"] = "@xputrace-nobody-listens"
    elif how.removesuffix(OF_BEFORE) in SCRIPTS:
        binary = BEFORE if how.endswith(OF_BEFORE) else XPUTRACE
        line = [binary, "-q", "-o", "/dev/null", "-e", *SCRIPTS[how.removesuffix(OF_BEFORE)], "--", *line]
    done = subprocess.run(line, capture_output=True, text=True, env=env, timeout=300)
    values = [float(it) for it in re.findall(r"^\d+\.\d+$", done.stdout, re.M)]
    assert values, f"{how}: no figures\n{done.stderr[-2000:]}"
    return summary(values)


def collector():
    places = [Path("/var/cache/xputrace"), Path(os.environ.get("HOME", "/root"), ".cache/xputrace")]
    return str(next(it for place in places for it in sorted(place.glob("collector-*.so"))))


def rotated(ways, r):
    """Returns all ways, beginning with another one in each round."""
    return ways[r % len(ways):] + ways[:r % len(ways)]


def interval(differences):
    """Returns the 95 % bootstrap interval of the median of paired differences."""
    pick = random.Random(1)
    medians = sorted(statistics.median(pick.choices(differences, k=len(differences))) for _ in range(4000))
    return medians[100], medians[3899]


OF_BEFORE = ", before"
EVERYTHING = ["bare", "dormant", "floor", "both domains", "no stacks", "joined", "stacks"]
if BEFORE:
    EVERYTHING = ["bare", "floor", *(way for how in SCRIPTS for way in (how, how + OF_BEFORE))]
PAIRS = [
    ("dormant", "bare"),
    ("empty injection", "bare"),
    ("dormant", "empty injection"),
    ("both domains", "floor"),
    ("no stacks", "floor"),
    ("joined", "floor"),
    ("stacks", "floor"),
    ("native stacks", "floor"),
    ("stacks", "native stacks"),
    ("joined", "both domains"),
    ("stacks", "both domains"),
    *((how, how + OF_BEFORE) for how in SCRIPTS),
]


def measure():
    """Interleaved rounds of every way to run a workload; medians, and paired differences.

    measure [ROUNDS] [launch|dormant|pytorch|python …]"""
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 9
    parts = sys.argv[3:] or ["launch", "dormant", "pytorch"]
    loop, torch = [BIN / "loop", 5, 60000], [PYTHON, BIN / "transformer.py", "time", 20]
    workloads = [
        ("launch", "launch loop, ns a launch", loop, EVERYTHING, rounds),
        # The difference is tiny: the best of many short stretches is disturbed least.
        ("dormant", "launch loop, dormant against bare, ns a launch", [BIN / "loop", 40, 4000], ["bare", "empty injection", "dormant"], 8 * rounds),
        ("pytorch", "PyTorch forward, ms", torch, EVERYTHING, max(3, rounds // 2)),
        ("python", "PyTorch forward with whole stacks, ms", torch, ["bare", "floor", "native stacks", "stacks"], rounds),
    ]
    path = OUT / "measure.json"
    result = json.loads(path.read_text()) if path.exists() else {}
    trace("kernel(|k| @n.count());", [BIN / "requests", 1, 1, 1])
    for part, title, command, hows, n in workloads:
        if part not in parts:
            continue
        samples = {how: [] for how in hows}
        for r in range(n):
            for how in rotated(hows, r):
                samples[how].append(figures(command, how, min if part == "dormant" else statistics.median))
        result[title] = samples
        print(f"{title} ({n} rounds)")
        for how in hows:
            print(f"  {how:10} median {statistics.median(samples[how]):.4f}  all {[round(x, 3) for x in samples[how]]}")
        for how, base in PAIRS:
            if how not in hows or base not in hows:
                continue
            differences = [a - b for a, b in zip(samples[how], samples[base])]
            low, high = interval(differences)
            ratio = statistics.median(samples[how]) / statistics.median(samples[base])
            least, most = interval([a / b for a, b in zip(samples[how], samples[base])])
            print(f"  {how} - {base}: median {statistics.median(differences):.4f}  95 % [{low:.4f}, {high:.4f}]  ratio {ratio:.4f} [{least:.4f}, {most:.4f}]", flush=True)
    path.write_text(json.dumps(result))
    return 0


# ---- recordings ---------------------------------------------------------------------------------

REQUEST = """
uprobe("./requests:handle_request", |e| @request[e.tid] = e.arg0);
launch(|l| l.tag = @request[l.tid]);
kernel(|k| @gpu_ns[k.launch.tag].sum(k.duration));
"""


def record():
    failed = 0
    for name, script, command in [
        ("llm", None, ["./llm"]),
        ("pytorch", None, [PYTHON, "transformer.py", "train", 6]),
        ("jax", None, [PYTHON, "jax_step.py", 40]),
        ("requests", REQUEST, ["./requests", 4, 250, 4]),
        ("graphs", None, ["./graphs", 1000, 8]),
    ]:
        path = OUT / f"{name}.xpt"
        line = [XPUTRACE, "record", "-o", str(path), *(["-e", script] if script else []), "--", *map(str, command)]
        done = subprocess.run(line, capture_output=True, text=True, timeout=200, cwd=BIN)
        size = path.stat().st_size if path.exists() else 0
        print(f"{name}: status {done.returncode}, {size} bytes {done.stdout[-300:]} {done.stderr[-600:]}", flush=True)
        failed += done.returncode != 0
    return failed


def report():
    for name in ("check.txt", "attach.txt", "measure.json"):
        path = OUT / name
        print(path.read_text() if path.exists() else f"{name}: not run")
    return 0


if __name__ == "__main__":
    sys.exit({"check": run_checks, "measure": measure, "record": record, "report": report}[sys.argv[1]]())
