#!/bin/sh
# Cargo's wrapper of the compiler for this workspace's crates: they count what they run. The fuzzer itself doesn't, but has what
# writes the counters down.
case " $* " in
*" --crate-name fuzz "*) exec "$@" -Clink-arg=-Wl,-u,__llvm_profile_runtime ;;
*) exec "$@" -Cinstrument-coverage ;;
esac
