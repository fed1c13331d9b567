//! Every row of the table, every pair that is none, and what always holds.

mod properties;

use std::collections::BTreeSet;

use fluffy_policy::glob::GlobSet;
use fluffy_policy::word::Category;

use super::*;
use crate::evidence::{
    ChangedFile, Surroundings, green as judge_green, passing, red as judge_red, refactor,
};
use crate::exemption::ExemptionRequest;
use crate::project::parts::{Class, Part};
use crate::results::{Exit, Format, Outcome, Report, TestResult};

const STATES: [State; 9] = [
    State::Idle,
    State::Planning,
    State::TestWriting,
    State::CodeWriting,
    State::Exploring,
    State::RetroactiveTesting,
    State::Validating,
    State::Reviewing,
    State::Committing,
];

const LOCKED: Budget = Budget::LockedByCommits { commits: 5 };

fn run(results: &[(&str, Outcome)]) -> Report {
    let mut report = Report::new(Format::Pytest, Exit::Code(0));
    for (name, outcome) in results {
        report.push(TestResult {
            file: Some("/tests/test_a.py".to_owned()),
            ..TestResult::new(name, *outcome)
        });
    }
    report
}

fn baseline() -> Baseline {
    Baseline::of(&run(&[("old", Outcome::Passed)]))
}

const TEST: ChangedFile<'static> = ChangedFile {
    path: "/tests/test_a.py",
    class: Class::Whole(Part::Test),
    before: None,
    after: Some("def test_new():\n    f()\n"),
};
const SOURCE: ChangedFile<'static> = ChangedFile {
    path: "/app.py",
    class: Class::Whole(Part::Source),
    before: None,
    after: Some("def f(): pass\n"),
};

fn red() -> Red {
    let report = run(&[("old", Outcome::Passed), ("test_new", Outcome::Failed)]);
    judge_red(&baseline(), &report, &[TEST], Changes::of(&[TEST]).freeze).unwrap()
}

fn around<'a>(
    baseline: &'a Baseline,
    freeze: &'a Freeze,
    removed: &'a BTreeSet<String>,
) -> Surroundings<'a> {
    Surroundings {
        baseline,
        freeze,
        removed,
    }
}

/// The evidence that fits a flow.
fn green(flow: Flow) -> Green {
    let (baseline, removed) = (baseline(), BTreeSet::new());
    let empty = Freeze::default();
    let report = run(&[("old", Outcome::Passed), ("test_new", Outcome::Passed)]);
    match flow {
        Flow::TestFirst => {
            let red = red();
            judge_green(&red, &report, &around(&baseline, red.freeze(), &removed)).unwrap()
        }
        Flow::Refactor => refactor(&report, &around(&baseline, &empty, &removed), None).unwrap(),
        Flow::Explore | Flow::Exempt => {
            passing(&report, &around(&baseline, &empty, &removed)).unwrap()
        }
    }
}

fn person() -> Approval {
    Approval::Person {
        name: "ada".to_owned(),
    }
}

fn automatic() -> Approval {
    Approval::Automatic {
        rule: "merge".to_owned(),
    }
}

fn exemption() -> Exemption {
    let request = ExemptionRequest {
        category: Category::Documentation,
        paths: vec!["/app.py".to_owned()],
        reason: "it is a text".to_owned(),
    };
    let globs = GlobSet::build(["**"]).unwrap();
    request.check(Some(&globs)).unwrap().grant(person())
}

fn plan(kind: PlanKind) -> Input {
    Input::CompletePlan {
        kind,
        baseline: baseline(),
        budget: Budget::Open,
    }
}

fn switch_to(to: Mode, answer: SwitchAnswer) -> Input {
    Input::SwitchMode {
        to,
        answer,
        budget: Budget::Open,
    }
}

fn start_coding() -> Input {
    Input::StartCoding {
        judged: Ok(red()),
        changes: Changes::of(&[TEST]),
    }
}

