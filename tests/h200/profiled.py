"""A PyTorch program that profiles itself in the middle, for the checks on a real GPU.

    python3 profiled.py WINDOWS STEPS    STEPS forward passes before, between and after WINDOWS profiled stretches

Prints one line of JSON: the kernels that torch.profiler reported, by window and name; the times (CLOCK_MONOTONIC, ns)
at which each window was entered, was on, was about to end, and had ended; and how many kernels a step has.
"""
import json
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile


def kernels_of(profiler):
    """Returns count and nanoseconds of the kernels that the profiler saw, by name."""
    found = {}
    with tempfile.NamedTemporaryFile(suffix=".json") as trace:
        profiler.export_chrome_trace(trace.name)
        events = json.loads(Path(trace.name).read_text())["traceEvents"]
    for event in events:
        if event.get("cat") == "kernel":
            count, nanos = found.get(event["name"], (0, 0))
            found[event["name"]] = (count + 1, nanos + round(event["dur"] * 1000))
    return found


def main():
    windows, steps = int(sys.argv[1]), int(sys.argv[2])
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, dropout=0.0)
    net = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).cuda().eval()
    data = torch.randn(4, 64, 256, device="cuda")

    @torch.no_grad()
    def work():
        for _ in range(steps):
            net(data)
        torch.cuda.synchronize()

    work()
    reported = []
    for _ in range(windows):
        times = [time.monotonic_ns()]
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            times.append(time.monotonic_ns())
            work()
            times.append(time.monotonic_ns())
        times.append(time.monotonic_ns())
        reported.append({"times": times, "kernels": kernels_of(profiler)})
        # Until a traced program is recorded again.
        time.sleep(0.5)
        work()
    print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "windows": reported}))


if __name__ == "__main__":
    main()
