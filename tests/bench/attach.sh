#!/bin/bash
# Attaches and detaches many probes: 350 tracepoints, 1,000 functions in one probe, 1,000 handlers.
#
#   tests/bench/attach.sh [ROUNDS]     as root; XPUTRACE=FILE for another binary than the release build
#
# Prints medians in milliseconds: `attach` from the tool's start to its message that all probes are attached,
# `detach` from SIGINT to its exit. bpftrace prints no such message, so its figure is one whole run with the
# command `true`. That takes minutes; NO_BPFTRACE=1 skips it.
set -eu
rounds=${1:-5}
root=$(cd "$(dirname "$0")/../.." && pwd)
xputrace=${XPUTRACE:-$root/target/release/xputrace}
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"

for i in $(seq 1000); do echo "__attribute__((noinline)) void many_$i(void) { __asm__ volatile(\"nop; nop; nop; nop; nop\"); }"; done >many.c
echo 'int main(void) { return 0; }' >>many.c
gcc -O1 -o many many.c

# The first 350, or all if there are fewer.
tracepoints=$(cd /sys/kernel/tracing/events/syscalls && printf '%s\n' sys_enter_* | sed 350q)
for it in $tracepoints; do echo "tracepoint(\"syscalls:$it\", |e| @n.count());"; done >tracepoints.rhai
for it in $tracepoints; do echo "tracepoint:syscalls:$it { @n = count(); }"; done >tracepoints.bt
echo 'uprobe("./many:many_*", |e| @n.count());' >functions.rhai
echo "uprobe:$directory/many:many_* { @n = count(); }" >functions.bt
for i in $(seq 1000); do echo "uprobe(\"./many:many_$i\", |e| @n.count());"; done >handlers.rhai
for i in $(seq 1000); do echo "uprobe:$directory/many:many_$i { @n = count(); }"; done >handlers.bt

micros() { echo "${EPOCHREALTIME/./}"; }
median() { sort -n "$1" | sed -n "$(((rounds + 1) / 2))p" | awk '{ printf "%.0f", $1 / 1000 }'; }

attach_and_detach() {
    rm -f results
    local began; began=$(micros)
    "$xputrace" -f json -o results "$1.rhai" -a 2>notes &
    local tool=$!
    until grep -qs attached_probes results; do
        kill -0 $tool 2>/dev/null || { cat notes >&2; exit 1; }
        sleep 0.001
    done
    local attached; attached=$(micros)
    kill -INT $tool
    wait $tool || true
    local ended; ended=$(micros)
    echo $((attached - began)) >>"$1.attach"
    echo $((ended - attached)) >>"$1.end"
}

bpftrace_run() {
    [ -z "${NO_BPFTRACE:-}" ] || { echo -; return; }
    local began; began=$(micros)
    BPFTRACE_MAX_PROBES=2000 BPFTRACE_MAX_BPF_PROGS=2000 bpftrace -c /bin/true "$1.bt" >notes 2>&1 ||
        { echo "fails: $(tail -n 1 notes)"; return; }
    echo $((($(micros) - began) / 1000))
}

echo "| probes | attach | detach | bpftrace, attach and detach |"
for case in tracepoints functions handlers; do
    for _ in $(seq "$rounds"); do attach_and_detach $case; done
    echo "| $case | $(median $case.attach) | $(median $case.end) | $(bpftrace_run $case) |"
done
