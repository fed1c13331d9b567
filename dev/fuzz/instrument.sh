#!/bin/sh
# How `cargo xtask fuzz` compiles our own crates: with coverage as libFuzzer
# wants it, and every check that a debug build has. Cargo calls it with rustc
# and its arguments for every crate of the workspace, and for no other.
exec "$@" --cfg fuzzing -Copt-level=1 -Cdebug-assertions=on -Coverflow-checks=on \
    -Ccodegen-units=1 -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares
