#!/usr/bin/env bash
# Compares what uprobes cost under xputrace and under bpftrace: same machine, same function, same process.
#
#   tests/bench/uprobe.sh [ROUNDS] [CASE…]     as root; the cases are those of uprobe_cases.sh
#
# XPUTRACE=FILE  the binary; default: the release build
# CALLS=N        hits per run
# CSV=FILE       where to write every round
#
# Every round runs each case under both tools, one right after the other; the order alternates. Prints the
# medians of the CPU time per call, less that of a call without a probe, and the median of the rounds' ratios,
# which a machine that becomes slower or faster meanwhile does not change. Without bpftrace (apt-get install
# bpftrace) only xputrace's figures are printed.
set -eu
rounds=${1:-7}
cases=${*:2}
cases=${cases:-empty count tid hist ustack latency}
calls=${CALLS:-300000}
csv=${CSV:-/tmp/xputrace-uprobe-bench.csv}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bin=$work/uprobe
. "$(dirname "$0")/uprobe_cases.sh"
XPUTRACE=${XPUTRACE:-$bench/../../target/release/xputrace}
require_root
[ -x "$XPUTRACE" ] || { echo "no xputrace at $XPUTRACE: make build, or set XPUTRACE" >&2; exit 1; }
build_target
tools=xputrace
command -v bpftrace >/dev/null && tools="bpftrace xputrace" || echo "bpftrace is not installed: its column is empty"

measure() { # tool case
    case $1 in
        xputrace) "$bin" "$calls" "$XPUTRACE" -e "$(xputrace_script "$2")" -p PID ;;
        bpftrace) "$bin" "$calls" bpftrace -p PID -e "$(bpftrace_script "$2")" ;;
    esac
}

echo case,tool,round,ns_per_call,attach_ms,exit_ms,peak_kib >"$csv"
for round in $(seq "$rounds"); do
    echo "without a probe,,$round,$("$bin" bare 20000000),,," >>"$csv"
    for case in $cases; do
        for tool in $tools; do
            if line=$(measure "$tool" "$case"); then
                echo "$case,$tool,$round,${line// /,}" >>"$csv"
            else
                echo "$case failed under $tool" >&2
            fi
        done
    done
    tools=$(reversed "$tools")
done

awk -F, "$(cat "$bench/median.awk")"'
function by_round(case_,    n, list) {
    for (n = 1; n <= rounds; n++)
        if (("xputrace", case_, n) in of_round && ("bpftrace", case_, n) in of_round)
            list = list " " (of_round["xputrace", case_, n] - base) / (of_round["bpftrace", case_, n] - base)
    return median(list)
}
NR == 1 { next }
$2 == "" { bare = bare " " $4; next }
{
    ns[$2, $1] = ns[$2, $1] " " $4; of_round[$2, $1, $3] = $4; rounds = $3; attach[$2] = attach[$2] " " $5; ending[$2] = ending[$2] " " $6
    if ($7 > peak[$2]) peak[$2] = $7
    if (!($1 in seen)) { seen[$1] = 1; order[++n_cases] = $1 }
}
END {
    base = median(bare)
    printf "without a probe: %.1f ns; a probe adds (medians):\n", base
    printf "%-12s %14s %14s %8s %15s\n", "case", "xputrace", "bpftrace", "ratio", "ratio by round"
    for (i = 1; i <= n_cases; i++) {
        ours = median(ns["xputrace", order[i]]) - base
        if (("bpftrace", order[i]) in ns) {
            theirs = median(ns["bpftrace", order[i]]) - base
            printf "%-12s %11.0f ns %11.0f ns %8.2f %15.2f\n", order[i], ours, theirs, ours / theirs, by_round(order[i])
        } else printf "%-12s %11.0f ns %14s %8s\n", order[i], ours, "-", "-"
    }
    for (tool in attach)
        printf "%s: exec to attached %.1f ms, SIGINT to exit %.1f ms (medians), peak memory %.1f MiB\n", tool, median(attach[tool]), median(ending[tool]), peak[tool] / 1024
}' "$csv"
machine_line "$rounds" "$calls"
command -v bpftrace >/dev/null && bpftrace --version
echo "rounds: $csv"
