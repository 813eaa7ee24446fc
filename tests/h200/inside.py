"""Code inside kernels on a real GPU, against counts that the programs make themselves; see README.md. Called by run.sh.

    inside.py [WORD]    the cases that have the word in their names"""

import csv
import json
import re
import re
import subprocess
import sys
from pathlib import Path

from h200 import BIN, OUT, XPUTRACE, account, bad, case, expect, losses, maps, run_checks, trace

CASES = []
ROOT = Path(__file__).resolve().parents[2]


def inside(script, elements=100_000, launches=10, *options, check=True):
    """Runs `inside` under a script: its maps, its own account, and all that the run printed."""
    objects, done = trace(script, [BIN / "inside", elements, launches], *options, check=check)
    own = account(done)
    expect("the program's result", (own["wrong"], own["error"]), (0, "no error"))
    expect("losses", bad(losses(objects), {"kernels_only"}), {})
    return maps(objects), own


@case("accesses to memory, by space and access", cases=CASES)
def accesses():
    found, own = inside('device_mem("reduce", |t| { @n[t.space, t.access].count(); @bytes[t.space].sum(t.bytes ?? 0) });')
    times = own["launches"]
    wanted = {
        "global,load": own["elements"],
        "shared,load": own["shared_loads"],
        "shared,store": own["shared_stores"],
        "atomic": own["blocks"],
    }
    n = found["@n"]
    atomics = sum(v for k, v in n.items() if k.endswith("atomic"))
    expect("accesses", {**{k: n.get(k) for k in list(wanted)[:3]}, "atomic": atomics}, {k: v * times for k, v in wanted.items()})
    return f"{n}"


@case("addresses of accesses", cases=CASES)
def addresses():
    script = 'device_mem("reduce", |t| if t.space == "global" && t.access == "load" { @low.min(t.address); @high.max(t.address) });'
    found, own = inside(script)
    expect("bytes between the first and the last", found["@high"] - found["@low"], 4 * (own["elements"] - 1))
    return f"{found['@low']:#x} to {found['@high']:#x}"


@case("threads that are there, and sectors", cases=CASES)
def warps():
    script = """
        device_mem("reduce", #{per: "warp"}, |t| {
            @threads[t.space, t.access].sum(t.active);
            @least[t.space, t.access].min(t.active);
            if t.sectors != () { @sectors[t.access].sum(t.sectors); @accesses[t.access].count(); }
        });
    """
    # All of its warps are whole, and each loads 128 bytes side by side: 4 sectors of 32.
    found, own = inside(script, 100_000)
    times, loads = own["launches"], own["elements"] // 32
    wanted = {"global,load": own["elements"], "shared,load": own["shared_loads"], "shared,store": own["shared_stores"]}
    expect("threads", {k: found["@threads"].get(k) for k in wanted}, {k: v * times for k, v in wanted.items()})
    expect("the fewest that are there", (found["@least"]["global,load"], found["@least"]["shared,load"]), (32, 1))
    expect("accesses of global memory", found["@accesses"], {"load": loads * times, "atomic": own["blocks"] * times})
    expect("sectors", found["@sectors"], {"load": 4 * loads * times, "atomic": own["blocks"] * times})
    return f"{found['@sectors']}, {found['@threads']}"


