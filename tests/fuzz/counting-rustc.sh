#!/bin/sh
# Cargo's wrapper of the compiler for this workspace's crates: they count what they run.
exec "$@" -Cinstrument-coverage
