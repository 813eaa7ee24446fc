#!/usr/bin/env bash
# Installs what the build needs beyond Rust: a C compiler, libelf and zlib (linked statically).
# Returns at once if everything is installed.
set -eu
cd "$(dirname "$0")/.."

check_rust() {
    local needed found
    needed=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    if ! found=$(cargo --version 2>/dev/null); then
        echo "xputrace is built with Rust $needed or later, and there is no cargo here: https://rustup.rs" >&2
        exit 1
    fi
    found=$(cut -d' ' -f2 <<<"$found")
    if [ "$(printf '%s\n' "$needed" "$found" | sort -V | head -n1)" != "$needed" ]; then
        echo "xputrace is built with Rust $needed or later; this is $found. With rustup: rustup update stable" >&2
        exit 1
    fi
}

arch=$(uname -m)-linux-gnu
missing=()
command -v cc >/dev/null || missing+=(gcc libc6-dev)
command -v make >/dev/null || missing+=(make)
command -v pkg-config >/dev/null || missing+=(pkg-config)
[ -e "/usr/lib/$arch/libelf.a" ] || [ -e /usr/lib64/libelf.a ] || missing+=(libelf-dev)
[ -e "/usr/lib/$arch/libz.a" ] || [ -e /usr/lib64/libz.a ] || missing+=(zlib1g-dev)

check_rust
[ ${#missing[@]} -eq 0 ] && exit 0
if ! command -v apt-get >/dev/null; then
    echo "xputrace needs a C compiler, make, pkg-config, and libelf and zlib with their static libraries;" >&2
    echo "Debian calls what is missing here: ${missing[*]}" >&2
    exit 1
fi
install="apt-get install -y --no-install-recommends ${missing[*]}"
if [ "$(id -u)" -ne 0 ]; then
    echo "xputrace needs ${missing[*]} to build. Run: sudo sh -c 'apt-get update && $install'" >&2
    exit 1
fi
echo "installing: ${missing[*]}"
apt-get update -qq
DEBIAN_FRONTEND=noninteractive $install -qq >/dev/null
