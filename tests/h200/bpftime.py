"""bpftime's example objects on a real GPU; see README.md. Called by run.sh.

    bpftime.py DIR [NAME…]

DIR has of each example NAME of https://github.com/eunomia-bpf/bpftime (example/gpu, commit ec26daec): its program `NAME.cu` for
the GPU, and `NAME.bpf.o`, made of its `.bpf.c` with

    clang -g -O2 -target bpf -D__TARGET_ARCH_x86 -I DIRECTORY-OF-VMLINUX.H -c

Where a program takes more than nvcc, DIR has it compiled, as `NAME.bin`: that of cutlass with

    nvcc -O3 -std=c++17 -arch=sm_90 -cudart shared --expt-relaxed-constexpr --use_fast_math -I CUTLASS-3.5.0/include cutlass.cu

and for faiss-test and llama-cpp-test, which run FAISS and llama.cpp, a program that launches their kernel alone (`bpftime/`).
Examples whose files are missing are skipped by name.

None of the objects is changed. Most programs run until they are ended, one launch a second: here for some seconds."""

import importlib.util
import json
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

from h200 import OUT, XPUTRACE, account, maps, trace

SECONDS = 3
# For which xputrace attaches: the kernel's twin comes some launches later, and there is one in two seconds.
ATTACHED_SECONDS = 15


class Missing(Exception):
    """What an example needs, and isn't there."""


class Run:
    """What a run printed: maps, records, lines, and how often the program launched its kernel."""

    def __init__(self, directory, name, *options, command=None, pid=None):
        place = directory
        if command is None and pid is None:
            place = program(directory, name).parent
            command = ["timeout", "-s", "INT", str(SECONDS), "stdbuf", "-oL", "./vec_add"]
        out = OUT / f"bpftime-{name}.json"
        target = ["-p", str(pid), "--for", f"{ATTACHED_SECONDS}s"] if pid else ["--", *command] if command else []
        line = [XPUTRACE, "run", directory / f"{name}.bpf.o", "-f", "json", "-o", out, *options, *target]
        done = subprocess.run(line, cwd=place, capture_output=True, text=True, timeout=60)
        self.objects = [json.loads(it) for it in out.read_text().splitlines()] if out.exists() else []
        self.done, self.said, self.printed = done, done.stderr, done.stdout
        out.unlink(missing_ok=True)
        assert not any(it in self.said for it in ("did not run", "do not run", "cannot attach")), self.said[-1500:]

    def map(self, name):
        found = [it["data"][name] for it in self.objects if it["type"] == "map" and name in it["data"]]
        assert found, f"no map {name}: {self.said[-1500:]} {str(self.objects)[-1500:]}"
        return found[-1]

    def records(self, name):
        return [it["data"][name] for it in self.objects if it["type"] == "record" and name in it["data"]]

    def lines(self, text):
        return sum(text in str(it) for it in self.objects)

    def results(self, text):
        return self.printed.count(text)


def threadhist_shared(run):
    # Ten threads a launch on the GPU, and one return of the launching function in Linux.
    counts, launches = run.map("call_count"), run.results("C[0] = ")
    assert counts["0"] == 10 * counts["1"] and counts["1"] == launches, (counts, launches)
    return f"value(0) = {counts['0']}, value(1) = {counts['1']} of {launches} launches"


def kernelretsnoop(run):
    records, launches = run.records("rb"), run.results("C[0] = ")
    # The ring's type is 1024 characters; what the program writes has a type of its own, which the object doesn't have.
    assert launches and len(records) == 5 * launches, (len(records), launches, run.said[-800:])
    return f"{len(records)} records of {launches} launches of 5 threads"


def kernel_trace(run):
    records, launches = run.records("events"), run.results("vectorAdd =>")
    assert len(records) == launches, (len(records), launches, run.said[-800:])
    return f"total events: {len(records)} of {launches} launches; the first: {records[0]}"


def atomizer(run):
    # Blocks of the other half end before they compute: element 1 stays 0, element 7 is 21.
    launches = run.results("C[7] = 21")
    assert launches and run.results("C[1] = 0") == launches, run.printed[-400:]
    exited, entered = run.lines("Exited _Z9vectorAdd"), run.lines("Enter _Z9vectorAdd")
    assert exited == entered == 5 * launches, (exited, entered, launches)
    return f"5 of 10 blocks of {launches} launches ended early, {exited} lines"


