//! The table of what may be written, file by file and state by state.

use std::collections::BTreeMap;

use fluffy_policy::glob::GlobSet;
use fluffy_policy::word::Category;

use super::*;
use crate::debt::Budget;
use crate::evidence::{Baseline, Red};
use crate::exemption::ExemptionRequest;
use crate::machine::{Approval, Event, Input, PlanKind};
use crate::project::detect::{Listing, Overrides, detect};

fn layout() -> Layout {
    let paths = ["/Cargo.toml", "/src/lib.rs"].map(ToOwned::to_owned);
    let contents = BTreeMap::from([("/Cargo.toml".to_owned(), "[package]".to_owned())]);
    let listing = Listing {
        paths: &paths,
        contents: &contents,
    };
    detect(&listing, &Overrides::default()).unwrap()
}

fn events(state: State) -> Vec<Event> {
    let red: Red = serde_json::from_str(
        r#"{"tests":[{"name":"a","file":null,"failure":"in_its_body","message":""}],
            "passing":[],"executed":1,"freeze":{"files":{}}}"#,
    )
    .unwrap();
    let submitted = |source| Event::ChangesSubmitted {
        files: 1,
        sensitive: vec![],
        source,
    };
    let digest = fluffy_base::Digest::of(b"");
    let strict = [
        Event::TaskStarted,
        Event::PlanCompleted {
            flow: Flow::TestFirst,
        },
        Event::RedSeen { red },
        submitted(digest),
    ];
    let explore = [
        Event::ModeSwitched {
            mode: Mode::Explore,
        },
        Event::TaskStarted,
        Event::PlanCompleted {
            flow: Flow::Explore,
        },
    ];
    match state {
        State::Idle => vec![],
        State::Planning => strict[..1].to_vec(),
        State::TestWriting => strict[..2].to_vec(),
        State::CodeWriting => strict[..3].to_vec(),
        State::Validating => strict.to_vec(),
        State::Exploring => explore.to_vec(),
        State::Reviewing | State::Committing | State::RetroactiveTesting => {
            let mut events = events(State::Validating);
            let green = serde_json::from_value(serde_json::json!({
                "fail_to_pass": ["a"], "pass_to_pass": 0, "pass_to_pass_digest": digest,
                "executed": 1, "basis": digest, "proof": { "type": "fail_to_pass" },
            }));
            events.push(Event::ValidationPassed {
                green: green.unwrap(),
            });
            match state {
                State::Committing => events.push(Event::MergeApproved {
                    approval: Approval::Person {
                        name: "ada".to_owned(),
                    },
                }),
                State::RetroactiveTesting => events.push(Event::TestsRequested),
                _ => {}
            }
            events
        }
    }
}

fn workflow(state: State) -> Workflow {
    let workflow = Workflow::replay(&events(state)).unwrap();
    assert_eq!(workflow.state(), state);
    workflow
}

const MIXED: &str = "fn a() {}\n#[cfg(test)]\nmod tests {\n    #[test]\n    fn one() {}\n}\n";

/// Files, and which part of them a write touches.
fn writes() -> [(&'static str, Write<'static>); 6] {
    let new = |path, after| Write {
        path,
        project: None,
        current: None,
        after: Some(after),
    };
    let edit = |path, current, after| Write {
        path,
        project: Some(current),
        current: Some(current),
        after: Some(after),
    };
    [
        ("test", new("/tests/a.rs", "#[test] fn a() {}")),
        (
            "inline test",
            edit(
                "/src/lib.rs",
                MIXED,
                "fn a() {}\n#[cfg(test)]\nmod tests {\n    #[test]\n    fn one() {}\n    #[test]\n    fn two() {}\n}\n",
            ),
        ),
        ("source", new("/src/a.rs", "fn a() {}")),
        (
            "inline source",
            edit(
                "/src/lib.rs",
                MIXED,
                "fn b() {}\n#[cfg(test)]\nmod tests {\n    #[test]\n    fn one() {}\n}\n",
            ),
        ),
        ("configuration", new("/.config/nextest.toml", "")),
        (
            "test section",
            edit(
                "/Cargo.toml",
                "[package]",
                "[package]\n[dev-dependencies]\na = \"1\"\n",
            ),
        ),
    ]
}

