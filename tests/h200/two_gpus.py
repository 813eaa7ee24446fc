"""Two GPUs of one machine; see README.md. Called by run.sh."""

import functools
import os
import re
import subprocess
import sys

import h200
from h200 import BIN, OUT, PYTHON, XPUTRACE, bad, expect, losses, maps

CASES = []
case = functools.partial(h200.case, cases=CASES)
BY_GPU = "kernel(|k| { @n[k.gpu.uuid, k.device].count(); @by_process[k.gpu.uuid, k.pid].count() });"


@functools.cache
def uuids():
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    return re.findall(r"UUID: (GPU-[0-9a-f-]+)", listed)


@case("UUIDs are those of nvidia-smi, with swapped CUDA_VISIBLE_DEVICES")
def swapped():
    seen = []
    for order in ("0,1", "1,0"):
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": order}
        objects, _ = h200.trace(BY_GPU, [BIN / "both", 50], env=env)
        wanted = {f"{uuids()[int(number)]},{at}": 50 for at, number in enumerate(order.split(","))}
        expect(order, maps(objects)["@n"], wanted)
        seen.append(wanted)
    return f"{seen}"


@case("one GPU alone, by --device")
def alone():
    objects, _ = h200.trace(BY_GPU, [BIN / "both", 50], "--device", uuids()[1])
    expect("kernels", maps(objects)["@n"], {f"{uuids()[1]},1": 50})
    return f"{maps(objects)['@n']}"


def copied(*arguments):
    script = "memcpy(|m| @bytes[m.src_device ?? -1, m.dst_device ?? -1, m.direction, m.is_async].sum(m.bytes)); memcpy(|m| @calls[m.launch.api, m.device].count());"
    objects, done = h200.trace(script, [BIN / "peers", *arguments])
    print(f"  {maps(objects)} {done.stdout.strip()}")
    # The account of copies, which says what became of them.
    expect("losses", bad(losses(objects), {"memcpy", "launches_only"}), {})
    return maps(objects)["@bytes"]


@case("copies between GPUs that access each other's memory")
def peers():
    found = {key: n for key, n in copied("direct").items() if "PtoP" in key}
    expect("peer copies", found, {"0,1,PtoP,false": 300, "1,0,PtoP,true": 100})
    return f"{found}"


@case("copies between GPUs through the host")
def staged():
    # CUDA copies each to the host and from there, and CUPTI has a record of both.
    found = copied()
    expect("copies", found, {f"-1,-1,{way},{is_async}": n for way in ("DtoH", "HtoD") for is_async, n in (("false", 400), ("true", 100))})
    return f"{found}"


@case("workers that call their GPUs 0")
def workers():
    objects, done = h200.trace(BY_GPU + " launch(|l| @launches.count());", [PYTHON, "ddp.py", 30])
    found, lost = maps(objects), losses(objects)
    expect("GPUs", sorted({it.split(",")[0] for it in found["@n"]}), sorted(uuids()[:2]))
    expect("numbers", {it.split(",")[1] for it in found["@n"]}, {"0"})
    expect("a process each", len(found["@by_process"]), 2)
    expect("losses", bad(lost), {})
    expect("joined", lost["joined"] + lost.get("without_kernel", 0), lost["launches"])
    return f"{found['@by_process']}; {lost['launches']} launches"


@case("scripts")
def scripts():
    for name in ("gpubalance", "ncclstat", "gpuidle"):
        done = subprocess.run([XPUTRACE, "-q", name, "--", PYTHON, "ddp.py", "60"], capture_output=True, text=True, timeout=120)
        (OUT / f"two_{name}.txt").write_text(done.stdout + done.stderr)
        expect(name, done.returncode, 0)
        print("\n".join("  " + it[:150] for it in done.stdout.splitlines()[:16]))
    return "ran"


if __name__ == "__main__":
    os.chdir(os.path.dirname(os.path.abspath(__file__)))
    wanted = sys.argv[1:]
    chosen = [it for it in CASES if not wanted or any(word in it[0] for word in wanted)]
    sys.exit(h200.run_checks(chosen, "two_gpus.txt"))
