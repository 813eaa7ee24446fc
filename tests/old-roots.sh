#!/usr/bin/env bash
# Runs the release binary in the root directories of other distributions, and says what was tried.
#
#   sudo tests/old-roots.sh [SUITE…]       default: bullseye bookworm focal jammy
#
# debootstrap makes each root below $ROOTS (/var/tmp/xputrace-roots), once, from the mirror in this machine's own package
# configuration, or that in DEBIAN_MIRROR or UBUNTU_MIRROR. A suite that cannot be had is skipped by name.
set -u
cd "$(dirname "$0")/.."
binary=${XPUTRACE:-target/release/xputrace}
roots=${ROOTS:-/var/tmp/xputrace-roots}
suites=("$@")
[ ${#suites[@]} -gt 0 ] || suites=(bullseye bookworm focal jammy)
failed=0

[ "$(id -u)" -eq 0 ] || { echo "skipped: not root"; exit 0; }
command -v debootstrap >/dev/null || { echo "skipped: no debootstrap"; exit 0; }
[ -x "$binary" ] || { echo "there is no $binary: make build" >&2; exit 1; }

# Where this machine gets packages of a distribution from.
configured() { # origin
    apt-get indextargets --format '$(ORIGIN) $(SITE)' 2>/dev/null | awk -v origin="$1" '$1 == origin { print $2; exit }'
}

mirror() { # suite
    case $1 in
    bionic | focal | jammy | noble) echo "${UBUNTU_MIRROR:-$(configured Ubuntu)}" ;;
    *) echo "${DEBIAN_MIRROR:-$(configured Debian)}" ;;
    esac
}

# A root that was made to its end has a file that says so.
make_root() { # suite
    local root=$roots/$1 from
    [ -e "$root/.made" ] && return
    from=$(mirror "$1")
    mkdir -p "$roots"
    [ -n "$from" ] || { echo "no mirror is configured here; name one in DEBIAN_MIRROR or UBUNTU_MIRROR" >"$root.log"; return 1; }
    rm -rf "$root"
    mkdir -p "$root"
    debootstrap --variant=minbase "$1" "$root" "$from" >"$root.log" 2>&1 && touch "$root/.made"
}

# In a mount namespace of its own, whose mounts end with it.
in_root() { # root, command…
    unshare --mount --propagation private bash -euc '
        root=$1
        shift
        mount -t proc proc "$root/proc"
        mount --rbind /sys "$root/sys"
        mount --rbind /dev "$root/dev"
        mountpoint -q "$root/sys/fs/bpf" || mount -t bpf bpf "$root/sys/fs/bpf"
        mountpoint -q "$root/sys/kernel/tracing" || mount -t tracefs tracefs "$root/sys/kernel/tracing"
        exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root chroot "$root" "$@"' in_root "$@"
}

# A run fails if its status, or a text that must be in its output, says so.
check() { # suite, text, words…
    local suite=$1 text=$2 output
    shift 2
    if output=$(in_root "$roots/$suite" "$@" 2>&1) && [[ $output == *"$text"* ]]; then
        echo "ok: $suite: ${*##*/}"
    else
        echo "FAILED: $suite: $*"
        sed 's/^/    /' <<<"$output" | tail -n 30
        failed=1
    fi
}

try() { # suite
    local root=$roots/$1 glibc
    glibc=$(in_root "$root" ldd --version | sed -n '1s/.* //p')
    echo "$1: glibc $glibc, Linux $(uname -r)"
    install "$binary" "$root/usr/local/bin/xputrace"
    check "$1" xputrace /usr/local/bin/xputrace --version
    check "$1" "0 lost" /usr/local/bin/xputrace demo
    check "$1" "@n[ls]: " /usr/local/bin/xputrace -e 'uprobe("libc:malloc", |e| @n[e.comm].count())' -- ls
    check "$1" "@n: " /usr/local/bin/xputrace -e 'tracepoint("sched:sched_switch", |e| @n.count())' -- sleep 0.1
}

for suite in "${suites[@]}"; do
    if make_root "$suite"; then
        try "$suite"
    else
        echo "skipped: no packages of $suite: $(tail -n 1 "$roots/$suite.log")"
    fi
done
exit "$failed"
