//! What always holds, whatever is thrown at a workflow.

use proptest::prelude::*;

use super::*;
use crate::coverage::Points;

/// What always holds of a workflow, as sentences.
type Invariant = (&'static str, fn(&Workflow) -> bool);

const INVARIANTS: [Invariant; 6] = [
    (
        "source is written in strict only after red, or to refactor",
        |w| {
            let red = w
                .task
                .red
                .as_ref()
                .is_some_and(|red| !red.tests().is_empty());
            let keeps = w.task.baseline.passing().next().is_some();
            w.state != State::CodeWriting
                || w.mode == Mode::Strict
                    && match w.task.flow {
                        Some(Flow::TestFirst) => red,
                        Some(Flow::Refactor) => keeps,
                        Some(Flow::Explore | Flow::Exempt) | None => false,
                    }
        },
    ),
    ("only explore, debug or an exemption explores", |w| {
        !matches!(w.state, State::Exploring | State::RetroactiveTesting)
            || w.mode != Mode::Strict
            || w.task.exemption.is_some()
    }),
    ("what is reviewed has evidence of its own", |w| {
        !matches!(w.state, State::Reviewing | State::Committing)
            || w.task.green.as_ref().is_some_and(|green| w.is_own(green))
    }),
    ("a sensitive change is committed only by a person", |w| {
        w.state != State::Committing
            || w.task.sensitive.is_empty()
            || w.task.approval.as_ref().is_some_and(Approval::is_person)
    }),
    ("tests that are written again have no evidence", |w| {
        w.state != State::TestWriting || w.task.red.is_none() && w.task.green.is_none()
    }),
    ("nothing is known while there is no task", |w| {
        w.state != State::Idle || w.task == Task::default()
    }),
];

/// Each invariant notices a workflow that breaks it.
#[test]
fn planted_faults_are_noticed() {
    let faulty = |state: State, plant: fn(&mut Workflow)| {
        let mut workflow = in_state(state);
        plant(&mut workflow);
        workflow
    };
    let faults = [
        faulty(State::CodeWriting, |w| w.task.red = None),
        faulty(State::Exploring, |w| w.mode = Mode::Strict),
        faulty(State::Reviewing, |w| {
            w.task.green = Some(green(Flow::Explore))
        }),
        faulty(State::Committing, |w| {
            w.task.sensitive = vec!["/a".to_owned()]
        }),
        faulty(State::CodeWriting, |w| w.state = State::TestWriting),
        faulty(State::CodeWriting, |w| w.state = State::Idle),
    ];
    for ((sentence, holds), faulty) in INVARIANTS.iter().zip(&faults) {
        assert!(!holds(faulty), "not noticed: {sentence}");
    }
    for state in STATES {
        for (sentence, holds) in INVARIANTS {
            assert!(holds(&in_state(state)), "{state}: {sentence}");
        }
    }
}

/// Whether a record never calls a commit verified without the evidence in it:
/// the same task went red and then green by the same names, or kept its tests.
fn is_honest(events: &[Event]) -> bool {
    let (mut flow, mut red, mut green) = (None, None, None);
    for event in events {
        match event {
            Event::TaskStarted | Event::Cancelled => (flow, red, green) = (None, None, None),
            Event::PlanCompleted { flow: chosen } => {
                (flow, red, green) = (Some(*chosen), None, None)
            }
            Event::RedSeen { red: seen } => red = Some(seen),
            Event::TestsReopened { .. } => red = None,
            Event::Revised { red: after } => {
                green = None;
                if *after == RedAfter::Void {
                    red = None;
                }
            }
            Event::ValidationPassed { green: seen } => green = Some(seen),
            Event::ChangesSubmitted { .. } | Event::ValidationFailed { .. } => green = None,
            Event::Committed {
                standing: Standing::Verified,
                ..
            } => {
                let went_green =
                    |name: &String| green.is_some_and(|g: &Green| g.fail_to_pass().contains(name));
                let honest = match flow {
                    Some(Flow::TestFirst) => red
                        .is_some_and(|r: &Red| r.tests().iter().all(|test| went_green(&test.name))),
                    Some(Flow::Refactor) => {
                        green.is_some_and(|g| *g.proof() == Proof::GreenToGreen)
                    }
                    Some(Flow::Explore | Flow::Exempt) | None => false,
                };
                if !honest {
                    return false;
                }
            }
            Event::Committed { .. }
            | Event::ModeSwitched { .. }
            | Event::SwitchRefused { .. }
            | Event::ExemptionGranted { .. }
            | Event::BaselineSeen { .. }
            | Event::MergeApproved { .. }
            | Event::MergeRejected { .. }
            | Event::TestsRequested => {}
        }
    }
    true
}

/// The record of a whole strict task.
fn strict_record() -> Vec<Event> {
    let mut workflow = Workflow::default();
    let mut events = Vec::new();
    for input in [
        Input::SendTask,
        plan(PlanKind::Change),
        start_coding(),
        submit(&[TEST, SOURCE]),
        tests_pass(Flow::TestFirst),
        approve(automatic()),
        finish(),
    ] {
        events.extend(workflow.step(input).unwrap());
    }
    events
}

#[test]
fn a_dishonest_record_is_noticed() {
    let honest = strict_record();
    assert!(is_honest(&honest));
    let without = |drop: fn(&Event) -> bool| {
        honest
            .iter()
            .filter(|event| !drop(event))
            .cloned()
            .collect::<Vec<_>>()
    };
    assert!(!is_honest(&without(|event| matches!(
        event,
        Event::RedSeen { .. }
    ))));
    assert!(!is_honest(&without(|event| matches!(
        event,
        Event::ValidationPassed { .. }
    ))));
    assert!(!is_honest(&without(|event| matches!(
        event,
        Event::PlanCompleted { .. }
    ))));
}

/// Everything that can be thrown at a workflow, fitting or not.
fn any_input() -> impl Strategy<Value = Input> {
    let modes = prop_oneof![Just(Mode::Strict), Just(Mode::Explore), Just(Mode::Debug)];
    let answers = prop_oneof![Just(SwitchAnswer::Allowed), Just(SwitchAnswer::Refused)];
    let budgets = prop_oneof![
        4 => Just(Budget::Open),
        1 => Just(LOCKED),
        1 => Just(Budget::Warned { drop: Points::hundredths(300) }),
    ];
    let kinds = prop_oneof![2 => Just(PlanKind::Change), 1 => Just(PlanKind::Refactor)];
    let approvals = prop_oneof![Just(person()), Just(automatic())];
    let weaker = ChangedFile {
        after: Some("def test_new():\n    pass\n"),
        ..TEST
    };
    let edited = ChangedFile {
        before: Some("def test_old():\n    assert 1\n"),
        ..TEST
    };
    let files = prop_oneof![
        1 => Just(vec![]),
        3 => Just(vec![SOURCE]),
        2 => Just(vec![TEST]),
        6 => Just(vec![TEST, SOURCE]),
        1 => Just(vec![weaker, SOURCE]),
        1 => Just(vec![edited, SOURCE]),
    ];
    let flows = prop_oneof![
        Just(Flow::TestFirst),
        Just(Flow::Refactor),
        Just(Flow::Explore),
        Just(Flow::Exempt),
    ];
    prop_oneof![
        4 => Just(Input::SendTask),
        1 => (modes, answers, budgets.clone())
            .prop_map(|(to, answer, budget)| Input::SwitchMode { to, answer, budget }),
        1 => Just(Input::GrantExemption { exemption: exemption() }),
        4 => (kinds, budgets, any::<bool>()).prop_map(|(kind, budget, full)| Input::CompletePlan {
            kind,
            baseline: if full { baseline() } else { Baseline::default() },
            budget,
        }),
        4 => (any::<bool>(), files.clone()).prop_map(|(is_red, files)| Input::StartCoding {
            judged: if is_red { Ok(red()) } else { Err(NotRed::NothingNew) },
            changes: Changes::of(&files),
        }),
        1 => files.clone().prop_map(|files| revise(&files)),
        6 => files.prop_map(|files| submit(&files)),
        6 => flows.prop_map(tests_pass),
        1 => Just(tests_fail()),
        4 => approvals.clone().prop_map(approve),
        1 => Just(reject()),
        1 => approvals.prop_map(|approval| Input::ReopenTests { approval }),
        1 => Just(Input::RequestTests),
        2 => Just(finish()),
        1 => Just(Input::Cancel),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever is thrown at it, the invariants hold after every step, and
    /// replaying what was recorded gives the same workflow.
    #[test]
    fn invariants_hold_and_events_are_the_state(inputs in proptest::collection::vec(any_input(), 1..60)) {
        let mut workflow = Workflow::default();
        let mut recorded = Vec::new();
        for input in inputs {
            let before = workflow.clone();
            let refused_switch = matches!(
                input,
                Input::SwitchMode { answer: SwitchAnswer::Refused, .. }
            );
            match workflow.step(input) {
                Ok(events) => {
                    if refused_switch {
                        prop_assert_eq!(workflow.mode(), Mode::Strict);
                    }
                    recorded.extend(events);
                }
                Err(_) => prop_assert_eq!(&workflow, &before),
            }
            for (sentence, holds) in INVARIANTS {
                prop_assert!(holds(&workflow), "{}: {:?}", sentence, workflow);
            }
            prop_assert!(is_honest(&recorded), "{:?}", recorded);
            let text = serde_json::to_string(&recorded).unwrap();
            let read: Vec<Event> = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(Workflow::replay(&read), Ok(workflow.clone()));
        }
    }

    /// A log with a hole is noticed or gives a state that is no further on.
    #[test]
    fn a_red_test_cannot_be_left_out_of_the_record(drop_at in 0usize..6) {
        let mut events = strict_record();
        events.pop();
        prop_assume!(drop_at < events.len());
        // A piece of the baseline moves nothing; its loss shows in the evidence.
        let dropped = events.remove(drop_at);
        match Workflow::replay(&events) {
            Err(_) => {}
            Ok(replayed) => {
                let own = replayed.green().is_none_or(|green| replayed.is_own(green));
                let moved = replayed.state() == State::Committing;
                prop_assert!(!moved || !own, "{:?} was not missed", dropped);
            }
        }
    }
}
