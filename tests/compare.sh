#!/usr/bin/env bash
# Compares two builds of xputrace: uprobe hits, script to attached, end of tracing, replay.
#
#   tests/compare.sh BEFORE AFTER [ROUNDS]     as root; CALLS=hits per run, RAW=file for the rounds
#
# Every round runs each case under both builds, one right after the other, in alternating order, so that
# whatever else the machine does meets both. Costs are processor time, except for the two times of a
# whole tool. Prints the ratio of the medians (under 1: AFTER is faster), and the smallest and largest
# ratio of a round.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
[ $# -ge 2 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
before=$(realpath "$1")
after=$(realpath "$2")
rounds=${3:-9}
CALLS=${CALLS:-200000}
[ "$(id -u)" -eq 0 ] || { echo "uprobes need root" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
raw=${RAW:-$work/raw}
bin=$work/uprobe
cc -O2 -fno-omit-frame-pointer -o "$bin" "$here/bench/uprobe.c"

hit_script() {
    case $1 in
        count) echo "uprobe(\"$bin:probed\", |e| @calls.count())" ;;
        tid) echo "uprobe(\"$bin:probed\", |e| @calls[e.tid].count())" ;;
        hist) echo "uprobe(\"$bin:probed\", |e| @values.hist(e.arg0))" ;;
        ustack) echo "uprobe(\"$bin:probed\", |e| @stacks[e.ustack].count())" ;;
        latency) echo "uretprobe(\"$bin:probed\", |e| @ns.hist(e.duration))" ;;
    esac
}

replay_script='kernel(|k| @time[k.name, k.launch.tid].sum(k.duration)); kernel(|k| @latency.hist(k.start - k.launch.time));'

# Prints lines `CASE VALUE` of one run.
measure() { # case binary
    case $1 in
        replay)
            TIMEFORMAT='replay_ms %U %S'
            { time "$2" -q -e "$replay_script" --replay "$here/replay/llm.xpt" >/dev/null 2>&1; } 2>&1 |
                awk '{ print $1, ($2 + $3) * 1000 }' ;;
        *)
            "$bin" "$CALLS" "$2" -e "$(hit_script "$1")" -p PID |
                awk -v name="$1" '{ print "hit_" name "_ns", $1; print "attach_ms", $2; print "end_ms", $3 }' ;;
    esac
}

: >"$raw"
order="before after"
for round in $(seq "$rounds"); do
    for case in count tid hist ustack latency replay; do
        for build in $order; do
            measure "$case" "${!build}" | sed "s/^/$build $round /" >>"$raw" || echo "$case failed under $build" >&2
        done
    done
    order=$(echo "$order" | awk '{ print $2, $1 }')
done

awk "$(cat "$here/bench/median.awk")"'
{
    all[$1, $3] = all[$1, $3] " " $4
    if (!($3 in seen)) { seen[$3] = 1; order[++cases] = $3 }
    # Several values of a round: their sum stands for the round.
    sum[$1, $3, $2] += $4
    if ($2 > rounds) rounds = $2
}
END {
    printf "%-16s %12s %12s %8s   %s\n", "case", "before", "after", "ratio", "rounds"
    for (i = 1; i <= cases; i++) {
        name = order[i]; low = 1e9; high = 0
        for (r = 1; r <= rounds; r++) {
            if (!sum["before", name, r] || !sum["after", name, r]) continue
            ratio = sum["after", name, r] / sum["before", name, r]
            if (ratio < low) low = ratio
            if (ratio > high) high = ratio
        }
        b = median(all["before", name]); a = median(all["after", name])
        printf "%-16s %12.2f %12.2f %8.3f   %.3f … %.3f\n", name, b, a, b ? a / b : 0, low, high
    }
}' "$raw"
echo "$(uname -r), $(nproc) CPUs, $rounds rounds of $CALLS hits, load $(cut -d' ' -f1 /proc/loadavg)"
