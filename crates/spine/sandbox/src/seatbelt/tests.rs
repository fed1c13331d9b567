//! What Seatbelt is told: word for word, and with hostile names.

use std::os::unix::ffi::OsStringExt;

use proptest::prelude::*;

use super::*;
use crate::plan::{Engine, Mount, Reach, sample};

fn plan(read: &[&str], write: &[&str]) -> Plan {
    let paths = |texts: &[&str]| texts.iter().map(PathBuf::from).collect();
    Plan {
        reach: Reach {
            read: paths(read),
            write: paths(write),
        },
        ..sample::plan(Engine::Reduced)
    }
}

#[test]
fn an_empty_plan_allows_nothing() {
    let profile = profile(&plan(&[], &[])).unwrap();
    assert_eq!(profile.text, "(version 1)\n(deny default)\n");
    assert!(profile.parameters.is_empty());
}

#[test]
fn a_profile_word_for_word() {
    let plan = Plan {
        network: Network::Restricted,
        ..plan(&["/usr"], &["/tmp/one"])
    };
    let profile = profile(&plan).unwrap();
    let running = RUNNING.join("\n");
    assert_eq!(
        profile.text,
        format!(
            "(version 1)\n(deny default)\n{running}\n(allow process-fork)\n\
             (allow file-read* process-exec file-map-executable (subpath (param \"READ_0\")))\n\
             (allow file-read* file-write* process-exec file-map-executable \
             (subpath (param \"WRITE_1\")))\n\
             (allow file-read-metadata (literal (param \"ABOVE_2\")))\n\
             (allow file-read-metadata (literal (param \"ABOVE_3\")))\n\
             (allow file-read-metadata (literal (param \"ABOVE_4\")))\n\
             (allow file-read-metadata (literal (param \"ABOVE_5\")))\n\
             (allow network-outbound (remote tcp \"localhost:3128\"))\n"
        )
    );
    let parameters: Vec<String> = profile
        .parameters
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    assert_eq!(
        parameters.join(" "),
        "READ_0=/usr WRITE_1=/private/tmp/one ABOVE_2=/ ABOVE_3=/private \
         ABOVE_4=/private/tmp ABOVE_5=/tmp"
    );
}

#[test]
fn only_what_may_start_processes_may_fork_and_only_the_proxy_is_reached() {
    let strict = Plan {
        seccomp: Profile::StrictFiles,
        ..plan(&["/usr"], &[])
    };
    let text = profile(&strict).unwrap().text;
    assert!(!text.contains("fork") && !text.contains("network"));
    let none = Plan {
        network: Network::None,
        ..plan(&["/usr"], &[])
    };
    assert!(!profile(&none).unwrap().text.contains("network"));
}

const HOSTILE: [&str; 8] = [
    "/a\") (allow default) (\"",
    "/a\\",
    "/(allow file-write*)",
    "/a\nb",
    "/$HOME",
    "/a b",
    "/a=b",
    "/;comment",
];

#[test]
fn hostile_names_are_parameters_and_not_text() {
    let harmless = profile(&plan(&["/a"], &["/b"])).unwrap();
    for path in HOSTILE {
        let hostile = profile(&plan(&[path], &["/b"])).unwrap();
        assert_eq!(hostile.text, harmless.text, "{path:?}");
        assert_eq!(
            hostile.parameters[0],
            ("READ_0".to_owned(), path.to_owned())
        );
    }
}

#[test]
fn what_could_be_misread_is_refused() {
    for path in ["", "a", "./a", "/a/../b", "/a/./b", "/a//b", "/a/", "/a\0b"] {
        let refused = profile(&plan(&["/usr"], &[path]));
        assert!(
            matches!(refused, Err(SeatbeltError::Path { .. })),
            "{path:?}"
        );
    }
    let odd = PathBuf::from(OsString::from_vec(b"/a\xffb".to_vec()));
    let mut plan = plan(&[], &[]);
    plan.reach.read.push(odd);
    assert!(matches!(profile(&plan), Err(SeatbeltError::NotText { .. })));
}