def cuda_counter(run):
    calls, launches = run.map("call_count"), run.results("C[0] = ")
    assert sum(calls.values()) == 10 * launches, (calls, launches)
    entered, exited = run.lines("Entered _Z9vectorAdd"), run.lines("Exited (with")
    return f"calls {calls} of {launches} launches of 10 threads; time {run.map('total_time_ns')}; {entered} + {exited} lines"


def launchlate(run):
    histogram, launches = run.map("time_histogram"), run.results("C[0] = ")
    # The ten threads of a launch add 1 each, without an atomic instruction: at least one of them is seen.
    assert launches <= sum(histogram.values()) <= 10 * launches, (histogram, launches)
    soon = sum(n for bin, n in histogram.items() if int(bin) <= 6)
    assert soon == sum(histogram.values()), f"latencies of more than 100 ms: {histogram}"
    return f"{histogram} of {launches} launches"


def mem_trace(run):
    found, launches = run.map("counter"), run.results("C[0] = ") or run.results("C[1] = ")
    assert found["0"] >= launches > 0, (found, launches)
    return f"counter[0] = {found['0']} of {launches} launches; a lower bound, as the object's increments race"


def directly_run(directory):
    # What bpftime's loader and its command `run-on-cuda` do: all three programs, in a process of xputrace's own, in that of a
    # program, and in the engine, as a run of a process that is there already has them.
    options, expected = directly_run_inputs(directory)
    launches = ["cuda__run=1:3", "cuda__vec_add=2:4", "cuda__gemm=2,2:4,4"]
    options += [word for it in launches for word in ("--launch", it)]
    beside = ["timeout", "-s", "INT", str(SECONDS), program(directory, "threadhist")]
    name = "directly_run_on_gpu"
    runs = {
        "the GPU, own process": Run(directory, name, *options, command=[]),
        "the GPU, a command's process": Run(directory, name, *options, command=beside),
        "xputrace's engine": Run(directory, name, *options, "-p", str(os.getpid()), command=[]),
    }
    for where, run in runs.items():
        said = [it for it in run.objects if "kprobe/__directly_run" in str(it)]
        assert len(said) == 1 and where.split(",")[0] in str(said[0]), (where, said, run.said[-1500:])
        found = {it: [run.map(it).get(str(at), 0) for at in range(len(all))] for it, all in expected.items()}
        assert found == expected, (where, found, expected)
        assert run.lines("directly run on GPU") == 3, (where, run.objects)
    maps = [sorted(str(it) for it in run.objects if it["type"] == "map") for run in runs.values()]
    assert maps[0] == maps[1] == maps[2], maps
    return f"all programs in {', '.join(runs)}: {expected}, 3 lines each"


def directly_run_inputs(directory):
    """Returns options that fill the maps, and what the programs make of them."""
    a, b = [random.randrange(1 << 31) for _ in range(7)], [random.randrange(1 << 31) for _ in range(7)]
    m, n, k = 7, 5, 6
    left, right = ([random.randrange(-999, 1000) for _ in range(it)] for it in (m * k, k * n))
    values = {"vec_A": a, "vec_B": b, "vec_N": [len(a)], "gemm_A": left, "gemm_B": right, "gemm_dims": [m, n, k]}
    options = []
    for name, all in values.items():
        file = directory / f"{name}.bin"
        file.write_bytes(b"".join(it.to_bytes(4, "little", signed=it < 0) for it in all))
        options += ["--set", f"{name}=@{file}"]
    product = [sum(left[row * k + at] * right[at * n + column] for at in range(k)) for row in range(m) for column in range(n)]
    return options, {"vec_C": [x + y for x, y in zip(a, b)], "gemm_C": product}


def threadhist(run):
    found, launches = run.map("call_count"), run.printed.count("\n")
    return f"{len(found)} threads, {sum(found.values())} runs"


def own_account(run):
    """What a program of ours has printed last."""
    own = account(run.done)
    assert (own["wrong"], own["error"]) == (0, "no error"), own
    return own