#[test]
fn the_table_of_what_may_be_written() {
    let layout = layout();
    for (state, allowed) in [
        (State::Idle, &[][..]),
        (State::Planning, &[]),
        (
            State::TestWriting,
            &["test", "inline test", "configuration", "test section"],
        ),
        (State::CodeWriting, &["source", "inline source"]),
        (
            State::Exploring,
            &[
                "test",
                "inline test",
                "source",
                "inline source",
                "configuration",
                "test section",
            ],
        ),
        (
            State::RetroactiveTesting,
            &["test", "inline test", "configuration", "test section"],
        ),
        (State::Validating, &[]),
        (State::Reviewing, &[]),
        (State::Committing, &[]),
    ] {
        let workflow = workflow(state);
        for (what, write) in writes() {
            let answer = check(&workflow, &layout, &write);
            assert_eq!(
                answer.is_ok(),
                allowed.contains(&what),
                "{state}: {what}: {answer:?}"
            );
            if let Err(refused) = answer {
                assert!(!refused.ways.is_empty(), "{state}: {what} has no way out");
            }
        }
    }
}

#[test]
fn a_file_that_is_both_is_refused_for_the_part_that_may_not_change() {
    let both = Write {
        path: "/src/lib.rs",
        project: Some(MIXED),
        current: Some(MIXED),
        after: Some(
            "fn b() {}\n#[cfg(test)]\nmod tests {\n    #[test]\n    fn one() { panic!() }\n}\n",
        ),
    };
    let part = |state| check(&workflow(state), &layout(), &both).unwrap_err().part;
    assert_eq!(part(State::TestWriting), Part::Source);
    assert_eq!(part(State::CodeWriting), Part::Test);
}

#[test]
fn removing_a_test_while_coding_is_refused() {
    let remove = Write {
        path: "/tests/a.rs",
        project: Some("x"),
        current: Some("x"),
        after: None,
    };
    let refused = check(&workflow(State::CodeWriting), &layout(), &remove).unwrap_err();
    assert_eq!(
        (refused.guard, refused.ways.as_slice()),
        (Guard::Frozen, &[Way::ReopenTests][..])
    );
    let admitted = check(&workflow(State::Exploring), &layout(), &remove).unwrap();
    assert_eq!(
        admitted.review,
        Review::Person,
        "a person sees that a test went"
    );
}

#[test]
fn nothing_is_still_a_write() {
    let same = Write {
        path: "/src/a.rs",
        project: Some("x"),
        current: Some("x"),
        after: Some("x"),
    };
    assert!(check(&workflow(State::Planning), &layout(), &same).is_err());
    assert!(check(&workflow(State::TestWriting), &layout(), &same).is_err());
    assert!(check(&workflow(State::CodeWriting), &layout(), &same).is_ok());
}

#[test]
fn an_exemption_opens_its_files_and_no_other() {
    let request = ExemptionRequest {
        category: Category::Documentation,
        paths: vec!["/README.md".to_owned()],
        reason: "a text".to_owned(),
    };
    let globs = GlobSet::build(["*.md"]).unwrap();
    let exemption = request.check(Some(&globs)).unwrap();
    let exemption = exemption.grant(Approval::Person {
        name: "ada".to_owned(),
    });
    let mut workflow = Workflow::default();
    for input in [
        Input::SendTask,
        Input::GrantExemption { exemption },
        Input::CompletePlan {
            kind: PlanKind::Change,
            baseline: Baseline::default(),
            budget: Budget::Open,
        },
    ] {
        workflow.step(input).unwrap();
    }
    let write = |path| Write {
        path,
        project: None,
        current: None,
        after: Some("text"),
    };
    assert!(check(&workflow, &layout(), &write("/README.md")).is_ok());
    let refused = check(&workflow, &layout(), &write("/src/a.rs")).unwrap_err();
    assert_eq!(refused.guard, Guard::Exemption);
    assert_eq!(refused.writable.only, ["/README.md"]);
    let writes = [write("/README.md"), write("/other.md"), write("/src/a.rs")];
    assert_eq!(refusals(&workflow, &layout(), &writes).len(), 2);
}

#[test]
fn a_refusal_says_what_to_do_instead() {
    let source = Write {
        path: "/src/a.rs",
        project: None,
        current: None,
        after: Some("x"),
    };
    let refused = check(&workflow(State::TestWriting), &layout(), &source).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "`/src/a.rs` may not be written while test_writing; it needs that a new or changed test was run and seen to fail"
    );
    assert_eq!(
        refused.for_model(),
        "refused: write /src/a.rs (source)\n\
         needs that: a new or changed test was run and seen to fail\n\
         state: test_writing (strict)\n\
         writable now: tests, test configuration (tests are **/benches/**, **/tests/**, *.snap, *_test.rs, *_tests.rs, test.rs, tests.rs)\n\
         to be allowed: run `test.run` with a new or changed test that fails, or call `workflow.request_exemption` for all files of the change, or the user switches to explore"
    );
    let text = serde_json::to_string(&*refused).unwrap();
    assert_eq!(
        serde_json::from_str::<WriteRefused>(&text).unwrap(),
        *refused
    );
}
