//! `fluffy sandbox run --tier wasm`: a program with its streams and no more.

use std::io::Write;
use std::process::Stdio;

use crate::site::Site;

/// Copies standard input to standard output, then exits with 3.
const COPY: &str = r#"(module
  (import "wasi_snapshot_preview1" "fd_read"
    (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write"
    (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 2)
  (data (i32.const 0) "\10\00\00\00\00\10\00\00")
  (func (export "_start")
    (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
    (i32.store (i32.const 4) (i32.load (i32.const 8)))
    (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
    (call $exit (i32.const 3))))"#;

const FOREVER: &str = r#"(module (memory (export "memory") 1)
  (func (export "_start") (loop (br 0))))"#;

fn program(site: &Site, text: &str) {
    let bytes = wat::parse_str(text).unwrap();
    std::fs::write(site.context.project().join("program.wasm"), bytes).unwrap();
}

#[test]
fn a_program_has_its_streams_and_its_code() {
    let site = Site::empty();
    program(&site, COPY);
    let mut child = site
        .context
        .command()
        .args(["sandbox", "run", "--tier", "wasm", "--", "program.wasm"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"waffle\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(output.stdout, b"waffle\n");
}

#[test]
fn limits_and_misuse_have_the_codes_of_the_other_tiers() {
    let site = Site::empty();
    program(&site, FOREVER);
    let run = |flags: &[&'static str], name: &'static str| {
        let mut words = vec!["sandbox", "run", "--tier", "wasm"];
        words.extend(flags);
        words.extend(["--", name]);
        words
    };
    site.ends(124, &run(&["--time", "200ms"], "program.wasm"));
    site.ends(125, &run(&[], "missing.wasm"));
    site.ends(125, &run(&["--merge"], "program.wasm"));
    site.context.write("text.wasm", "no program").unwrap();
    site.ends(125, &run(&[], "text.wasm"));
}
