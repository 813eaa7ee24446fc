"""Launches a kernel through ctypes, and writes down the Python frames of each launch."""
import ctypes
import re
import sys

cuda, libc = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(None)
expected = open("expected", "w")


def check(result):
    if result:
        sys.exit(f"CUDA: {result}")


def kernel():
    cuda.softgpu_register_kernel(b"nop", libc.getpid)
    context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    ptx = b".version 7.0\n.target sm_52\n.visible .entry nop() { ret; }\n"
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(cuda.cuCtxSetCurrent(context))
    check(cuda.cuModuleLoadData(ctypes.byref(module), ptx))
    check(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"nop"))
    return function, context


function, context = kernel()
arguments = (function, 1, 1, 1, 1, 1, 1, 0, None, None, None)
keeping_the_gil = ctypes.PyDLL("libcuda.so.1")
n = 0


def note(frame):
    global n
    n += 1
    depth = 0
    while frame:
        depth += 1
        if depth > 256:  # xputrace shows no more
            expected.write("    [more than 256 Python frames]\n")
            break
        # As xputrace shows the standard library's files.
        file = re.sub(r"^.*/lib/python3\.\d+/", "", frame.f_code.co_filename)
        expected.write(f"    {frame.f_code.co_qualname} ({file}:{frame.f_lineno})\n")
        frame = frame.f_back
    expected.write("--\n")


# A frame's line is that of the call: both calls are on it.
def launch():
    note(sys._getframe()); check(cuda.cuLaunchKernel(*arguments))


def launch_with_gil():
    note(sys._getframe()); check(keeping_the_gil.cuLaunchKernel(*arguments))
