#!/usr/bin/env bash
# Installs what some tests need: bpftool, which loads objects, and Go, whose programs move their
# stacks. Without them those tests are skipped by name, so a failure here is not an error.
[ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null || exit 0

install() { # package
    echo "installing, for the tests: $1"
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends -qq "$1" >/dev/null
}

has_bpftool() { command -v bpftool >/dev/null || [ -x /usr/sbin/bpftool ]; }
has_go() { command -v go >/dev/null; }

has_bpftool && has_go && exit 0
apt-get update -qq
# Debian has a package of that name; in Ubuntu it is in the package of Linux tools.
has_bpftool || install bpftool || install linux-tools-common
has_go || install golang-go
exit 0
