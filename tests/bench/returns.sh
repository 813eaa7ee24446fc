#!/usr/bin/env bash
# Compares the cost of entry probes, return probes at `ret` and return probes by trampoline with bpftrace's
# uprobe and uretprobe. Writes every round to docs/data/uprobe_returns.csv, or to the file in $CSV.
#
#   tests/bench/returns.sh [ROUNDS]     as root; variables as in uprobe.sh
set -eu
here=$(cd "$(dirname "$0")" && pwd)
export CSV=${CSV:-$here/../../docs/data/uprobe_returns.csv}
exec "$here/uprobe.sh" "${1:-21}" count ret trampoline latency latency_ret
