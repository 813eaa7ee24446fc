"""Launches from every kind of frame that a Python program has."""
import asyncio
import threading

import gpu
from gpu import launch


def two_lines():
    launch()
    gpu.launch_with_gil()

def loop():
    for _ in range(3):
        launch(); launch()
        if _ == 1:
            launch()

def generator(n):
    for i in range(n):
        launch()
        yield i
        launch()

def delegating():
    yield from generator(2)

class Model:
    def __init__(self):
        launch()
    def __call__(self, x):
        return self.forward(x)
    def forward(self, x):
        return [launch() for _ in range(2)] or {launch(): 1}
    @property
    def weight(self):
        launch()
        return 1
    def __enter__(self):
        launch()
    def __exit__(self, *a):
        launch()
    def __del__(self):
        launch()

def recurse(n):
    if n == 0:
        launch()
    else:
        recurse(n - 1)

def through_c(n):
    if n:
        list(map(lambda it: through_c(it), [n - 1]))
    else:
        sorted([2, 1], key=lambda it: launch() or it)

async def task(n):
    await asyncio.sleep(0)
    launch()
    async with Lock():
        async for _ in ticks():
            launch()

class Lock:
    async def __aenter__(self):
        launch()
    async def __aexit__(self, *a):
        await asyncio.sleep(0); launch()

async def ticks():
    for i in range(2):
        launch()
        yield i

async def tasks():
    await asyncio.gather(task(1), task(2))

def handler():
    try:
        raise ValueError
    except ValueError:
        launch()
    finally:
        launch()

# Code objects that are freed and made again, at the same addresses.
def made_again():
    for i in range(200):
        name = f"f{i % 7}"
        text = "\n" * (i % 11) + f"def {name}():\n" + "    pass\n" * (i % 5) + "    launch()\n" + f"{name}()\n"
        exec(compile(text, f"made{i % 3}.py", "exec"), {"launch": launch})

def in_thread():
    gpu.check(gpu.cuda.cuCtxSetCurrent(gpu.context))
    launch()
    recurse(3)

two_lines()
loop()
list(generator(2))
sum(delegating())
Model()(1)
with Model() as m:
    Model().weight
recurse(20); recurse(255); recurse(400)
through_c(3)
asyncio.run(tasks())
handler()
made_again()
for _ in range(3):
    t = threading.Thread(target=in_thread); t.start(); t.join()
(lambda: launch())()
naïve = lambda ж: launch()
naïve(1)
gpu.check(gpu.cuda.cuCtxSynchronize())
gpu.expected.close()
print(f"launches={gpu.n}")
