//! The fuzzer's program: one for all targets, so it is linked once.
//!
//! `cargo xtask fuzz` builds it with coverage and names the target in
//! `FLUFFY_FUZZ_TARGET`. The targets themselves are in `src/`.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var("FLUFFY_FUZZ_TARGET").unwrap_or_default();
    let Some(target) = fluffy_fuzz::find(&name) else {
        // Ends before the first input, as a wrong name should.
        std::process::abort();
    };
    target.run
});

fuzz_target!(|bytes: &[u8]| TARGET(bytes));
