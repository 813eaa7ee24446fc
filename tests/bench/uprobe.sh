#!/usr/bin/env bash
# What a uprobe costs under xputrace and under bpftrace: same machine, same site, same process.
#
#   tests/bench/uprobe.sh [ROUNDS]      as root; XPUTRACE=path/of/the/binary, CALLS=hits a run
#
# Every round runs each case under both tools, one right after the other, in turns first. What is
# compared are medians over the rounds of the processor time of one call (so that other programs
# disturb little), less a call without a probe. Raw figures: the file that the last line names. bpftrace is from the distribution
# (apt-get install bpftrace); without it only xputrace's figures are printed.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
XPUTRACE=${XPUTRACE:-$here/../../target/release/xputrace}
ROUNDS=${1:-7}
CALLS=${CALLS:-300000}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
raw=${RAW:-/tmp/xputrace-uprobe-bench.txt}
bin=$work/uprobe
cc -O2 -fno-omit-frame-pointer -o "$bin" "$here/uprobe.c"
[ "$(id -u)" -eq 0 ] || { echo "uprobes need root" >&2; exit 1; }
[ -x "$XPUTRACE" ] || { echo "no xputrace at $XPUTRACE: make build, or set XPUTRACE" >&2; exit 1; }
tools=xputrace
command -v bpftrace >/dev/null && tools="bpftrace xputrace" || echo "no bpftrace here: its column is missing"
cases="empty count tid hist ustack return latency trampoline"

xputrace_script() {
    case $1 in
        empty) echo "uprobe(\"$bin:probed\", |e| ())" ;;
        count) echo "uprobe(\"$bin:probed\", |e| @calls.count())" ;;
        tid) echo "uprobe(\"$bin:probed\", |e| @calls[e.tid].count())" ;;
        hist) echo "uprobe(\"$bin:probed\", |e| @values.hist(e.arg0))" ;;
        ustack) echo "uprobe(\"$bin:probed\", |e| @stacks[e.ustack].count())" ;;
        return) echo "uretprobe(\"$bin:probed\", |e| @calls.count())" ;;
        latency) echo "uretprobe(\"$bin:probed\", |e| @ns.hist(e.duration))" ;;
        trampoline) echo "uretprobe(\"$bin:probed\", #{return: \"trampoline\"}, |e| @ns.hist(e.duration))" ;;
    esac
}

bpftrace_script() {
    case $1 in
        empty) echo "uprobe:$bin:probed { }" ;;
        count) echo "uprobe:$bin:probed { @ = count() }" ;;
        tid) echo "uprobe:$bin:probed { @[tid] = count() }" ;;
        hist) echo "uprobe:$bin:probed { @ = hist(arg0) }" ;;
        ustack) echo "uprobe:$bin:probed { @[ustack] = count() }" ;;
        return) echo "uretprobe:$bin:probed { @ = count() }" ;;
        latency | trampoline)
            echo "uprobe:$bin:probed { @s[tid] = nsecs } uretprobe:$bin:probed /@s[tid]/ { @ = hist(nsecs - @s[tid]); delete(@s[tid]) }" ;;
    esac
}

measure() { # tool case
    case $1 in
        xputrace) "$bin" "$CALLS" "$XPUTRACE" -e "$(xputrace_script "$2")" -p PID ;;
        bpftrace) "$bin" "$CALLS" bpftrace -p PID -e "$(bpftrace_script "$2")" ;;
    esac
}

: >"$raw"
for round in $(seq "$ROUNDS"); do
    echo "bare - $("$bin" bare 20000000)" >>"$raw"
    for case in $cases; do
        for tool in $tools; do
            echo "$tool $case $(measure "$tool" "$case")" >>"$raw" || echo "$tool $case failed" >&2
        done
    done
    # The one that went first goes second in the next round.
    tools=$(echo "$tools" | awk '{ for (i = NF; i > 0; i--) printf "%s ", $i }')
done

awk "$(cat "$here/median.awk")"'
$1 == "bare" { bare = bare " " $3; next }
NF == 6 {
    ns[$1, $2] = ns[$1, $2] " " $3; attach[$1] = attach[$1] " " $4; ending[$1] = ending[$1] " " $5
    if ($6 > rss[$1]) rss[$1] = $6
    if (!($2 in seen)) { seen[$2] = 1; order[++n_cases] = $2 }
}
END {
    base = median(bare)
    printf "a call without a probe: %.1f ns; medians of what a probe adds to it:\n", base
    printf "%-8s %14s %14s %8s\n", "case", "xputrace", "bpftrace", "ratio"
    for (i = 1; i <= n_cases; i++) {
        ours = median(ns["xputrace", order[i]]) - base
        theirs = ("bpftrace", order[i]) in ns ? median(ns["bpftrace", order[i]]) - base : 0
        printf "%-8s %11.0f ns %11.0f ns %8s\n", order[i], ours, theirs, (theirs > 0 ? sprintf("%.2f", ours / theirs) : "-")
    }
    for (tool in attach)
        printf "%s: exec to attached %.1f ms, SIGINT to end %.1f ms (medians), peak memory %.1f MiB\n", tool, median(attach[tool]), median(ending[tool]), rss[tool] / 1024
}' "$raw"
echo "$(uname -r), $(nproc) CPUs, $(awk -F': ' '/model name/ { print $2; exit }' /proc/cpuinfo), $ROUNDS rounds of $CALLS hits, load $(cut -d' ' -f1 /proc/loadavg)"
command -v bpftrace >/dev/null && bpftrace --version
echo "raw figures: $raw"
