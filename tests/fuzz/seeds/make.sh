#!/usr/bin/env bash
# Compiles the ELF files that the fuzzer begins with. Tests use them as they are committed; run this after a change of the C. It
# takes gcc and binutils.
set -euo pipefail
cd "$(dirname "$0")"
flags=(-shared -fPIC -nostdlib -O2 -fdebug-prefix-map="$PWD=." -Wl,--build-id=sha1 -Wl,-z,noseparate-code -Wl,-rpath,'$ORIGIN/lib:/opt')
gcc "${flags[@]}" -g -gdwarf-5 library.c -o dwarf5.so
gcc "${flags[@]}" -g -gdwarf-4 -gz=zlib library.c -o compressed.so
gcc "${flags[@]}" -g -gdwarf-4 -fno-asynchronous-unwind-tables library.c -o no_tables.so
cp dwarf5.so linked.so
strip --strip-all linked.so
objcopy --add-gnu-debuglink=dwarf5.so linked.so

# Code for GPUs: in a program, and machine code of its own with a kernel's parameters.
objcopy --add-section .nv_fatbin=../../../gpu-probes/nvidia/tests/images/exact.fatbin linked.so gpu.so
parameters=$(mktemp)
trap 'rm -f "$parameters"' EXIT
# Two parameters of 8 bytes, as `ptxas` describes them, and their size.
printf '\x04\x17\x0c\x00\0\0\0\0\x01\x00\x08\x00\x00\xf0\x21\x00\x04\x17\x0c\x00\0\0\0\0\x00\x00\x00\x00\x00\xf0\x21\x00\x03\x19\x10\x00' >"$parameters"
objcopy --add-section .nv.info._Z5scalePf="$parameters" --add-section .nv.constant0._Z5scalePf="$parameters" linked.so kernel.cubin
