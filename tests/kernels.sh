#!/usr/bin/env bash
# Brings Linux 6.12 and 6.1 for QEMU, which the tests of `tests/live/kernels.rs` run in: kernels of this machine's own
# distribution, by its package manager's configuration, and what they start with. They are kept below `target/linux`; a file
# `missing` there says why one can't be had.
set -u
cd "$(dirname "$0")/.." || exit 1
kept=$(realpath -m "${CARGO_TARGET_DIR:-target}/linux")
versions="6.12 6.1"
# What the root of the host is mounted with. What is no module is in the kernel.
modules="virtio virtio_ring virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci netfs fscache 9pnet 9pnet_virtio 9p overlay"

# The machine's sources of packages, and beside them the suite with newer kernels.
sources() {
    local file
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
        [ -e "$file" ] && sed -E "p; s/^(deb (\[[^]]*\] )?[^ ]+ )$codename /\1$codename-backports /" "$file" | sort -u
    done >"$1/apt/sources.d/own.list"
    for file in /etc/apt/sources.list.d/*.sources; do
        [ -e "$file" ] && sed -E "s/^(Suites:.* |Suites: *)$codename( |$)/\1$codename $codename-backports\2/" "$file" \
            >"$1/apt/sources.d/${file##*/}"
    done
}

# A package manager with its own lists, which leaves those of the machine alone.
apt() { # COMMAND …
    "apt-$1" -qq -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$work/apt/sources.d" -o APT::Sandbox::User=root \
        -o Dir::State::lists="$work/apt/lists" -o Dir::Cache="$work/apt/cache" "${@:2}"
}

# Kernels that the distribution's package of kernels stands for, in any of its suites: linux-image-6.1.0-56-amd64, …
packages() {
    apt cache show linux-image-amd64 2>/dev/null | grep -o 'linux-image-[0-9][^ ,]*' | sort -uV
}

bring() { # VERSION
    local package to=$work/$1
    package=$(packages | grep "^linux-image-${1/./\\.}[.-]" | tail -n1)
    [ -n "$package" ] || { echo "this distribution has no package of it"; return 1; }
    mkdir -p "$to/package" "$to/root/modules" "$to/root/bin"
    (cd "$to" && apt get download "$package" && dpkg-deb -x ./"$package"_*.deb package) >&2 ||
        { echo "its package can't be fetched"; return 1; }
    start "$to/root" "$to/package" && mkdir -p "$kept/$1" &&
        (cd "$to/root" && find . | cpio -o -H newc --quiet | gzip -1) >"$kept/$1/initramfs" &&
        mv "$to"/package/boot/vmlinuz-* "$kept/$1/vmlinuz" || { echo "its package is of another form"; return 1; }
}

# What Linux starts with: modules, busybox, and `init`.
start() { # ROOT PACKAGE
    local module file tool
    for module in $modules; do
        file=$(find "$2" -name "$module.ko*" | head -n1)
        case $file in
        *.xz) xz -dc "$file" >"$1/modules/$module.ko" ;;
        *.ko) cp "$file" "$1/modules/" ;;
        esac || return
    done
    cp "$(command -v busybox)" "$1/bin/busybox" || return
    for tool in sh mount mkdir insmod chroot poweroff sed; do ln -sf busybox "$1/bin/$tool"; done
    cp tests/kernels-init.sh "$1/init"
}

is_kept() { [ -e "$kept/$1/vmlinuz" ] && [ ! tests/kernels-init.sh -nt "$kept/$1/initramfs" ]; }
present() { for it in $versions; do is_kept "$it" || return; done; }
present && exit 0
mkdir -p "$kept"
work=$(mktemp -d) || exit 0
trap 'rm -rf "$work"' EXIT
. /etc/os-release
codename=${VERSION_CODENAME:-}
missing() {
    for it in $versions; do echo "$1" >"$kept/$it.missing"; done
    echo "no Linux in QEMU here: $1"
    exit 0
}
command -v apt-get >/dev/null || missing "no package manager that is known here"
for tool in qemu-system-x86_64 busybox cpio xz; do
    command -v $tool >/dev/null || missing "no $tool"
done
mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial" "$work/apt/sources.d"
sources "$work"
apt get update 2>/dev/null # A source without that suite is an error, and the others are read.
for it in $versions; do
    is_kept "$it" && continue
    echo "fetching, for the tests: Linux $it"
    if why=$(bring "$it"); then rm -f "$kept/$it.missing"; else
        echo "no Linux $it here: $why"
        echo "$why" >"$kept/$it.missing"
    fi
done
exit 0
