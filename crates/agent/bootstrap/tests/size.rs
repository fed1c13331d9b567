//! The promise that the bootstrap can be read whole.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    missing_docs,
    reason = "tests"
)]

use std::path::Path;

/// Lines that are neither blank nor only a comment.
fn counted(text: &str) -> usize {
    let lines = text.lines().map(str::trim);
    lines
        .filter(|line| !line.is_empty() && !line.starts_with("//"))
        .count()
}

#[test]
fn it_has_fewer_than_five_hundred_lines() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut lines = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        assert!(path.is_file(), "{} would not be counted", path.display());
        lines += counted(&std::fs::read_to_string(path).unwrap());
    }
    println!("{lines} lines");
    assert!((100..500).contains(&lines), "{lines} lines");
}

/// Only its own lines count, because it uses none of our crates.
#[test]
fn it_depends_on_the_system_alone() {
    let manifest = include_str!("../Cargo.toml");
    let (_, rest) = manifest.split_once("\n[dependencies]\n").unwrap();
    let (dependencies, _) = rest.split_once("\n[").unwrap();
    assert_eq!(dependencies.trim(), "libc.workspace = true");
}

#[test]
fn comments_and_blank_lines_do_not_count() {
    assert_eq!(
        counted("//! A\n\n  // b\nuse x;\n   \n/// c\nfn f() {} // d\n"),
        2
    );
}
