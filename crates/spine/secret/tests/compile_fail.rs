//! A secret cannot be shown, stored or copied by accident: it does not compile.

#[test]
fn a_secret_has_no_accidental_way_out() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/compile_fail/expose_compiles.rs");
    cases.compile_fail("tests/compile_fail/display.rs");
    cases.compile_fail("tests/compile_fail/serialize.rs");
    cases.compile_fail("tests/compile_fail/clone.rs");
}
