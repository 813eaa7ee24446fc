#!/usr/bin/env bash
# Compiles NAME.bpf.c to NAME.bpf.o, all of them or those named. Tests use the objects as they are committed, so they need
# no compiler; run this after a change of the C. It takes clang and libbpf's headers (libbpf-dev).
set -euo pipefail
# The names of the sources in the objects are those from here, where clang also finds their lines.
cd "$(dirname "$0")/../.."
strip=$(command -v llvm-strip || ls /usr/bin/llvm-strip-* /usr/lib/llvm-*/bin/llvm-strip 2>/dev/null | tail -1)
for name in ${*:-$(basename -s .bpf.c tests/objects/*.bpf.c)}; do
    c=tests/objects/$name.bpf.c
    clang -g -O2 -fdebug-compilation-dir=. -Wall -Werror -target bpf -I"/usr/include/$(uname -m)-linux-gnu" -c "$c" -o "${c%.c}.o"
    # What remains are types and lines as Linux knows them; the rest would hold names of this machine.
    "$strip" -g "${c%.c}.o"
done