def each_thread(run):
    # Elements of an array per thread, one of each.
    own, found = own_account(run), run.map("call_count")
    assert len(found) == own["threads"] and set(found.values()) == {own["launches"]}, (own, len(found), set(found.values()), run.said[-800:])
    return f"{len(found)} threads, {own['launches']} runs of each"


def cudagraph(run):
    # A launch, and those of the graph: the program counts its first thread.
    calls, right = run.map("call_count"), run.said.count("C[1]=3.0 (expected 3)")
    assert right == GRAPH_LAUNCHES, run.said[-800:]
    assert list(calls.values()) == [1 + GRAPH_LAUNCHES] == [1 + right], (calls, run.said[-800:])
    (total,) = run.map("total_time_ns").values()
    assert 0 < total < 1e9, total
    return f"calls {calls}: {right} launches of a graph and one without; {total} ns in all"


def cutlass(run):
    calls = run.map("cutlass_call_count")
    assert calls == {"0": CUTLASS_LAUNCHES + CUTLASS_WARMUP}, (calls, run.said[-800:])
    (error,) = re.findall(r"max abs error: (\S+)", run.printed)
    assert float(error) < 1e-3, run.printed
    return f"CUTLASS launches: {calls['0']}; the result is off by {error} at most"


def pytorch(run):
    own_account(run)
    # The same sorts, as CUPTI tells of them.
    script = 'kernel(|k| if k.symbol.contains("bitonicSortKVInPlace") { @n[k.grid.size * k.block.size].count() });'
    (threads, n), = maps(trace(script, [sys.executable, "-c", SORT])[0])["@n"].items()
    threads, found = int(threads), run.map("call_count")
    assert n == SORTS, n
    assert len(found) == threads and set(found.values()) == {SORTS}, (len(found), threads, set(found.values()), run.said[-800:])
    return f"{len(found)} threads, {SORTS} runs of each"


def dynamic_hook(run):
    mapping, by_sm = run.map("thread_mapping"), run.map("sm_histogram")
    wanted = {str(block << 16 | thread) for block in range(HOOKED_BLOCKS) for thread in range(HOOKED_THREADS)}
    assert set(mapping) == wanted, (len(mapping), run.said[-1500:])
    for key, it in mapping.items():
        block, thread = divmod(int(key), 1 << 16)
        assert (it["block_x"], it["thread_x"], it["lane_id"]) == (block, thread, thread % 32), (key, it)
    # Of the last launch; those that come first to a multiprocessor may each begin its count at 1.
    sms = {str(it["sm_id"]) for it in mapping.values()}
    assert sms <= set(by_sm), (sms, by_sm)
    return f"{len(mapping)} threads on multiprocessors {', '.join(sorted(sms))}; sm_histogram {by_sm}"


def shared(run):
    return f"{[it for it in run.objects if it['type'] == 'map']}"[:400]


def options(name, directory):
    """What stands for the settings that an example's own loader makes."""
    match name:
        case "pytorch-test":
            # PyTorch's wheels have no PTX of it.
            return ["--via", "patch"]
        case "atomizer":
            return ["--unsafe", "--set", "partition_num_map[0]=2", "--set", "partition_index_map[0]=1"]
        case "launchlate" | "launchlate-kernel-gpu-shared-map":
            real, mono = clocks()
            place = f"{program(directory, name)}:{launching(directory, name)}"
            return ["--set", f"clock_offset[0]={real - mono}", "--attach", f"uprobe_cuda_launch=uprobe/{place}"]
        case "threadhist-gpu-kernel-shared-map":
            place = f"{program(directory, name)}:{launching(directory, name)}"
            return ["--attach", f"launch_kernel_ret_probe=uretprobe/{place}"]
    return []


GRAPH_LAUNCHES = 3
CUTLASS_LAUNCHES, CUTLASS_WARMUP = 4, 1
SORTS = 3
HOOKED_BLOCKS, HOOKED_THREADS = 4, 64

