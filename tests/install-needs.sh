#!/usr/bin/env bash
# Installs what the build needs beyond Rust: a C compiler, libelf and zlib (linked statically).
# Does nothing, quickly, when it is all there.
set -eu
missing=()
command -v cc >/dev/null || missing+=(gcc)
command -v make >/dev/null || missing+=(make)
command -v pkg-config >/dev/null || missing+=(pkg-config)
arch=$(uname -m)-linux-gnu
[ -e "/usr/lib/$arch/libelf.a" ] || [ -e /usr/lib64/libelf.a ] || missing+=(libelf-dev)
[ -e "/usr/lib/$arch/libz.a" ] || [ -e /usr/lib64/libz.a ] || missing+=(zlib1g-dev)
# For the tests only; they are skipped, by name, without it.
command -v bpftool >/dev/null || [ -x /usr/sbin/bpftool ] || missing+=(bpftool)
[ ${#missing[@]} -eq 0 ] && exit 0
install="apt-get install -y --no-install-recommends ${missing[*]} libc6-dev"
if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    echo "installing: ${missing[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive $install -qq >/dev/null
else
    echo "xputrace needs ${missing[*]} to build. Run: sudo $install" >&2
    exit 1
fi
