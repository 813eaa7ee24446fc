#!/usr/bin/env bash
# Installs what some tests need: bpftool, which loads objects; Go, whose programs move their stacks; musl, another C
# library; gdb, whose stacks ours are compared with; bpftrace, whose results are compared with those of its translated
# programs; clang and libbpf's headers, for objects made of C; zsh, fish and groff, which are given completions and manual
# pages; QEMU, and what makes a root for it, for other versions of Linux (tests/kernels.sh brings those); the versions of Python
# whose frames are read; and NVIDIA's assembler, which compiles what handlers become. Without them those tests are skipped by
# name, so a failure here is not an error.

# It is in a wheel of the CUDA compiler, which needs neither root nor a GPU.
has_ptxas() { [ -n "${PTXAS:-}" ] || command -v ptxas >/dev/null || [ -e "$ptxas" ]; }
ptxas=${CARGO_TARGET_DIR:-target}/ptxas/ptxas
bring_ptxas() {
    local wheels
    wheels=$(mktemp -d) || return
    echo "fetching, for the tests: ptxas (the wheel nvidia-cuda-nvcc)"
    python3 -m pip download -qqq --disable-pip-version-check --no-deps -d "$wheels" nvidia-cuda-nvcc &&
        mkdir -p "$(dirname "$ptxas")" && python3 - "$wheels"/*.whl "$ptxas" <<'END'
import os, sys, zipfile
wheel, to = zipfile.ZipFile(sys.argv[1]), sys.argv[2]
[name] = [it for it in wheel.namelist() if it.endswith("/bin/ptxas")]
open(to + ".part", "wb").write(wheel.read(name))
os.chmod(to + ".part", 0o755)
os.rename(to + ".part", to)
END
    rm -rf "$wheels"
}
cd "$(dirname "$0")/.." || exit 0
has_ptxas || bring_ptxas || echo "no ptxas here: the tests that assemble PTX are skipped"

[ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null || exit 0

install() { # package
    echo "installing, for the tests: $1"
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends -qq "$1" >/dev/null
}

has_bpftool() { command -v bpftool >/dev/null || [ -x /usr/sbin/bpftool ]; }
has_go() { command -v go >/dev/null; }
has_musl() { command -v musl-gcc >/dev/null; }
has_gdb() { command -v gdb >/dev/null; }
has_bpftrace() { command -v bpftrace >/dev/null; }
has_shells() { command -v zsh >/dev/null && command -v fish >/dev/null && command -v groff >/dev/null; }
has_qemu() { for it in qemu-system-x86_64 busybox cpio xz; do command -v $it >/dev/null || return; done; }
has_clang() { command -v clang >/dev/null && [ -e /usr/include/bpf/bpf_helpers.h ]; }

# On the path, or from pyenv or uv, where the tests look too.
has_python() { # version
    local it
    for it in python$1 ~/.pyenv/versions/$1.*/bin/python$1 ~/.local/share/uv/python/cpython-$1*/bin/python$1; do
        "$it" -c '' 2>/dev/null && return
    done
    return 1
}
missing_pythons() { for it in 3.11 3.12 3.13; do has_python $it || echo $it; done; }

has_bpftool && has_go && has_musl && has_gdb && has_bpftrace && has_clang && has_shells && has_qemu && [ -z "$(missing_pythons)" ] && exit 0
apt-get update -qq
# Debian has a package of that name; in Ubuntu it is in the package of Linux tools.
has_bpftool || install bpftool || install linux-tools-common
has_go || install golang-go
has_musl || install musl-tools
has_gdb || install gdb-minimal
has_bpftrace || install bpftrace
has_shells || { install zsh && install fish && install groff; }
has_clang || { install clang && install libbpf-dev; }
has_qemu || { install qemu-system-x86 && install busybox-static && install cpio && install xz-utils; }
for it in $(missing_pythons); do
    [ -n "$(apt-cache policy python$it)" ] && install python$it
    has_python $it || echo "no Python $it here: the tests of its frames are skipped"
done
exit 0
