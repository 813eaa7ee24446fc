#!/usr/bin/env bash
# Translates bpftrace's own tools, and says of each what could not be said.
#
#   tests/bpftrace_tools.sh [XPUTRACE] [FILE.bt …]      by default, the tools that are installed
#
# What was translated must compile for this machine with every probe that it has. A tool counts as "whole" only if
# nothing of it is missing. Fails if a translation does not compile. Prints why it was skipped without bpftrace's tools.
set -eu
cd "$(dirname "$0")/.."
xputrace=$(realpath "${1:-target/debug/xputrace}")
[ $# -gt 0 ] && shift
tools=("$@")
if [ ${#tools[@]} -eq 0 ]; then
    for directory in /usr/sbin /usr/share/bpftrace/tools; do
        for tool in "$directory"/*.bt; do [ -e "$tool" ] && tools+=("$tool"); done
    done
fi
if [ ${#tools[@]} -eq 0 ]; then
    echo "skipped: no tools of bpftrace in /usr/sbin or /usr/share/bpftrace/tools (apt-get install bpftrace)"
    exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
whole=0 partly=0 not=0 broken=0
printf '%-20s %-8s %s\n' tool result "what can't be said, or what is wrong"
for tool in "${tools[@]}"; do
    name=$(basename "$tool" .bt)
    status=0
    "$xputrace" translate "$tool" >"$work/$name.rhai" 2>"$work/said" || status=$?
    reasons=$(grep -o 'not translated: .*' "$work/$name.rhai" | sed 's/.*, because //; s/:$//' | sort | uniq -c |
        sort -rn | sed 's/^ *\([0-9]*\) /\1 × /' | paste -sd '|' | sed 's/|/, /g') || true
    if [ "$status" -gt 1 ]; then
        result=broken reasons=$(head -n1 "$work/said")
    elif ! "$xputrace" check -q "$work/$name.rhai" 2>"$work/said"; then
        # A tracepoint or function that this machine doesn't have is no fault of the translation.
        if grep -q '^error' "$work/said" && ! grep '^error' "$work/said" | grep -qvE 'no-such-function|there is no tracepoint|no tracepoint matches'; then
            result=absent reasons="$(grep -c '^error' "$work/said") × this machine has no such place, $reasons"
        else
            result=broken reasons=$(grep -m1 '^error' "$work/said" || head -n1 "$work/said")
        fi
    elif [ "$status" -eq 0 ]; then
        result=whole
    elif grep -qE '^(uprobe|uretprobe|tracepoint|profile|interval)\(' "$work/$name.rhai"; then
        result=partly
    else
        result=not
    fi
    case $result in
        whole) whole=$((whole + 1)) ;;
        broken) broken=$((broken + 1)) ;;
        not) not=$((not + 1)) ;;
        *) partly=$((partly + 1)) ;;
    esac
    printf '%-20s %-8s %s\n' "$name" "$result" "$reasons"
done
echo "${#tools[@]} tools: $whole whole, $partly in part, $not not at all, $broken broken"
[ "$broken" -eq 0 ]
