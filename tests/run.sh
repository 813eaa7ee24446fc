#!/usr/bin/env bash
# Runs every test that can run here; finally prints how many passed, failed, and were skipped, by
# reason. A test that cannot run only prints `skipped: REASON`.
#
#   tests/run.sh          all of them, on the release build
#   tests/run.sh quick    those that trace nothing: unit tests, goldens, documents
set -u
cd "$(dirname "$0")/.."
log=$(mktemp)
trap 'rm -f "$log" "$log.beside"' EXIT

# Test programs that trace, inject, or run the built binary as a user would; and the fuzzer.
live='cases|cli|fuzz|inject|kernels|live'

# Names of all test programs but those. All packages stay selected: with fewer, cargo would build others with other features.
quick_programs() {
    cargo metadata --no-deps --format-version 1 |
        grep -o '"kind":\["test"\],"crate_types":\["bin"\],"name":"[^"]*"' | sed 's/.*:"//; s/"$//' | sort -u | grep -vxE "$live"
}

# Their tests wait for most of their time, so they run beside the others.
waiting=twins

case ${1:-} in
quick) selected=(--lib --bins $(quick_programs | grep -vx $waiting | sed 's/^/--test /')) beside=(--test $waiting) ;;
*) selected=() beside=() ;;
esac

# Only root can mount these; without them, live tests are skipped.
if [ "$(id -u)" -eq 0 ]; then
    mountpoint -q /sys/fs/bpf || mount -t bpf bpf /sys/fs/bpf
    mountpoint -q /sys/kernel/tracing || mount -t tracefs tracefs /sys/kernel/tracing
fi
export PATH=$PATH:/usr/sbin
ptxas=${CARGO_TARGET_DIR:-target}/ptxas/ptxas
[ ! -x "$ptxas" ] || export PTXAS=${PTXAS:-$(realpath "$ptxas")}

echo "building (the first time this takes some minutes)"
[ ${#selected[@]} -gt 0 ] || cargo build --release -p xputrace || exit 1
cargo test --workspace "${selected[@]}" "${beside[@]}" --no-run || exit 1
echo "testing"
# Tests that probe the same machine run one at a time; each package sets that itself. A job in the background of a
# script ignores interrupts, and so would the programs that tests interrupt.
tested() { env --default-signal=HUP,INT,QUIT cargo test --workspace "$@" --no-fail-fast -- --show-output; }
[ ${#beside[@]} -eq 0 ] || tested "${beside[@]}" >"$log.beside" 2>&1 &
tested "${selected[@]}" >"$log" 2>&1
status=$?
wait $! || status=$?
[ ${#beside[@]} -eq 0 ] || cat "$log.beside" >>"$log"
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
# A Linux that can't do what a case needs is none that is missing; the machine's own may lack kprobes, which those in QEMU have.
if [ "${CI:-}" = true ] && grep -E '^skipped(:| [a-z_]+:) ' "$log" | grep -qvE 'no GPU|^skipped: no kprobes$|: in Linux [0-9.]+: uprobes need '; then
    echo "in CI, \"no GPU\" is the only reason to skip, beside what an older Linux lacks"
    status=1
fi
echo "of $SECONDS s, those that took longest:"
awk '/^ +Running / { program = $2 } /^ +Doc-tests / { program = $0 }
    match($0, /finished in [0-9.]+s/) { print "  " substr($0, RSTART + 12, RLENGTH - 12), program }' "$log" | sort -rn | head -8
echo "$((passed - skipped)) passed, $failed failed, $skipped skipped"
[ "$status" -eq 0 ] && [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