# The object's kernel sorts slices of 32 elements at most, in blocks whose sizes PyTorch chooses.
SORT = f"""
import json, torch
data = torch.randint(0, 1000, (10,), dtype=torch.int32, device="cuda")
wrong = 0
for _ in range({SORTS}):
    done = torch.sort(data).values
    wrong += done.tolist() != sorted(data.tolist())
print(json.dumps({{"wrong": wrong, "error": "no error"}}))
"""


def command(directory, name):
    """Returns what an example runs, where that isn't a program that launches until it is ended."""
    match name:
        case "cudagraph":
            return ["env", f"BPFTIME_CUDAGRAPH_ITERS={GRAPH_LAUNCHES}", program(directory, name)]
        case "cutlass":
            return [program(directory, name), "--shape", "512x512x512", "--launches", str(CUTLASS_LAUNCHES), "--warmup", str(CUTLASS_WARMUP), "--verify"]
        case "faiss-test" | "llama-cpp-test":
            return [program(directory, name)]
        case "pytorch-test":
            if importlib.util.find_spec("torch") is None:
                raise Missing("no PyTorch")
            return [sys.executable, "-c", SORT]
    return None


def attached(directory, name):
    """Runs an example whose object attaches to its program while that runs."""
    line = [program(directory, name), str(HOOKED_BLOCKS), str(HOOKED_THREADS)]
    running = subprocess.Popen(list(map(str, line)), stdout=subprocess.DEVNULL)
    try:
        time.sleep(SECONDS)
        return Run(directory, name, pid=running.pid)
    finally:
        running.terminate()
        running.wait()


def program(directory, name):
    """Returns the path of an example's program for the GPU, which is compiled if it isn't there."""
    made = directory / f"{name}.bin"
    if made.exists():
        return made
    path = directory / "bin" / name / "vec_add"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        source = directory / f"{name}.cu"
        if not source.exists():
            raise Missing(f"no {made.name}, no {source.name}")
        subprocess.run(["nvcc", "-cudart", "shared", "-arch=sm_90", "-w", "-g", "-o", path, source], check=True)
    return path


def launching(directory, name):
    """Returns the function of a program that launches its kernel: CUDA 13's headers have another one than those of CUDA 12, whose
    name the objects have."""
    symbols = subprocess.run(["nm", program(directory, name)], capture_output=True, text=True, check=True).stdout.split()
    known = [it for it in symbols if it.startswith("_Z16cudaLaunchKernelIc") or "__cudaLaunchKernel_helper" in it]
    return min(known, key=lambda it: "helper" in it)


def clocks():
    return time.clock_gettime_ns(time.CLOCK_REALTIME), time.clock_gettime_ns(time.CLOCK_MONOTONIC)


EXAMPLES = {
    "threadhist-gpu-kernel-shared-map": threadhist_shared,
    "kernelretsnoop": kernelretsnoop,
    "kernel_trace": kernel_trace,
    "atomizer": atomizer,
    "cuda-counter": cuda_counter,
    "launchlate": launchlate,
    "mem_trace": mem_trace,
    "directly_run_on_gpu": directly_run,
    "threadhist": threadhist,
    "gpu_shared_map": shared,
    "host_map_test": shared,
    "launchlate-kernel-gpu-shared-map": launchlate,
    "threadscheduling": shared,
    "threadscheduling_dynamic_hook": dynamic_hook,
    "cudagraph": cudagraph,
    "cutlass": cutlass,
    "faiss-test": each_thread,
    "llama-cpp-test": each_thread,
    "pytorch-test": pytorch,
}


def started(directory, name):
    """Runs an example."""
    if name == "threadscheduling_dynamic_hook":
        return attached(directory, name)
    return Run(directory, name, *options(name, directory), command=command(directory, name))


def main(directory, names):
    failed = 0
    for name, judge in EXAMPLES.items():
        if names and name not in names:
            continue
        try:
            if not (directory / f"{name}.bpf.o").exists():
                raise Missing(f"no {name}.bpf.o")
            said = judge(directory) if judge is directly_run else judge(started(directory, name))
            print(f"passed   {name}: {said}", flush=True)
        except Missing as what:
            print(f"skipped  {name}: {what}", flush=True)
        except Exception as error:
            failed += 1
            print(f"FAILED   {name}: {type(error).__name__} {str(error)[:1500]}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]) != 0)
