#!/usr/bin/env bash
# Measures memory over a long run: the tracer's, and what the collector adds to a program.
#
#   tests/bench/memory.sh [SECONDS]     XPUTRACE=path/of/the/binary, BUILD=folder with the workloads
#
# Runs `server` on the software GPU, four threads that wait for each launch, and four that launch as fast as
# they can: each for 10 s alone, then under a script that reads launches, stacks and kernels. Reads VmHWM and
# the resident anonymous memory of tracer and program every 5 s. The collector's share is the program's peak,
# less its peak alone and less the rings. Needs a debug build of the workloads
# (cargo build -p xputrace-workloads) and of the binary (its build folder contains the software GPU).
set -eu
here=$(cd "$(dirname "$0")/../.." && pwd)
XPUTRACE=${XPUTRACE:-$here/target/release/xputrace}
BUILD=${BUILD:-$here/target/debug}
SECONDS_A_RUN=${1:-60}
script='launch(|l| @calls[l.api, l.tid].count()); kernel(|k| @gpu[k.launch.ustack, k.name].sum(k.duration)); kernel(|k| @us.hist((k.start - k.launch.time) / 1.us));'
[ -x "$XPUTRACE" ] || { echo "no xputrace at $XPUTRACE: make build, or set XPUTRACE" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
softgpu=$(ls -t "$BUILD"/build/xputrace-*/out/softgpu.so | head -1)
for name in libcuda.so.1 libcuda.so libcudart.so.13 libcupti.so.13 libcupti.so; do ln -s "$softgpu" "$work/$name"; done
export LD_LIBRARY_PATH=$work

field() { sed -n "s/^$2:[[:space:]]*\([0-9]*\) kB/\1/p" "/proc/$1/status" 2>/dev/null || true; }
mib() { awk -v k="${1:-0}" 'BEGIN { printf "%.1f", k / 1024 }'; }
child_of() { cat "/proc/$1/task/$1/children" 2>/dev/null | tr -d ' ' || true; }

# The program's peak after 10 s alone.
alone() {
    "$@" >"$work/alone.json" & local pid=$!
    sleep 10
    own=$(field $pid VmHWM)
    kill $pid 2>/dev/null || true
    wait $pid 2>/dev/null || true
    echo "alone: program VmHWM $(mib "$own") MiB"
}

traced() {
    "$XPUTRACE" -f json --quiet --for "${SECONDS_A_RUN}s" -o "$work/out.json" -e "$script" -- "$@" >"$work/program.json" &
    local tracer=$! at=0 program
    while kill -0 $tracer 2>/dev/null && [ $at -lt "$SECONDS_A_RUN" ]; do
        sleep 5
        at=$((at + 5))
        program=$(child_of $tracer)
        [ -n "$program" ] && [ -n "$(field "$program" VmHWM)" ] || break
        share=$(($(field "$program" VmHWM) - $(field "$program" RssShmem) - own))
        echo "$at s: tracer VmHWM $(mib "$(field $tracer VmHWM)") MiB, anonymous $(mib "$(field $tracer RssAnon)") MiB;" \
            "program VmHWM $(mib "$(field "$program" VmHWM)") MiB, rings $(mib "$(field "$program" RssShmem)") MiB, collector's share $(mib $share) MiB"
    done
    wait $tracer || true
    [ -n "${program:-}" ] && kill "$program" 2>/dev/null || true
    sed -n 's/.*"account":\({[^}]*}\).*/account: \1/p' "$work/out.json"
}

case_of() {
    echo "== $*"
    alone "$@"
    traced "$@"
}

case_of "$BUILD/server" --requests=100000000
case_of "$BUILD/threads" --threads=4 --launches=100000000 --every=1
case_of "$BUILD/threads" --threads=4 --launches=100000000
