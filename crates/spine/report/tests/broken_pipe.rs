//! A real process whose reader goes away ends quietly and without a panic.

#![allow(clippy::unwrap_used, clippy::exit, reason = "tests")]

use std::io::Read as _;
use std::process::{Command, Stdio};

use fluffy_report::{PrintError, Printer, PrinterOptions};

const CHILD: &str = "FLUFFY_REPORT_TEST_CHILD";

/// Writes until nobody reads any more, if it is the child; else does nothing.
#[test]
fn child_writes_until_its_reader_is_gone() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let printer = Printer::new(PrinterOptions::default());
    let error = (0..1_000_000)
        .find_map(|_| printer.data("a line for a reader that leaves early").err())
        .unwrap();
    assert!(matches!(error, PrintError::Closed), "{error:?}");
    std::process::exit(error.exit().number().into());
}

#[test]
fn a_broken_pipe_is_a_quiet_success() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "child_writes_until_its_reader_is_gone",
            "--nocapture",
        ])
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 512]).unwrap();
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}
