#!/usr/bin/env bash
# Fuzzes all targets together for an hour, or FUZZ_SECONDS, guided by what inputs reach; finally prints how much of each file they
# reached. Inputs that reached something new are kept in target/fuzz/kept, and later runs begin with them. Further arguments are
# the test program's: a part of a target's name. The table takes `rustup component add llvm-tools`.
set -euo pipefail
cd "$(dirname "$0")/../.."
export FUZZ_SECONDS=${FUZZ_SECONDS:-3600} FUZZ_SEED=${FUZZ_SEED:-$(date +%s)}
out=${CARGO_TARGET_DIR:-$PWD/target}/fuzz
export FUZZ_KEEP=$out/kept RUSTC_WORKSPACE_WRAPPER=$PWD/tests/fuzz/counting-rustc.sh
echo "FUZZ_SEED=$FUZZ_SEED"

rm -rf "$out/profiles"
# Build scripts count what they run, too, which nobody wants to know.
built=$(LLVM_PROFILE_FILE=/dev/null cargo test --no-run --message-format=json -p xputrace-fuzz)
program=$(grep -o '"executable":"[^"]*/fuzz-[^"]*"' <<<"$built" | tail -1 | cut -d'"' -f4)
status=0
LLVM_PROFILE_FILE=$out/profiles/%p.profraw "$program" "$@" || status=$?

tools=$(rustc --print target-libdir)/../bin
if [ -x "$tools/llvm-cov" ]; then
    "$tools/llvm-profdata" merge -sparse "$out"/profiles/*.profraw -o "$out/profile"
    "$tools/llvm-cov" report "$program" -instr-profile="$out/profile" >"$out/report"
    # Path, lines, lines that were not reached, and the share of those that were.
    awk -v root="${PWD#/}/" '/\.rs / && sub(root, "", $1) { printf "%-60s %6d lines, %6d not reached, %s\n", $1, $8, $9, $10 }' \
        "$out/report"
fi
exit "$status"
