#!/usr/bin/env bash
# Installs bpftool, which some tests load objects with. Without it they are skipped, by name, so
# whatever happens here stops nothing.
command -v bpftool >/dev/null || [ -x /usr/sbin/bpftool ] && exit 0
[ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null || exit 0
# Debian has a package of that name; Ubuntu has it in that of the kernel's tools.
for package in bpftool linux-tools-common; do
    echo "installing, for the tests: $package"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends -qq "$package" >/dev/null && break
done
exit 0