#[test]
fn what_seatbelt_cannot_do_is_refused() {
    let mounts = Plan {
        late: vec![Mount::Devices],
        ..plan(&["/usr"], &[])
    };
    assert_eq!(profile(&mounts), Err(SeatbeltError::Mounts));
    let many: Vec<String> = (0..=PATHS_MAX).map(|n| format!("/{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let (found, limit) = (PATHS_MAX + 1, PATHS_MAX);
    assert_eq!(
        profile(&plan(&many, &[])),
        Err(SeatbeltError::TooMany { found, limit })
    );
}

#[test]
fn the_command_names_the_program_by_its_path_and_ends_the_options() {
    let profile = profile(&plan(&["/usr"], &[])).unwrap();
    let argv = profile.command(&["-x".into(), "y".into()]);
    let words: Vec<_> = argv.iter().map(|word| word.to_str().unwrap()).collect();
    assert_eq!(words[..2], ["/usr/bin/sandbox-exec", "-p"]);
    assert_eq!(words[2], profile.text);
    assert_eq!(
        words[3..],
        ["-D", "READ_0=/usr", "-D", "ABOVE_1=/", "--", "-x", "y"]
    );
}

/// The operations and the parameter of a rule about a path.
fn path_rule(line: &str) -> Option<(Vec<&str>, &str)> {
    let rule = line.strip_prefix("(allow ")?;
    let (operations, rest) = rule
        .split_once(" (subpath (param \"")
        .or_else(|| rule.split_once(" (literal (param \""))?;
    let name = rest.strip_suffix("\")))")?;
    Some((operations.split(' ').collect(), name))
}

fn any_path() -> impl Strategy<Value = String> {
    let word = "([ a\"'\\\\()$\n;=*é]{1,6}|tmp|etc|var|private|x)";
    prop::collection::vec(word, 1..4).prop_map(|words| format!("/{}", words.join("/")))
}

proptest! {
    /// Every rule is one that holds always, or about a path of the plan and
    /// with no more than the plan gives it.
    #[test]
    fn no_rule_that_the_plan_did_not_ask_for(
        read in prop::collection::vec(any_path(), 0..5),
        write in prop::collection::vec(any_path(), 0..5),
    ) {
        let texts = |paths: &[String]| paths.iter().map(|path| real(path.clone())).collect::<Vec<_>>();
        let (read_real, write_real) = (texts(&read), texts(&write));
        let read: Vec<&str> = read.iter().map(String::as_str).collect();
        let write: Vec<&str> = write.iter().map(String::as_str).collect();
        let profile = profile(&plan(&read, &write)).unwrap();
        let mut used = 0;
        for line in profile.text.lines() {
            let Some((operations, name)) = path_rule(line) else {
                let fixed = ["(version 1)", "(deny default)", "(allow process-fork)"];
                prop_assert!(fixed.contains(&line) || RUNNING.contains(&line), "{}", line);
                continue;
            };
            used += 1;
            let (_, value) = profile.parameters.iter().find(|(known, _)| known == name).unwrap();
            let changes = operations.contains(&"file-write*");
            let reads = operations.contains(&"file-read*");
            let asked = match (changes, reads) {
                (true, _) => write_real.contains(value),
                (false, true) => read_real.contains(value),
                (false, false) => {
                    let below = |path: &&str| Path::new(path).starts_with(value);
                    let real_below = |path: &String| Path::new(path).starts_with(value);
                    operations == ["file-read-metadata"]
                        && (read.iter().chain(&write).any(below)
                            || read_real.iter().chain(&write_real).any(real_below))
                }
            };
            prop_assert!(asked, "{} for {:?}", line, value);
        }
        prop_assert_eq!(used, profile.parameters.len());
    }
}
