#!/usr/bin/env bash
# Compares two builds of xputrace: uprobe hits, script to attached, end of tracing, replay.
#
#   tests/compare.sh BEFORE AFTER [ROUNDS]     as root; CALLS=hits per run, RAW=file for the rounds
#
# Every round runs each case under both builds, one right after the other; the order alternates. Costs are
# CPU time, except for the two times of a whole tool. Prints the ratio of the medians (below 1: AFTER is
# faster), and the smallest and largest ratio of a round.
set -eu
[ $# -ge 2 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
before=$(realpath "$1")
after=$(realpath "$2")
rounds=${3:-9}
calls=${CALLS:-200000}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
raw=${RAW:-$work/raw}
bin=$work/uprobe
. "$(dirname "$0")/bench/uprobe_cases.sh"
require_root
build_target

replay_script='kernel(|k| @time[k.name, k.launch.tid].sum(k.duration)); kernel(|k| @latency.hist(k.start - k.launch.time));'

# Runs a case once; prints lines `CASE VALUE`.
measure() { # case binary
    case $1 in
        replay)
            TIMEFORMAT='replay_ms %U %S'
            { time "$2" -q -e "$replay_script" --replay "$bench/../replay/llm.xpt" >/dev/null 2>&1; } 2>&1 |
                awk '{ print $1, ($2 + $3) * 1000 }' ;;
        *)
            "$bin" "$calls" "$2" -e "$(xputrace_script "$1")" -p PID |
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
    order=$(reversed "$order")
done

awk "$(cat "$bench/median.awk")"'
{
    all[$1, $3] = all[$1, $3] " " $4
    if (!($3 in seen)) { seen[$3] = 1; order[++cases] = $3 }
    # A round with several values is represented by their sum.
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
machine_line "$rounds" "$calls"