fn submit(files: &[ChangedFile<'_>]) -> Input {
    Input::Submit {
        changes: Changes::of(files),
        source: changes::source_digest(files),
        stripped: BTreeMap::new(),
    }
}

fn tests_pass(flow: Flow) -> Input {
    Input::ReportTests {
        judged: Ok(green(flow)),
    }
}

fn tests_fail() -> Input {
    let reasons = NotGreen {
        still_red: vec!["test_new".to_owned()],
        ..NotGreen::default()
    };
    Input::ReportTests {
        judged: Err(Box::new(reasons)),
    }
}

fn approve(approval: Approval) -> Input {
    Input::ApproveMerge { approval }
}

fn reject() -> Input {
    Input::RejectMerge {
        reason: "no".to_owned(),
    }
}

fn finish() -> Input {
    Input::FinishCommit {
        commit: "abc".to_owned(),
    }
}

fn revise(files: &[ChangedFile<'_>]) -> Input {
    Input::Revise {
        changes: Changes::of(files),
    }
}

/// Every kind of input, with evidence that fits a test-first task.
fn inputs() -> Vec<Input> {
    vec![
        Input::SendTask,
        switch_to(Mode::Debug, SwitchAnswer::Allowed),
        Input::GrantExemption {
            exemption: exemption(),
        },
        plan(PlanKind::Change),
        start_coding(),
        submit(&[TEST, SOURCE]),
        tests_pass(Flow::TestFirst),
        approve(person()),
        reject(),
        Input::ReopenTests { approval: person() },
        Input::RequestTests,
        finish(),
        revise(&[TEST]),
        Input::Cancel,
    ]
}

/// A workflow after some inputs, all of which must be accepted.
fn after(inputs: impl IntoIterator<Item = Input>) -> Workflow {
    let mut workflow = Workflow::default();
    let mut events = Vec::new();
    for input in inputs {
        let name = input.name();
        let step = workflow.step(input);
        events.extend(step.unwrap_or_else(|error| panic!("{name}: {error:?}")));
    }
    assert_eq!(Workflow::replay(&events), Ok(workflow.clone()));
    workflow
}

fn explore() -> Input {
    switch_to(Mode::Explore, SwitchAnswer::Allowed)
}

/// A strict task in one of its states, or one that explores.
fn in_state(state: State) -> Workflow {
    let strict = [
        Input::SendTask,
        plan(PlanKind::Change),
        start_coding(),
        submit(&[TEST, SOURCE]),
        tests_pass(Flow::TestFirst),
        approve(automatic()),
    ];
    let explored = [
        explore(),
        Input::SendTask,
        plan(PlanKind::Change),
        submit(&[SOURCE]),
        tests_pass(Flow::Explore),
        Input::RequestTests,
    ];
    let workflow = match state {
        State::Idle => after(strict.into_iter().take(0)),
        State::Planning => after(strict.into_iter().take(1)),
        State::TestWriting => after(strict.into_iter().take(2)),
        State::CodeWriting => after(strict.into_iter().take(3)),
        State::Validating => after(strict.into_iter().take(4)),
        State::Reviewing => after(strict.into_iter().take(5)),
        State::Committing => after(strict.into_iter().take(6)),
        State::Exploring => after(explored.into_iter().take(3)),
        State::RetroactiveTesting => after(explored),
    };
    assert_eq!(workflow.state(), state);
    workflow
}

fn state_after(mut workflow: Workflow, input: Input) -> State {
    workflow.step(input).unwrap();
    workflow.state()
}

fn guard_of(mut workflow: Workflow, input: Input) -> Guard {
    let before = workflow.clone();
    let error = workflow.step(input).unwrap_err();
    assert_eq!(workflow, before, "a refused input changes nothing");
    error.guard()
}

#[test]
fn every_input_in_every_state() {
    let mut table = String::new();
    for state in STATES {
        for input in inputs() {
            let name = input.name();
            let mut workflow = in_state(state);
            let result = match workflow.step(input) {
                Ok(_) => workflow.state().to_string(),
                Err(error) => format!("! {:?}", error.guard()),
            };
            table.push_str(&format!("{:<19} {name:<15} {result}\n", state.as_str()));
        }
    }
    let golden = include_str!("table.txt");
    assert_eq!(table, golden, "the table of transitions changed:\n{table}");
}

#[test]
fn the_strict_rows() {
    use State::*;
    assert_eq!(state_after(in_state(Idle), Input::SendTask), Planning);
    assert_eq!(
        state_after(in_state(Planning), plan(PlanKind::Change)),
        TestWriting
    );
    assert_eq!(
        state_after(in_state(Planning), plan(PlanKind::Refactor)),
        CodeWriting
    );
    assert_eq!(
        state_after(in_state(TestWriting), start_coding()),
        CodeWriting
    );
    assert_eq!(
        state_after(in_state(CodeWriting), submit(&[TEST, SOURCE])),
        Validating
    );
    assert_eq!(
        state_after(in_state(Validating), tests_pass(Flow::TestFirst)),
        Reviewing
    );
    assert_eq!(state_after(in_state(Validating), tests_fail()), CodeWriting);
    assert_eq!(
        state_after(in_state(Reviewing), approve(automatic())),
        Committing
    );
    assert_eq!(state_after(in_state(Reviewing), reject()), CodeWriting);
    let reopened = Input::ReopenTests { approval: person() };
    let mut workflow = in_state(CodeWriting);
    workflow.step(reopened).unwrap();
    assert_eq!((workflow.state(), workflow.red()), (TestWriting, None));
    assert_eq!(state_after(in_state(Committing), finish()), Idle);
    for state in STATES {
        assert_eq!(state_after(in_state(state), Input::Cancel), Idle);
    }
}

#[test]
fn the_explore_rows() {
    use State::*;
    let start = || vec![explore(), Input::SendTask, plan(PlanKind::Change)];
    assert_eq!(after(start()).state(), Exploring);
    let submitted = || [start(), vec![submit(&[SOURCE])]].concat();
    assert_eq!(after(submitted()).state(), Validating);
    assert_eq!(state_after(after(submitted()), tests_fail()), Exploring);
    let reviewed = || [submitted(), vec![tests_pass(Flow::Explore)]].concat();
    assert_eq!(after(reviewed()).state(), Reviewing);
    assert_eq!(after(reviewed()).standing(), Some(Standing::Unverified));
    assert_eq!(
        state_after(after(reviewed()), Input::RequestTests),
        RetroactiveTesting
    );
    let retroactive = || [reviewed(), vec![Input::RequestTests]].concat();
    assert_eq!(
        state_after(after(retroactive()), submit(&[SOURCE, TEST])),
        Validating
    );
    assert_eq!(guard_of(after(reviewed()), reject()), Guard::TestFirst);
}

#[test]
fn every_guard_fails_by_its_name() {
    use State::*;
    let mut seen = BTreeSet::new();
    let mut check = |guard: Guard, workflow: Workflow, input: Input| {
        assert_eq!(guard_of(workflow, input), guard);
        seen.insert(guard);
    };
    check(Guard::InPlace, in_state(Idle), plan(PlanKind::Change));
    let locked = || Input::CompletePlan {
        kind: PlanKind::Change,
        baseline: baseline(),
        budget: LOCKED,
    };
    check(
        Guard::BudgetOpen,
        after([explore(), Input::SendTask]),
        locked(),
    );
    let nothing = Input::CompletePlan {
        kind: PlanKind::Refactor,
        baseline: Baseline::of(&run(&[("old", Outcome::Failed)])),
        budget: Budget::Open,
    };
    check(Guard::PassingTests, in_state(Planning), nothing);
    let not_red = Input::StartCoding {
        judged: Err(NotRed::NoTests),
        changes: Changes::of(&[TEST]),
    };
    check(Guard::RedTest, in_state(TestWriting), not_red);
    let early = Input::StartCoding {
        judged: Ok(red()),
        changes: Changes::of(&[TEST, SOURCE]),
    };
    check(Guard::OnlyTests, in_state(TestWriting), early);
    let other = ChangedFile {
        after: Some("def f(): return 1\n"),
        ..SOURCE
    };
    check(
        Guard::OnlyTests,
        in_state(RetroactiveTesting),
        submit(&[other, TEST]),
    );
    check(
        Guard::SomethingChanged,
        in_state(RetroactiveTesting),
        submit(&[SOURCE]),
    );
    check(
        Guard::SomethingChanged,
        in_state(CodeWriting),
        submit(&[TEST]),
    );
    check(Guard::SomethingChanged, in_state(Exploring), submit(&[]));
    let weaker = ChangedFile {
        after: Some("def test_new():\n    pass\n"),
        ..TEST
    };
    check(
        Guard::Frozen,
        in_state(CodeWriting),
        submit(&[weaker, SOURCE]),
    );
    check(Guard::Frozen, in_state(CodeWriting), submit(&[SOURCE]));
    let refactoring = || after([Input::SendTask, plan(PlanKind::Refactor)]);
    check(Guard::Frozen, refactoring(), submit(&[TEST, SOURCE]));
    check(
        Guard::OwnEvidence,
        in_state(Validating),
        tests_pass(Flow::Explore),
    );
    check(
        Guard::OwnEvidence,
        in_state(Validating),
        tests_pass(Flow::Refactor),
    );
    let unfrozen = ChangedFile {
        after: Some("def test_new():\n    g()\n"),
        ..TEST
    };
    let foreign = Input::StartCoding {
        judged: Ok(red()),
        changes: Changes::of(&[unfrozen]),
    };
    check(Guard::OwnEvidence, in_state(TestWriting), foreign);
    check(
        Guard::Person,
        in_state(CodeWriting),
        Input::ReopenTests {
            approval: automatic(),
        },
    );
    check(
        Guard::TestFirst,
        refactoring(),
        Input::ReopenTests { approval: person() },
    );
    check(Guard::Explores, in_state(Reviewing), Input::RequestTests);
    let exempt = after([
        Input::SendTask,
        Input::GrantExemption {
            exemption: exemption(),
        },
        plan(PlanKind::Change),
    ]);
    check(Guard::Exemption, exempt, submit(&[SOURCE, TEST]));
    assert_eq!(seen, Guard::ALL.into(), "each guard is seen to fail");
}

#[test]
fn sensitive_changes_need_a_person() {
    let edited = ChangedFile {
        before: Some("def test_old():\n    assert 1\n"),
        ..TEST
    };
    let reviewed = after([
        explore(),
        Input::SendTask,
        plan(PlanKind::Change),
        submit(&[SOURCE, edited]),
        tests_pass(Flow::Explore),
    ]);
    assert_eq!(reviewed.sensitive(), ["/tests/test_a.py"]);
    assert_eq!(
        guard_of(reviewed.clone(), approve(automatic())),
        Guard::Person
    );
    assert_eq!(state_after(reviewed, approve(person())), State::Committing);
}

#[test]
fn a_refused_switch_means_strict() {
    for refusal in [
        Input::SwitchMode {
            to: Mode::Debug,
            answer: SwitchAnswer::Refused,
            budget: Budget::Open,
        },
        Input::SwitchMode {
            to: Mode::Debug,
            answer: SwitchAnswer::Allowed,
            budget: LOCKED,
        },
    ] {
        let mut workflow = in_state(State::Exploring);
        assert_eq!(workflow.mode(), Mode::Explore);
        workflow.step(refusal).unwrap();
        assert_eq!(
            (workflow.mode(), workflow.state()),
            (Mode::Strict, State::Planning)
        );
        assert_eq!(workflow.flow(), None, "what was explored is planned again");
    }
    let mut workflow = in_state(State::CodeWriting);
    workflow
        .step(switch_to(Mode::Explore, SwitchAnswer::Refused))
        .unwrap();
    assert_eq!(
        (workflow.mode(), workflow.state()),
        (Mode::Strict, State::CodeWriting)
    );
    assert!(workflow.red().is_some(), "strict stays strict");
}

#[test]
fn a_switch_that_changes_the_way_starts_with_the_plan() {
    let mut workflow = in_state(State::CodeWriting);
    workflow.step(explore()).unwrap();
    assert_eq!((workflow.state(), workflow.red()), (State::Planning, None));
    let mut workflow = in_state(State::Exploring);
    workflow
        .step(switch_to(Mode::Debug, SwitchAnswer::Allowed))
        .unwrap();
    assert_eq!(
        workflow.state(),
        State::Exploring,
        "debug goes the same way"
    );
}

#[test]
fn exempt_work_is_committed_as_such() {
    let workflow = after([
        Input::SendTask,
        Input::GrantExemption {
            exemption: exemption(),
        },
        Input::CompletePlan {
            kind: PlanKind::Change,
            baseline: baseline(),
            budget: LOCKED,
        },
        submit(&[SOURCE]),
        tests_pass(Flow::Exempt),
        approve(automatic()),
    ]);
    let category = Category::Documentation;
    assert_eq!(workflow.standing(), Some(Standing::Exempt { category }));
    assert_eq!(workflow.mode(), Mode::Strict);
}

#[test]
fn a_verified_commit_says_so_and_forgets_its_task() {
    let mut workflow = in_state(State::Committing);
    let events = workflow.step(finish()).unwrap();
    let expected = Event::Committed {
        commit: "abc".to_owned(),
        standing: Standing::Verified,
    };
    assert_eq!(events, [expected]);
    assert_eq!(workflow, Workflow::default());
}

#[test]
fn an_uncovered_refactoring_ends_unverified() {
    let workflow = after([
        Input::SendTask,
        plan(PlanKind::Refactor),
        submit(&[SOURCE]),
        tests_pass(Flow::Refactor),
        approve(automatic()),
    ]);
    assert_eq!(workflow.standing(), Some(Standing::Unverified));
}

#[test]
fn a_large_baseline_is_recorded_in_pieces_that_fit() {
    let names: Vec<String> = (0..5_000)
        .map(|n| format!("{}{n}", "x".repeat(200)))
        .collect();
    let results: Vec<(&str, Outcome)> = names
        .iter()
        .map(|n| (n.as_str(), Outcome::Passed))
        .collect();
    let baseline = Baseline::of(&run(&results));
    let mut workflow = after([Input::SendTask]);
    let input = Input::CompletePlan {
        kind: PlanKind::Change,
        baseline: baseline.clone(),
        budget: Budget::Open,
    };
    let events = workflow.step(input).unwrap();
    assert!(events.len() > 10);
    for event in &events {
        assert!(serde_json::to_string(event).unwrap().len() < 256 * 1024);
    }
    assert_eq!(*workflow.baseline(), baseline);
}

/// What was taken back proves nothing any more; tests that are still those
/// which failed do.
#[test]
fn going_back_voids_what_it_takes_away() {
    let mut workflow = in_state(State::Reviewing);
    workflow.step(revise(&[TEST, SOURCE])).unwrap();
    assert_eq!(workflow.state(), State::CodeWriting);
    assert!(workflow.red().is_some() && workflow.green().is_none());
    assert_eq!(
        guard_of(workflow.clone(), approve(person())),
        Guard::InPlace
    );

    let edited = ChangedFile {
        after: Some("def test_new():\n    assert f() == 1\n"),
        ..TEST
    };
    for files in [&[][..], &[SOURCE], &[edited, SOURCE]] {
        for state in [State::CodeWriting, State::Validating, State::Reviewing] {
            let mut workflow = in_state(state);
            workflow.step(revise(files)).unwrap();
            assert_eq!(workflow.state(), State::TestWriting, "{state}");
            assert!(workflow.red().is_none() && workflow.green().is_none());
        }
    }
    // The same work again comes to the same end.
    let mut workflow = in_state(State::Reviewing);
    workflow.step(revise(&[])).unwrap();
    workflow.step(start_coding()).unwrap();
    workflow.step(submit(&[TEST, SOURCE])).unwrap();
    workflow.step(tests_pass(Flow::TestFirst)).unwrap();
    assert_eq!(workflow.standing(), Some(Standing::Verified));

    for state in [State::Exploring, State::RetroactiveTesting] {
        assert_eq!(state_after(in_state(state), revise(&[])), State::Exploring);
    }
    let kept = after([Input::SendTask, plan(PlanKind::Refactor), submit(&[SOURCE])]);
    assert_eq!(state_after(kept, revise(&[])), State::CodeWriting);
}

/// One event of each kind, as a session would record it.
fn every_event() -> Vec<Event> {
    let mut events = Vec::new();
    for inputs in [
        vec![
            Input::SendTask,
            plan(PlanKind::Change),
            start_coding(),
            Input::ReopenTests { approval: person() },
            start_coding(),
            submit(&[TEST, SOURCE]),
            tests_fail(),
            submit(&[TEST, SOURCE]),
            tests_pass(Flow::TestFirst),
            reject(),
            revise(&[TEST]),
            Input::Cancel,
        ],
        vec![
            explore(),
            Input::SendTask,
            plan(PlanKind::Change),
            submit(&[SOURCE]),
            tests_pass(Flow::Explore),
            Input::RequestTests,
            switch_to(Mode::Debug, SwitchAnswer::Refused),
        ],
        vec![
            Input::SendTask,
            Input::GrantExemption {
                exemption: exemption(),
            },
            plan(PlanKind::Change),
            submit(&[SOURCE]),
            tests_pass(Flow::Exempt),
            approve(automatic()),
            finish(),
        ],
    ] {
        let mut workflow = Workflow::default();
        for input in inputs {
            for event in workflow.step(input).unwrap() {
                let known = |other: &Event| other.name() == event.name();
                if !events.iter().any(known) {
                    events.push(event);
                }
            }
        }
    }
    events
}

/// What was recorded once is read for ever; a change here needs an upcaster.
#[test]
fn recorded_events_are_written_and_read_as_in_version_1() {
    let golden = include_str!("../../tests/golden/events-v1.jsonl");
    let mut written = String::new();
    for event in every_event() {
        written.push_str(&serde_json::to_string(&event).unwrap());
        written.push('\n');
    }
    assert_eq!(
        written, golden,
        "the form of recorded events changed:\n{written}"
    );
    let read: Vec<Event> = golden
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(read, every_event());
    assert_eq!(read.len(), 17, "every kind is there");
    for event in read {
        let text = serde_json::to_string(&event).unwrap();
        assert!(
            text.starts_with(&format!("{{\"type\":\"{}\"", event.name())),
            "{text}"
        );
    }
}

#[test]
fn events_out_of_order_are_refused() {
    let events = [
        Event::TaskStarted,
        Event::MergeApproved { approval: person() },
    ];
    let error = Workflow::replay(&events).unwrap_err();
    assert_eq!(
        error,
        ReplayError {
            event: "merge_approved",
            state: State::Planning
        }
    );
    let lost = [Event::TaskStarted, Event::TaskStarted];
    assert!(Workflow::replay(&lost).is_err());
}
