#!/usr/bin/env bash
# Runs every test that can run here; finally prints how many passed, failed, and were skipped, by
# reason. A test that cannot run only prints `skipped: REASON`.
set -u
cd "$(dirname "$0")/.."
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# Only root can mount these; without them, live tests are skipped.
if [ "$(id -u)" -eq 0 ]; then
    mountpoint -q /sys/fs/bpf || mount -t bpf bpf /sys/fs/bpf
    mountpoint -q /sys/kernel/tracing || mount -t tracefs tracefs /sys/kernel/tracing
fi
export PATH=$PATH:/usr/sbin
ptxas=${CARGO_TARGET_DIR:-target}/ptxas/ptxas
[ ! -x "$ptxas" ] || export PTXAS=${PTXAS:-$(realpath "$ptxas")}

echo "building (the first time this takes some minutes)"
cargo build --release -p xputrace || exit 1
cargo test --workspace --no-run || exit 1
echo "testing (some minutes more)"
# Tests that probe the same machine run one at a time; each package sets that itself. A job in the background of a
# script ignores interrupts, and so would the programs that tests interrupt.
env --default-signal=HUP,INT,QUIT cargo test --workspace --no-fail-fast -- --show-output >"$log" 2>&1
status=$?
sed -n '/^failures:$/,/^test result: FAILED/p' "$log" | head -600
grep -E '^error' -A12 "$log" | head -60

passed=$(grep -cE '^test .* \.\.\. ok$' "$log")
failed=$(grep -cE '^test .* \.\.\. FAILED$' "$log")
skipped=$(grep -cE '^skipped(:| [a-z_]+:) ' "$log")
echo
if [ "$skipped" -gt 0 ]; then
    echo "skipped, by reason:"
    grep -E '^skipped(:| [a-z_]+:) ' "$log" | sort | uniq -c | sed 's/^/  /'
fi
if [ "${CI:-}" = true ] && grep -E '^skipped(:| [a-z_]+:) ' "$log" | grep -qv 'no GPU'; then
    echo "in CI, \"no GPU\" is the only reason to skip"
    status=1
fi
echo "$((passed - skipped)) passed, $failed failed, $skipped skipped"
[ "$status" -eq 0 ] && [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
