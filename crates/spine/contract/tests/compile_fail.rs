//! A permit cannot be forged, copied or made from nothing: it does not compile.
//!
//! Here and not in `policy`, because this is where effects take permits, and
//! because trybuild compiles every dependency of the crate it runs in anew.

#![allow(missing_docs, reason = "tests")]

#[test]
fn permits_only_come_from_decisions() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/compile_fail/control.rs");
    for case in ["altered", "cloned", "defaulted", "forged", "used_twice"] {
        cases.compile_fail(format!("tests/compile_fail/{case}.rs"));
    }
}