def tool(*words):
    """Runs `inside` under a bundled script: its maps and its own account."""
    out = OUT / "tool.json"
    line = [XPUTRACE, "-f", "json", "-o", str(out), *words, "--kernel=reduce", "--", str(BIN / "inside"), "100000", "10"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{' '.join(line)}\n{done.stderr[-3000:]}"
    objects = [json.loads(it) for it in out.read_text().splitlines()]
    expect(f"losses of {words[0]}", bad(losses(objects), {"kernels_only"}), {})
    shown = [it["data"] for it in objects if it["type"] in ("map", "hist", "stats")]
    return {name: rows for it in shown for name, rows in it.items()}, account(done)


def of_lines(found, access):
    """Adds up a map by kernel, line and access, over the lines."""
    return sum(n for key, n in found.items() if key.split(",")[2] == access)


@case("the bundled scripts for the inside of kernels", cases=CASES)
def tools():
    found, own = tool("threadhist")
    times = own["launches"]
    threads, blocks = own["threads"] * times, own["blocks"] * times
    expect("threads", (found["@ran"], found["@launched"]), ({"reduce": threads}, {"reduce": threads}))
    expect("threads by warp of the block", [it["count"] for it in found["@in_block"]["reduce"]], [threads // 8] * 8)
    found, _ = tool("blocktime")
    expect("blocks", found["@blocks"]["reduce"]["count"], blocks)
    assert 0 < found["@blocks"]["reduce"]["min"] <= found["@blocks"]["reduce"]["max"] < 1_000_000, found["@blocks"]
    found, _ = tool("smbusy")
    sums = [sum(found[it].values()) for it in ("@blocks", "@warps", "@threads")]
    expect("blocks, warps and threads of all multiprocessors", sums, [blocks, threads // 32, threads])
    for sm, time in found["@thread_time"].items():
        assert 0 < time <= 2048 * (found["@last"][sm] - found["@first"][sm]), (sm, time)
    found, _ = tool("kernelargs")
    expect("the number of elements", found["@values"]["reduce,2,100000"], times)
    found, _ = tool("launchlat-device")
    latency = found["@launch_latency"]["all kernels"]
    expect("launches", sum(it["count"] for it in latency), times)
    assert all(it.get("min", -1) >= 0 for it in latency if it["count"]), latency
    found, _ = tool("hotlines")
    by = lambda access, space: sum(n for k, n in found["@accesses"].items() if k.split(",")[2:] == [access, space])
    wanted = own["elements"] * times, own["shared_loads"] * times, own["shared_stores"] * times
    expect("accesses", (by("load", "global"), by("load", "shared"), by("store", "shared")), wanted)
    found, _ = tool("memcoalesce")
    loads = own["elements"] // 32 * times
    for access, n, sectors in ("load", loads, 4 * loads), ("atomic", blocks, blocks):
        counted = tuple(of_lines(found[it], access) for it in ("@accesses", "@sectors", "@ideal"))
        expect(f"accesses, sectors and the ideal of each {access}", counted, (n, sectors, sectors))
    found, _ = tool("warpdiv", "--accesses")
    # In the last steps 16, 8, 4, 2 and 1 threads of a warp load twice and store; then one loads and adds to the result.
    lost = sum(3 * (32 - 2**step) for step in range(5)) + 2 * 31
    expect("places of warps that no thread took", sum(found["@lost"].values()), lost * blocks)
    return f"{latency}"


@case("begins and ends of blocks", cases=CASES)
def blocks():
    script = """
        device_block_begin("reduce", |t| { @begun[t.blockIdx.x].count(); @first[t.launch.time].min(t.time); });
        device_exit("reduce", |t| @exits[t.launch.time].max(t.time));
        device_block_end("reduce", |t| { @ended[t.blockIdx.x].count(); @last[t.launch.time].max(t.time); });
    """
    found, own = inside(script, 100_000, 30)
    wanted = {str(it): own["launches"] for it in range(own["blocks"])}
    expect("begins by block", found["@begun"], wanted)
    expect("ends by block", found["@ended"], wanted)
    for launched, last in found["@last"].items():
        # A handler of the last thread runs behind those of its exit, and of all others.
        assert found["@first"][launched] <= found["@exits"][launched] <= last, launched
    return f"{len(wanted)} blocks of {own['launches']} launches"


@case("barriers", cases=CASES)
def barriers():
    found, own = inside('device_barrier("reduce", |t| @n.count()); device_barrier("reduce", #{per: "warp"}, |t| @warps.count());')
    times = own["launches"]
    expect("barriers", (found["@n"], found["@warps"]), (own["barriers"] * times, own["barriers"] * times // 32))
    return f"{found}"


def in_calls(script):
    """Runs `calls` under a script: its maps and its own account."""
    objects, done = trace(script, [BIN / "device_calls", 10])
    own = account(done)
    expect("the program's result", (own["wrong"], own["error"]), (0, "no error"))
    expect("losses", bad(losses(objects), {"kernels_only"}), {})
    return maps(objects), own


@case("calls, by function and line", cases=CASES)
def calls():
    found, own = in_calls("""
        device_call("walks", |t| { @n.count(); @called[t.callee].count(); @by_line[t.callee, t.line].count(); });
        device_call("walks", |t| if t.callee == "outer" { @outer[t.kernel].count(); });
        device_call("allocates", |t| @runtime[t.callee].count());
    """)
    times = own["launches"]
    in_loop, outer, threads = (own[it] * times for it in ("in_loop", "outer", "threads"))
    expect("calls", found["@n"], in_loop + 2 * outer)
    expect("by function", found["@called"], {"inner": in_loop + outer, "outer": outer})
    lines = {f"inner,{own['inner_line']}": in_loop, f"outer,{own['outer_line']}": outer}
    expect("by line", {it: found["@by_line"].get(it) for it in lines}, lines)
    expect("of `outer`", found["@outer"], {"walks": outer})
    expect("of the device runtime", found["@runtime"], {"malloc": threads, "free": threads})
    return f"{found['@by_line']}"


@case("calls that are kept in registers", cases=CASES)
def kept_calls():
    # Those of the kernel alone are kept; `outer` is no kernel.
    found, own = in_calls('device_call("walks", |t| @n.count()); device_call("walks", #{per: "warp"}, |t| @warps.sum(t.active));')
    wanted = (own["in_loop"] + 2 * own["outer"]) * own["launches"]
    expect("calls, and threads of warps that call", (found["@n"], found["@warps"]), (wanted, wanted))
    return f"{found}"


def in_clusters(script, check=True):
    """Runs `clusters` under a script: its maps, its own account, and what the run said."""
    objects, done = trace(script, [BIN / "clusters", 5], check=check)
    own = account(done)
    expect("the program's result", (own["wrong"], own["error"]), (0, "no error"))
    return maps(objects), own, done.stderr, bad(losses(objects), {"kernels_only"})


@case("kernels in clusters", cases=CASES)
def clusters():
    kernels = ["compiled_in", "at_launch", "grows", "of_node"]
    every = lambda place, handler: "".join(f'{place}("{it}", |t| {handler});' for it in kernels)
    found, own, _, lost = in_clusters(
        every("device_entry", "@entries[t.kernel].count()")
        + every("device_exit", "@exits[t.kernel].count()")
        + every("device_mem", "@n[t.kernel, t.space, t.access].count()")
        + every("device_block_begin", "@begun[t.kernel, t.blockIdx.x].count()")
        + every("device_block_end", "@ended[t.kernel, t.blockIdx.x].count()")
    )
    expect("losses", lost, {})
    launches, blocks = own["launches"], range(own["blocks"])
    threads = {it: n * own["blocks"] * own["threads"] for it, n in launches.items()}
    expect("entries and exits", (found["@entries"], found["@exits"]), (threads, threads))
    each = {f"{it},{block}": n for it, n in launches.items() for block in blocks}
    expect("begins and ends of blocks", (found["@begun"], found["@ended"]), (each, each))
    of_thread = {
        "shared,store": own["shared_stores"],
        "shared,load": own["shared_loads"],
        "generic,load": own["generic_loads"],
        "generic,atomic": own["generic_atomics"],
        "global,store": 1,
    }
    accesses = {f"{it},{access}": n * threads[it] for it in launches for access, n in of_thread.items()}
    expect("accesses", found["@n"], accesses)
    return f"{launches}; {found['@entries']}"


@case("clusters of a whole GPU, whose blocks wait for each other", cases=CASES)
def waiting_clusters():
    # The word of shared memory that ends of blocks take leaves room for half as many.
    found, own, said, _ = in_clusters('device_block_end("waits", |t| @ended.count());', check=False)
    expect("ends of blocks", found.get("@ended"), own["waits"] * own["fewest_blocks"])
    expect("launches of the original", unprobed(said, "with a grid that must be fully resident"), own["waits"])
    # What takes no more runs always.
    found, own, said, lost = in_clusters('device_entry("waits", #{per: "block"}, |t| @begun.count());')
    expect("begins of blocks", found.get("@begun"), own["waits"] * (own["fewest_blocks"] + own["most_blocks"]))
    expect("losses", lost, {})
    return f"{own['waits']} launches of {own['most_blocks']} blocks ran the original"


@case("source lines", cases=CASES)
def lines():
    found, own = inside('device_line("reduce", |t| @n[t.line].count());')
    at = found["@n"].get(str(own["atomic_line"]))
    # The line's condition is tested by every thread; what follows it runs in one of each block.
    assert at and at >= own["threads"] * own["launches"], f"line {own['atomic_line']}: {found['@n']}"
    return f"{found['@n']}"


@case("arguments, once a block and once a warp", cases=CASES)
def arguments():
    found, own = inside("""
        device_entry("reduce", #{per: "block"}, |t| @blocks[t.arg2].count());
        device_exit("reduce", #{per: "warp"}, |t| @warps.count());
        device_entry("reduce", |t| @threads[t.arg3].count());
    """)
    times = own["launches"]
    expect("blocks", found["@blocks"], {str(own["elements"]): own["blocks"] * times})
    assert found["@warps"] >= own["threads"] * times // 32, found
    expect("an argument that there isn't", list(found["@threads"].values()), [own["threads"] * times])
    return f"{found}"


@case("the launch of each thread's kernel", cases=CASES)
def launches():
    found, own = inside('device_entry("reduce", #{per: "block"}, |t| { @by[t.launch.ustack].count(); @api[t.launch.api].count() });', 10_000, 30)
    by = found["@by"]
    first = sum(n for stack, n in by.items() if "launch_first" in stack)
    second = sum(n for stack, n in by.items() if "launch_second" in stack)
    wanted = own["first"] * own["blocks"], (own["launches"] - own["first"]) * own["blocks"]
    expect("blocks by the function that launched them", (first, second), wanted)
    expect("calls", sum(found["@api"].values()), own["launches"] * own["blocks"])
    return f"{first} and {second} of {own['launches']} launches; {found['@api']}"


@case("one map of three engines", cases=CASES)
def engines():
    found, own = inside(f"""
        uprobe("{BIN}/inside:*launch_first*", |e| @n.count());
        kernel(|k| @n.count());
        device_entry("reduce", |t| @n.count());
    """)
    expect("hits", found["@n"], own["first"] + own["launches"] + own["threads"] * own["launches"])
    return f"{found['@n']}"


@case("many keys, and a map that is full", cases=CASES)
def keys():
    found, own = inside('device_entry("reduce", |t| @n[t.blockIdx.x, t.threadIdx.x / 32].count());', 200_000, 5)
    counts = found["@n"]
    expect("elements, and the sum", (len(counts), sum(counts.values())), (own["blocks"] * 8, own["threads"] * own["launches"]))
    objects, done = trace('map(#{name: "n", size: 64}); device_entry("reduce", |t| @n[t.blockIdx.x].count());', [BIN / "inside", 200_000, 5], check=False)
    own, found = account(done), maps(objects)["@n"]
    lost = sum(it["count"] for it in objects[-1]["data"]["lines"]) if objects[-1]["data"]["lines"] else 0
    expect("kept and lost", sum(found.values()) + lost, own["threads"] * own["launches"])
    return f"{len(counts)} keys; a map of 64: {len(found)} kept, {lost} updates lost by name"


@case("patches: entries, exits and accesses", cases=CASES)
def patched():
    found, own = inside("""
        device_entry("reduce", #{via: "patch"}, |t| { @entries[t.kernel].count(); @blocks.max(t.blockIdx.x) });
        device_exit("reduce", #{via: "patch", per: "warp"}, |t| @warps.count());
        device_mem("reduce", #{via: "patch"}, |t| { @n[t.space, t.access].count(); @bytes[t.space].sum(t.bytes ?? 0) });
        device_barrier("reduce", #{via: "patch"}, |t| @barriers.count());
    """)
    times, n = own["launches"], found["@n"]
    expect("entries", found["@entries"], {"reduce": own["threads"] * times})
    expect("the last block", found["@blocks"], own["blocks"] - 1)
    assert found["@warps"] >= own["threads"] * times // 32, found
    wanted = {"global,load": own["elements"], "shared,load": own["shared_loads"], "shared,store": own["shared_stores"]}
    expect("accesses", {k: n.get(k) for k in wanted}, {k: v * times for k, v in wanted.items()})
    atomics = sum(v for k, v in n.items() if k not in wanted)
    expect("atomics", atomics, own["blocks"] * times)
    expect("bytes of shared memory", found["@bytes"]["shared"], 4 * (own["shared_loads"] + own["shared_stores"]) * times)
    # ptxas may do the last steps without one, and others with more: those of the machine code.
    assert found["@barriers"] >= own["barriers"] * times, found
    return f"{n}, {found['@barriers']} barriers"


@case("patches: calls", cases=CASES)
def patched_calls():
    # ptxas inlines neither function, and its code for these has no other calls.
    found, own = in_calls("""
        device_call("walks", #{via: "patch"}, |t| { @n.count(); @by[t.kernel].count(); if t.callee == () { @unnamed.count(); } });
        device_call("walks", #{via: "patch", per: "warp"}, |t| @warps.sum(t.active));
    """)
    wanted = (own["in_loop"] + 2 * own["outer"]) * own["launches"]
    expect("calls", found["@n"], wanted)
    expect("by kernel, and without a name", (found["@by"], found["@unnamed"]), ({"walks": wanted}, wanted))
    expect("threads of warps that call", found["@warps"], wanted)
    return f"{found['@n']}"


TORCH = """
import torch
torch.manual_seed(0)
x, w = (torch.randn(512, 512, device="cuda") for _ in range(2))
h = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16)
for _ in range(20):
    y, z = torch.relu(x @ w + 1.0), torch.softmax(h @ h, dim=-1)
graph, out = torch.cuda.CUDAGraph(), None
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    out = torch.tanh(x @ w)
torch.cuda.current_stream().wait_stream(side)
with torch.cuda.graph(graph):
    out = torch.tanh(x @ w)
for _ in range(10):
    graph.replay()
torch.cuda.synchronize()
print(y.double().sum().item(), z.double().sum().item(), out.double().sum().item())
"""


@case("patches: threads of PyTorch's kernels are those that CUPTI tells", cases=CASES)
def patched_pytorch():
    program = OUT / "patched.py"
    program.write_text(TORCH)
    bare = subprocess.run(["python3", str(program)], capture_output=True, text=True, timeout=120)
    objects, by_cupti = trace("kernel(|k| @threads[k.name].sum(k.grid.size * k.block.size));", ["python3", program])
    wanted = maps(objects)["@threads"]
    script = """
        device_entry("*", #{via: "patch"}, |t| @entries[t.kernel].count());
        device_exit("*", |t| @exits[t.kernel].count());
    """
    objects, done = trace(script, ["python3", program])
    found = maps(objects)
    expect("the program's result", (by_cupti.stdout, done.stdout), (bare.stdout, bare.stdout))
    expect("entries", found["@entries"], wanted)
    expect("exits", found["@exits"], wanted)
    expect("losses", bad(losses(objects), {"kernels_only"}), {})
    return f"{len(wanted)} kernels, {sum(wanted.values())} threads, in 10 launches of a graph too"


MATMUL = """
import torch
torch.manual_seed(1)
h = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16)
for _ in range(20):
    z = torch.softmax(h @ h, dim=-1)
torch.cuda.synchronize()
print(z.double().sum().item())
"""


def said_of_way(done):
    """What a run said of the way that it chose: one sentence, of one process."""
    said = [it for it in done.stderr.splitlines() if ": kernels get twins" in it or ": kernels are patched" in it]
    expect("processes that chose", len(said), 1)
    return said[0]


@case("a script that leaves the way open: PTX, machine code, and a handler that needs CUPTI", cases=CASES)
def chosen():
    script = 'device_entry("vectorAdd", |t| @n.count());'
    for program, words in (("vectors", "kernels get twins: the kernel that matches"), ("vectors_machine_code", "kernels are patched")):
        objects, done = trace(script, [BIN / program, 100_000, 100])
        own = account(done)
        assert words in said_of_way(done), done.stderr
        expect(f"the result of {program}", (own["wrong"], own["error"]), (0, "no error"))
        expect(f"threads of {program}", maps(objects)["@n"], own["threads"] * own["launches"])
        expect(f"losses of {program}", bad(losses(objects), {"kernels_only"}), {})
    objects, done = trace(script + " memcpy(|c| @copies.count());", [BIN / "vectors_machine_code", 100_000, 100])
    said = said_of_way(done)
    assert "kernels get twins, and no handler runs" in said and "`memcpy` needs CUPTI" in said, said
    assert maps(objects)["@copies"] > 0 and "@n" not in maps(objects), maps(objects)
    return said


@case("a script that leaves the way open: a product by PyTorch", cases=CASES)
def chosen_pytorch():
    program = OUT / "product.py"
    program.write_text(MATMUL)
    objects, by_cupti = trace("kernel(|k| @threads[k.symbol].sum(k.grid.size * k.block.size));", ["python3", program])
    wanted = {k: v for k, v in maps(objects)["@threads"].items() if "nvjet" in k or "softmax" in k.lower()}
    assert any("nvjet" in k for k in wanted) and len(wanted) > 1, maps(objects)
    # Of the product's kernel no file may know: later versions of cuBLAS unpack it themselves.
    product = " ".join(f'device_entry("{symbol}", |t| @n{at}.count());' for at, symbol in enumerate(wanted))
    objects, done = trace(product, ["python3", program])
    said, found = said_of_way(done), maps(objects)
    assert "kernels are patched" in said, done.stderr
    expect("the program's result", done.stdout, by_cupti.stdout)
    expect("entries", {symbol: found.get(f"@n{at}") for at, symbol in enumerate(wanted)}, wanted)
    objects, done = trace(product + " memcpy(|c| @copies.count());", ["python3", program])
    refused = said_of_way(done)
    assert "kernels get twins, and no handler runs" in refused and "`memcpy` needs CUPTI" in refused, refused
    assert maps(objects)["@copies"] > 0, maps(objects)
    _, done = trace('device_entry("*", #{per: "block"}, |t| @n.count());', ["python3", program])
    both = said_of_way(done)
    assert "kernels get twins: " in both and "No handler runs in the other" in both, both
    return f"{said}\n{both}"


# What kernels do by CUPTI, and by patches beside a device handler.
KERNELS = """
    kernel(|k| { @n[k.name].count(); @time[k.name].sum(k.duration); @from[k.name, k.launch.pystack].count(); });
    kernel(|k| if k.start < k.launch.time || k.duration < 0 { @early.count(); });
"""
PATCHED_KERNELS = 'device_exit("*", #{via: "patch", per: "block"}, |t| @blocks[t.kernel].count());' + KERNELS + """
    kernel(|k| @grids[k.name].sum(k.grid.size));
    launch(|l| @launches[l.kind].count());
"""


def expect_kernels(found, by_cupti, most):
    """Kernels are those that CUPTI tells, and their times are about as long: `most` times as long together."""
    expect("kernels", found["@n"], by_cupti["@n"])
    expect("blocks", found["@blocks"], found["@grids"])
    expect("kernels before their launch", found.get("@early"), None)
    factors = {k: round(found["@time"][k] / v, 2) for k, v in by_cupti["@time"].items()}
    # Patches take a thread's time at its entry and exit, and small kernels are little more than that.
    assert all(0.4 < it < 20 for it in factors.values()), factors
    whole = sum(found["@time"].values()) / sum(by_cupti["@time"].values())
    assert 0.5 < whole < most, whole
    return f"{sum(found['@n'].values())} kernels, together {whole:.2f} x CUPTI's times; {factors}"


@case("patches: a kernel's times, launches and stacks beside a patched handler", cases=CASES)
def patched_times():
    found, own = inside(PATCHED_KERNELS, 1_000_000, 200)
    by_cupti, _ = inside(KERNELS, 1_000_000, 200)
    expect("launches", (found["@n"]["reduce"], found["@launches"]["kernel"]), (200, sum(found["@n"].values())))
    # A kernel of 5 us whose exits are counted, and handled: the time of both is the kernel's.
    return expect_kernels(found, by_cupti, 12)


@case("patches: handlers at the launches that they ask for", cases=CASES)
def patched_launches():
    found, own = inside("""
        device_entry("reduce", #{via: "patch", every: 3, per: "block"}, |t| @third.count());
        device_exit("reduce", #{tag: 1, per: "block"}, |t| @tagged.count());
        device_exit("reduce", #{per: "block"}, |t| @all.count());
        let never = device_entry("reduce", #{per: "block"}, |t| @never.count());
        never.disable();
        launch(|l| { @launches += 1; if @launches % 4 == 0 { l.tag = 1; } });
        kernel(|k| @n.count());
    """, 100_000, 100)
    blocks = own["blocks"]
    expect("blocks", [found.get(it) for it in ("@third", "@tagged", "@all", "@never", "@n")], [34 * blocks, 25 * blocks, 100 * blocks, None, 100])
    return f"{found}"


@case("patches: times of PyTorch's kernels, also in a graph, and the lines that launched them", cases=CASES)
def patched_times_pytorch():
    program = OUT / "patched.py"
    program.write_text(TORCH)
    objects, done = trace(PATCHED_KERNELS, ["python3", program])
    of_cupti, by_cupti = trace(KERNELS, ["python3", program])
    found = maps(objects)
    expect("the program's result", done.stdout, by_cupti.stdout)
    expect("losses", bad(losses(objects)), {})
    expect("graphs", found["@launches"].get("graph"), 10)
    gemms = {k: v for k, v in found["@from"].items() if re.search("gemm|nvjet|xmma|cutlass", k)}
    assert gemms and all("patched.py" in k for k in gemms), found["@from"]
    return expect_kernels(found, maps(of_cupti), 5)


def lines_of(objects):
    return [it["data"] for it in objects if it["type"] == "print"]


def kernel_of(program, section="kretprobe"):
    """Puts a program of an object of tests/objects into the kernel of `inside`."""
    return "--attach", f"{program}={section}/_Z6reducePVKfPdi"


def run_object(name, *options, elements=100_000, launches=10):
    out = OUT / "inside-object.json"
    file = ROOT / "tests/objects" / f"{name}.bpf.o"
    line = [XPUTRACE, "run", str(file), "-f", "json", "-o", str(out), *options, "--", str(BIN / "inside"), str(elements), str(launches)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"status {done.returncode}: {done.stderr[-2000:]}"
    own = account(done)
    expect("the program's result", (own["wrong"], own["error"]), (0, "no error"))
    return [json.loads(it) for it in out.read_text().splitlines()], own


def lines_of_blocks(options, read, shown):
    script = f'device_exit("reduce", #{{{options}}}, |t| print(`${{t.kernel}} ${{t.blockIdx.x}} ${{t.{read}}}`));'
    objects, done = trace(script, [BIN / "inside", 100_000, 10])
    own, lines = account(done), lines_of(objects)
    expect("losses", bad(losses(objects), {"kernels_only"}), {})
    counts = {it: lines.count(it) for it in set(lines)}
    name = lines[0].rsplit(" ", 2)[0]
    expect("lines", counts, {f"{name} {block} {shown(own)}": own["launches"] for block in range(own["blocks"])})
    return f"{len(lines)} lines, such as {lines[0]}"


@case("lines that blocks print", cases=CASES)
def prints():
    return lines_of_blocks('per: "block"', "arg2", lambda own: own["elements"])


@case("patches: lines that blocks print", cases=CASES)
def patched_prints():
    return lines_of_blocks('per: "block", via: "patch"', "gridDim.x", lambda own: own["blocks"])


@case("lines of each block, in their order", cases=CASES)
def order():
    script = 'device_barrier("reduce", |t| if t.threadIdx.x == 7 { print(#{block: t.blockIdx.x, time: t.time}); });'
    objects, done = trace(script, [BIN / "inside", 20_000, 10])
    own, lines = account(done), lines_of(objects)
    expect("losses", bad(losses(objects), {"kernels_only"}), {})
    times = {}
    for it in lines:
        times.setdefault(it["block"], []).append(it["time"])
    expect("lines", {len(it) for it in times.values()}, {8 * own["launches"]})
    expect("blocks", len(times), own["blocks"])
    expect("blocks whose times go back", [block for block, it in times.items() if it != sorted(it)], [])
    return f"{len(lines)} lines of {len(times)} blocks"


def said_within(stderr):
    """How right times are, as a run says at its end, in nanoseconds."""
    found = re.search(r"times inside kernels are right within ([0-9.]+) (ns|us|ms)", stderr)
    assert found, stderr[-2000:]
    return float(found[1]) * {"ns": 1, "us": 1e3, "ms": 1e6}[found[2]]


def times_against_cupti(options, beside, most):
    """Times in a kernel against the launch's, and against CUPTI's where that is: all within what the run says."""
    script = f"""
        map(#{{name: "first", size: 8192}}); map(#{{name: "start", size: 8192}}); map(#{{name: "end", size: 8192}}); map(#{{name: "last", size: 8192}});
        device_entry("reduce", #{{{options}}}, |t| @first[t.launch.time].min(t.time));
        device_exit("reduce", #{{{options}}}, |t| @last[t.launch.time].max(t.time));
        {beside}
    """
    objects, done = trace(script, [BIN / "inside", 100_000, 3000])
    found, within = maps(objects), said_within(done.stderr)
    assert within < most, f"within {within} ns"
    first, last = found["@first"], found["@last"]
    latencies = sorted(time - int(launched) for launched, time in first.items())
    assert latencies[0] > -within and latencies[len(latencies) // 2] < 1e9, latencies[:3]
    early = [first[it] - start for it, start in found.get("@start", {}).items()]
    late = [last[it] - end for it, end in found.get("@end", {}).items()]
    # CUPTI puts the GPU's times on CLOCK_REALTIME by a conversion of its own.
    assert all(-within - 5_000 < it < within + 20_000 for it in early), sorted(early)[:3] + sorted(early)[-3:]
    # A kernel ends once what its threads have begun is done: on an H100 that took handlers' atomic operations up to 80 us.
    assert all(it < within + 5_000 for it in late), sorted(late)[-3:]
    names = [it for it in objects if "xpt_timer" in json.dumps(it)]
    expect("where our own kernel shows", names, [])
    of_cupti = f"; entries {min(early)} to {max(early)} ns after CUPTI's starts" if early else ""
    return f"within {within:.0f} ns; latencies from {latencies[0]} ns{of_cupti}"


@case("times in kernels are on the CPU's clock", cases=CASES)
def times():
    kernels = "kernel(|k| { @kernels[k.name].count(); @start[k.launch.time].min(k.start); @end[k.launch.time].max(k.end); });"
    return times_against_cupti("", kernels, 50_000)


# Which parameter has what the program counts: of `first`, and of `second`.
GIVEN = [{0: "int", 1: "pointer", 2: "float", 3: "size", 4: "pair"}, {0: "pair", 1: "double", 3: "char", 4: "pointer"}]


def arguments(via, launches, graphs=0, beside=""):
    """The parameters that handlers have seen by `via`: maps, losses, and what the program has given."""
    reads = ["".join(f"@{name}{n}[t.arg{at}].count(); " for at, name in of.items()) for n, of in enumerate(GIVEN)]
    script = f"""
        device_entry("first", #{{via: "{via}", per: "block"}}, |t| if t.arg0 == () {{ @without.count() }} else {{ {reads[0]} }});
        device_entry("second", #{{per: "block"}}, |t| {{ {reads[1]} if t.arg2 == () {{ @wide.count() }} if t.arg5 == () {{ @more.count() }} }});
        {beside}
    """
    objects, done = trace(script, [BIN / "arguments", launches, graphs])
    own = account(done)
    expect(f"the program's result by {via}", own["error"], "no error")
    return maps(objects), losses(objects), own


def expect_arguments(via, found, own):
    for n, of in enumerate(GIVEN):
        for name in of.values():
            expect(f"{name} of kernel {n} by {via}", found[f"@{name}{n}"], own[name])
    expect(f"what is no parameter, or a large one, by {via}", (found["@wide"], found["@more"]), (own["launches"],) * 2)


@case("patches: parameters of kernels, as twins have them", cases=CASES)
def patched_arguments():
    found = {}
    for via in ("twin", "patch"):
        found[via], lost, own = arguments(via, 2000)
        expect(f"losses by {via}", bad(lost, {"kernels_only"}), {})
        expect_arguments(via, found[via], own)
    # More launches than a context has places for parameters.
    many, lost, own = arguments("patch", 50_000)
    expect("losses of many launches", bad(lost, {"kernels_only"}), {})
    expect_arguments("patch", many, own)
    return f"{own['launches']} launches of each of 2 kernels, by two threads in three streams"


@case("patches: parameters beside the kernels' times and launches, and in a graph", cases=CASES)
def patched_arguments_of_nodes():
    beside = 'kernel(|k| @kernels[k.name].count()); device_exit("*", #{per: "block"}, |t| @from[t.kernel, t.launch.ustack].count());'
    found, lost, own = arguments("patch", 2000, 30, beside)
    expect_arguments("patch", found, own)
    expect("losses", bad(lost, {"device_arguments_unknown"}), {})
    expect("nodes of the graph", (lost["device_arguments_unknown"], found["@without"]), (30, 30))
    kernels = [found["@kernels"][it] for it in ("first", "second")]
    expect("kernels", kernels, [own["launches"] + 30, own["launches"]])
    unknown = [it for it in found["@from"] if it.endswith(",-")]
    expect("blocks without a launch", unknown, [])
    return f"{kernels} kernels, 30 of them in a graph"


@case("patches: times in kernels are on the CPU's clock", cases=CASES)
def patched_clock():
    # The first launch waits 50 ms for a measurement. Were it in vain, times would be right as a guess is, which was 8 ms off.
    return times_against_cupti('via: "patch"', "", 2_000_000)


@case("more lines than the ring holds", cases=CASES)
def overrun():
    objects, done = trace('device_entry("reduce", |t| print(`${t.threadIdx.x}`));', [BIN / "inside", 2_000_000, 5], check=False)
    own, kept = account(done), len(lines_of(objects))
    lost = losses(objects)["device_ring_full"]
    expect("printed and lost", kept + lost, own["threads"] * own["launches"])
    assert lost and kept >= 65_536, (kept, lost)
    by_line = [it for it in objects[-1]["data"]["lines"] if it["loss"] == "device_ring_full"]
    expect("lost by line", [it["count"] for it in by_line], [lost])
    return f"{kept} lines printed, {lost} lost by name"


@case("a thread ends the run", cases=CASES)
def exits():
    script = 'device_entry("reduce", |t| if t.blockIdx.x == 3 && t.threadIdx.x == 0 { print("over"); exit(5); });'
    objects, done = trace(script, [BIN / "inside", 100_000, 2000], check=False)
    expect("status, and lines", (done.returncode, lines_of(objects)), (5, ["over"]))
    return "status 5 after one line"


@case("records, printed lines and arrays per thread of objects", cases=CASES)
def objects():
    found, own = run_object("records", *kernel_of("cuda__place"))
    places = [it["data"]["places"] for it in found if it["type"] == "record"]
    expect("records", len(places), own["blocks"] * 16 * own["launches"])
    assert all(it["thread"][0] % 16 == 0 and it["what"] == "work" and it["lane"] == -(it["thread"][0] % 32) for it in places), places[:3]
    expect("blocks", {it["block"] for it in places}, set(range(own["blocks"])))
    expect("first threads", sum(it["is_first"] for it in places), own["blocks"] * own["launches"])
    found, own = run_object("each_thread", *kernel_of("cuda__ran"))
    runs = maps(found)["runs"]
    expect("elements, and their sum", (len(runs), sum(runs.values())), (2 * own["threads"], own["threads"] * (own["launches"] + 1)))
    found, own = run_object("wide", *kernel_of("cuda__ran"))
    room, beyond = (32 << 20) // 4096, losses(found)["device_thread_beyond"]
    wide = maps(found)["runs"]
    expect("threads with room, and look-ups without", (len(wide), beyond), (room, (own["threads"] - room) * own["launches"]))
    expect("their runs", {it["n"] for it in wide.values()}, {own["launches"]})
    end, begin = kernel_of("cuda__end"), kernel_of("cuda__begin", "kprobe")
    found, own = run_object("calls", *end, *begin, "--set", "started[1]=7")
    # Of the threads that find no element at first, one makes it, and the others' count is lost, as the program is written.
    calls, most = sum(maps(found)["calls"].values()), own["threads"] * own["launches"]
    assert most * 0.9 < calls <= most, (calls, most)
    expect("an element from the start", maps(found)["started"]["1"], 7)
    said = [it for it in lines_of(found) if it.startswith("first of 7 in block ")]
    assert said and len(said) == len(lines_of(found)), lines_of(found)[:3]
    return f"{len(places)} records; {len(runs)} elements of threads, {beyond} look-ups beyond their room; {len(said)} lines of helper 6"


def vectors(script, *options):
    """Runs `vectors` under a script: its maps, threads of a launch, and what the run says."""
    objects, done = trace(script, [BIN / "vectors", 100_000, 100], *options)
    own = account(done)
    expect("the program's result", (own["wrong"], own["error"]), (0, "no error"))
    expect("losses", bad(losses(objects), {"kernels_only"}), {})
    return maps(objects), own["threads"], f"{objects}{done.stderr}"


@case("handlers that run at some launches", cases=CASES)
def some_launches():
    found, threads, said = vectors("""
        device_exit("vectorAdd", #{every: 10}, |t| @tenth.count());
        device_entry("vectorAdd", #{every: 7}, |t| @seventh.count());
        device_exit("vectorAdd", |t| @all.count());
    """)
    wanted = {"@tenth": 10 * threads, "@seventh": 15 * threads, "@all": 100 * threads}
    expect("threads", found, wanted)
    found, threads, said = vectors('device_exit("*", #{every: 10}, |t| @n[t.kernel].count());')
    expect("threads by kernel", found["@n"], {"vectorAdd": 10 * threads, "scale<float>": threads})
    assert "at 11 of 102 launches" in said, said
    found, threads, said = vectors("""
        launch(|l| l.tag = l.grid.x);
        device_exit("vectorAdd", #{tag: 391}, |t| @tagged.count());
        device_exit("vectorAdd", #{tag: 390}, |t| @others.count());
    """)
    expect("threads by tag", (found.get("@tagged"), found.get("@others")), (100 * threads, None))
    found, threads, said = vectors('let d = device_exit("vectorAdd", |t| @n.count()); d.disable();')
    expect("threads while it is off", found.get("@n"), None)
    return f"{wanted}"


@case("kernels that fail by themselves", cases=CASES)
def faults():
    for how, code in ("address", 700), ("trap", 719):
        command = [BIN / "faults", how, 10, 5]
        bare = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60)
        for via in ("twin", "patch"):
            script = f'device_exit("faulty", #{{via: "{via}"}}, |t| @n.count());'
            _, done = trace(script, command, check=False)
            expect(f"what the program says of {how}, by {via}", (done.stdout, done.returncode), (bare.stdout, bare.returncode))
            if via == "twin":
                assert "a kernel of the program failed" in done.stderr and f"error {code}" in done.stderr, done.stderr
    return "the errors are those of the bare program, and named as its own"


class Running:
    """A program of `late.cu`, which runs its kernel until it is ended."""

    def __init__(self, name):
        pipe = subprocess.PIPE
        self.program = subprocess.Popen([BIN / name, "100000"], stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        expect("its first line", self.program.stdout.readline().strip(), "loaded")

    def attach(self, script):
        """Traces it for some seconds; returns maps, and what the tracer says."""
        out = OUT / "late.json"
        line = [XPUTRACE, "-f", "json", "-o", str(out), "-p", str(self.program.pid), "--for", "5s", "-e", script]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{' '.join(line)}\n{done.stderr[-3000:]}"
        return maps([json.loads(it) for it in out.read_text().splitlines()]), done.stderr

    def end(self):
        """Ends it, and returns its own account."""
        told, _ = self.program.communicate("", timeout=60)
        return json.loads(told.splitlines()[-1])


def unprobed(said, why):
    """How many launches ran without handlers for this reason."""
    found = re.search(rf"(\d+) launches ran without handlers: {why}", said)
    return int(found[1]) if found else 0


@case("a kernel that was loaded before", cases=CASES)
def loaded_before():
    running = Running("late")
    listed = subprocess.run([XPUTRACE, "list", "device:gr*", "-p", str(running.program.pid)], capture_output=True, text=True)
    expect("what it lists", listed.stdout.split(), [str(BIN / "late"), "twin,", "patch", "grow"])
    script = 'device_entry("grow", |t| @entries.count()); device_exit("grow", |t| @exits.count()); kernel(|k| @kernels[k.name].count());'
    # The second time, the collector is there already.
    runs = [running.attach(script) for _ in range(2)]
    own = running.end()
    expect("the program's result", (own["wrong"], own["error"]), (0, "no error"))
    counts = []
    for found, said in runs:
        assert "@entries" in found, f"no launch ran its twin: {found}\n{said[-3000:]}"
        expect("entries and exits", found.get("@entries"), found.get("@exits"))
        with_twin, rest = divmod(found["@entries"], own["threads"])
        early = unprobed(said, "before their twin was ready") + unprobed(said, "their kernels were loaded before xputrace attached")
        kernels = found["@kernels"]["grow"]
        # Launches of the milliseconds in which tracing begins and ends may be in one count alone.
        missing = abs(with_twin + early - kernels)
        assert rest == 0 and with_twin > 0 and missing <= kernels / 100, (with_twin, rest, early, kernels)
        counts.append((with_twin, early, kernels))
    return f"launches with the twin, before it was ready, and kernels: {counts}"


@case("a kernel that was loaded before, without PTX", cases=CASES)
def loaded_before_without_ptx():
    running = Running("late_machine_code")
    found, said = running.attach('device_entry("grow", |t| @n.count());')
    own = running.end()
    expect("the program's result", (own["wrong"], own["error"]), (0, "no error"))
    early = unprobed(said, "their kernels were loaded before xputrace attached, and their file has no PTX")
    assert early > 0 and "@n" not in found, (found, said)
    return f"{early} launches"


def by_ncu(program, metrics):
    """What Nsight Compute counts in the only kernel of a program, by metric."""
    line = ["ncu", "--csv", "--metrics", ",".join(metrics), *map(str, program)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    rows = list(csv.reader(done.stdout.splitlines()))
    # The program prints, too.
    rows = rows[next(at for at, row in enumerate(rows) if "Metric Name" in row):]
    name, value = (rows[0].index(it) for it in ("Metric Name", "Metric Value"))
    return {row[name]: float(row[value].replace(",", "")) for row in rows[1:] if len(row) == len(rows[0])}


@case("accesses of warps, against Nsight Compute", needs="ncu", cases=CASES)
def divergence():
    of_warps = {f"{space},{access}": f"smsp__sass_inst_executed_op_{space}_{op}.sum"
                for space, access, op in (("global", "load", "ld"), ("global", "atomic", "red"), ("shared", "load", "ld"), ("shared", "store", "st"))}
    counted = by_ncu([BIN / "inside", 1_000_000, 1], of_warps.values())
    script = 'device_mem("*", #{via: "patch", per: "warp"}, |t| @n[t.space, t.access].count());'
    found = inside(script, 1_000_000, 1)[0]
    expect("accesses of warps", found["@n"], {key: counted[metric] for key, metric in of_warps.items()})
    return f"{found} as {counted}"


@case("sectors that warps access, against Nsight Compute", needs="ncu", cases=CASES)
def sectors():
    loads, all_sectors = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "memory_l2_theoretical_sectors_global"
    wanted = by_ncu([BIN / "inside", 1_000_000, 1], [loads, all_sectors])
    found = {}
    for via in ("patch", "twin"):
        script = f'device_mem("*", #{{via: "{via}", per: "warp"}}, |t| if t.sectors != () {{ @n[t.access].sum(t.sectors) }});'
        found[via] = inside(script, 1_000_000, 1)[0]["@n"]
        expect(f"sectors of loads by {via}", found[via]["load"], wanted[loads])
        expect(f"all sectors by {via}", sum(found[via].values()), wanted[all_sectors])
    return f"{found} as {wanted}"


def conflicts_of(size, stride):
    """How many conflicts a warp's access has whose threads access elements of so many bytes, so many elements apart."""
    unit = max(size, 4)
    threads = 128 // unit
    conflicts = 0
    for first in range(0, 32, threads):
        units = {lane * stride * size // unit for lane in range(first, first + threads)}
        banks = [it % threads for it in units]
        conflicts += max(map(banks.count, banks)) - 1
    return conflicts


STRIDES = [(1, 1), (1, 32), (4, 0), (4, 1), (4, 2), (4, 3), (4, 8), (4, 32), (4, 33), (8, 1), (8, 2), (8, 16), (16, 1), (16, 4), (16, 8)]


@case("bank conflicts", cases=CASES)
def conflicts():
    for size, stride in STRIDES:
        for via in ("twin", "patch"):
            script = f'device_mem("strided*", #{{via: "{via}", per: "warp"}}, |t| if t.conflicts != () {{ @n[t.access].sum(t.conflicts); @times[t.access].count() }});'
            objects, done = trace(script, [BIN / "banks", size, stride, 10])
            own, found = account(done), maps(objects)
            expect("the program's result", (own["wrong"], own["error"]), (0, "no error"))
            times = own["warps"] * own["launches"]
            expect(f"accesses by {via}", found["@times"], {"load": times, "store": times})
            wanted = conflicts_of(size, stride) * times
            expect(f"conflicts of {size} bytes, {stride} apart, by {via}", found["@n"], {"load": wanted, "store": wanted})
    return f"{len(STRIDES)} strides, by twins and by patches"


@case("bank conflicts are those that Nsight Compute counts", needs="ncu", cases=CASES)
def conflicts_by_ncu():
    metrics = [f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{it}.sum" for it in ("ld", "st")]
    found = {}
    for size, stride in STRIDES:
        counted = by_ncu([BIN / "banks", size, stride, 1], metrics)
        found[size, stride] = tuple(counted[it] for it in metrics)
    # Of 3 blocks of 2 warps.
    wanted = {it: (6 * conflicts_of(*it),) * 2 for it in STRIDES}
    expect("conflicts", found, wanted)
    return f"{found}"


@case("launches in one of two streams", cases=CASES)
def streams():
    program = [BIN / "banks", 4, 1, 30]
    launches = maps(trace("kernel(|k| @n[k.stream].count());", program)[0])["@n"]
    expect("launches by stream", sorted(launches.values()), [10, 20])
    for stream, n in launches.items():
        script = f'device_block_begin("*", #{{stream: {stream}}}, |t| @all.count()); device_entry("*", #{{stream: {stream}, every: 5}}, |t| @fifths.count());'
        objects, done = trace(script, program)
        found, own = maps(objects), account(done)
        wanted = {"@all": own["blocks"] * n, "@fifths": own["warps"] * 32 * n // 5}
        expect(f"in stream {stream}", {it: found.get(it) for it in wanted}, wanted)
        expect("losses", bad(losses(objects), {"kernels_only"}), {})
    return f"{launches}"


@case("a kernel asks for a map to be printed", cases=CASES)
def printed_maps():
    script = 'device_exit("reduce", |t| @n.count()); device_block_end("reduce", |t| if t.blockIdx.x == 7 { print(@n) });'
    objects, done = trace(script, [BIN / "inside", 100_000, 10])
    own = account(done)
    shown = [it["data"]["@n"] for it in objects if it["type"] == "map"]
    most = own["threads"] * own["launches"]
    # One for each launch, and one at the end.
    expect("times", len(shown), own["launches"] + 1)
    expect("counts that go back, and the last", ([it for it in shown if it > most], shown == sorted(shown), shown[-1]), ([], True, most))
    return f"{shown}"


if __name__ == "__main__":
    words = sys.argv[1:]
    sys.exit(run_checks([it for it in CASES if all(word in it[0] for word in words)], "inside.txt") != 0)
