//! Attacks on parts that this kernel lacks: there the filter itself is asked.
//!
//! No sandbox can show that they would work, so the compiled filter is run
//! call by call, for every machine and profile that starts programs.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::collections::BTreeSet;

use fluffy_attack::Guard;
use fluffy_sandbox::seccomp::{Action, Architecture, Filter, interpret};
use fluffy_sandbox::template::Profile;

const EXCUSED: &str = include_str!("single_guard/controls.txt");

/// Which calls each of them makes; `name:N` is a call with `N` as its second
/// argument, and `x32` is every number in the x32 range.
const CALLS: &[(&str, &[&str])] = &[
    ("bpf", &["bpf"]),
    ("calls-x32", &["x32"]),
    ("io-ports", &["ioperm", "iopl"]),
    ("kernel-log", &["syslog"]),
    ("kexec", &["kexec_file_load", "kexec_load"]),
    (
        "load-module",
        &["delete_module", "finit_module", "init_module"],
    ),
    // TIOCLINUX, by which a console is told to paste.
    ("terminal-paste", &["ioctl:21532"]),
];

const X32: u32 = 0x4000_0000;

#[test]
fn what_no_kernel_here_can_show_is_refused_by_the_filter() {
    for architecture in [Architecture::X86_64, Architecture::Aarch64] {
        for profile in [Profile::Standard, Profile::StandardNet] {
            let filter = Filter::compile(profile, architecture).unwrap();
            let ask =
                |number, second| interpret(&filter, architecture, number, [0, second, 0, 0, 0, 0]);
            // Else a filter that refuses everything would do.
            let read = architecture.number("read").unwrap();
            assert_eq!(ask(read, 0), Action::Allow);
            for (attack, calls) in CALLS {
                for call in *calls {
                    let (name, second) = call.split_once(':').unwrap_or((call, "0"));
                    let numbers: Vec<u32> = match architecture.number(name) {
                        Some(number) => vec![number],
                        None if name == "x32" => (0..512).map(|number| X32 | number).collect(),
                        // Another machine's alone, such as device ports.
                        None => continue,
                    };
                    let second = second.parse().unwrap();
                    for number in numbers {
                        let action = ask(number, second);
                        let what = (architecture, profile, attack, call);
                        assert_ne!(action, Action::Allow, "{what:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn every_attack_that_only_the_filter_stops_unseen_is_asked_about() {
    let excused: BTreeSet<&str> = EXCUSED
        .lines()
        .filter_map(|line| line.strip_prefix("attack ")?.split(':').next())
        .filter(|name| fluffy_attack::find(name).unwrap().guard == Guard::Seccomp)
        .collect();
    let asked: BTreeSet<&str> = CALLS.iter().map(|(name, _)| *name).collect();
    assert_eq!(asked, excused);
}
