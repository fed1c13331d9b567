//! What people see, as pictures: two widths, a pipe, with and without colour.

use std::collections::BTreeSet;

use fluffy_kernel::event::{AgentEvent, Outcome, SessionResult};
use fluffy_report::{Styling, Text};
use proptest::prelude::*;

use super::{Detail, Show, sample};

fn shown(width: Option<usize>, detail: Detail, events: &[AgentEvent]) -> Text {
    let mut show = Show::new(width, detail);
    let mut whole = Text::new();
    for event in events {
        whole.append(show.event(event));
    }
    whole
}

/// Escapes written out, so that a picture can be read.
fn coloured(text: &Text) -> String {
    text.render(Styling::Ansi).replace('\x1b', "^")
}

#[test]
fn a_session_at_80_columns() {
    let text = shown(Some(80), Detail::Normal, &sample::session());
    insta::assert_snapshot!("80_plain", text.render(Styling::Plain));
    insta::assert_snapshot!("80_colour", coloured(&text));
}

#[test]
fn a_session_at_200_columns() {
    let text = shown(Some(200), Detail::Everything, &sample::session());
    insta::assert_snapshot!("200_plain", text.render(Styling::Plain));
    insta::assert_snapshot!("200_colour", coloured(&text));
}

#[test]
fn a_session_in_a_pipe_is_whole() {
    let text = shown(None, Detail::Normal, &sample::session());
    insta::assert_snapshot!("pipe", text.render(Styling::Plain));
}

#[test]
fn no_line_is_wider_than_the_window() {
    for width in [80, 100, 200] {
        let text = shown(Some(width), Detail::Everything, &sample::session());
        for line in text.render(Styling::Plain).lines() {
            // What people copy is never broken: the head of the ledger.
            let is_whole = line.contains("sha256:");
            assert!(is_whole || line.chars().count() <= width, "{width}: {line}");
        }
    }
}

#[test]
fn no_word_is_held_back_while_a_tool_runs() {
    let mut show = Show::new(Some(80), Detail::Normal);
    show.event(&sample::text("about to be"));
    let rest = show.event(&AgentEvent::ToolStarted {
        call: "c".to_owned(),
        tool: "test.run".to_owned(),
        subject: String::new(),
    });
    assert_eq!(rest.render(Styling::Plain), " be\n");
}

#[test]
fn every_ending_has_words_of_its_own() {
    use SessionResult::{
        Budget, Cancelled, Denied, Diverged, Exempt, Failed, Unfinished, Unverified, Verified,
        Waiting,
    };
    let mut heads = Vec::new();
    for result in [
        Verified, Unverified, Exempt, Unfinished, Waiting, Budget, Denied, Cancelled, Diverged,
        Failed,
    ] {
        let ended = AgentEvent::SessionEnded(sample::ended(result.clone(), 0));
        let text = shown(Some(80), Detail::Normal, &[ended]);
        let plain = text.render(Styling::Plain);
        let says_verified = plain.contains("verified");
        assert_eq!(says_verified, result == Verified, "{plain}");
        heads.push(plain.lines().next().unwrap().to_owned());
    }
    insta::assert_snapshot!(heads.join("\n"), @r"
    Done, verified: the kernel saw 2 tests fail and then pass, unchanged
    Done, UNVERIFIED: the kernel saw 2 tests fail and then pass, unchanged
    Done, exempt from test-first:
    Not finished: the kernel saw 2 tests fail and then pass, unchanged
    Waiting for a person: the kernel saw 2 tests fail and then pass, unchanged
    A budget ran out: the kernel saw 2 tests fail and then pass, unchanged
    Denied: the kernel saw 2 tests fail and then pass, unchanged
    Stopped: the kernel saw 2 tests fail and then pass, unchanged
    Diverged from the recording:
    Failed: the kernel saw 2 tests fail and then pass, unchanged
    ");
}

#[test]
fn done_without_evidence_says_so() {
    let mut ended = sample::ended(SessionResult::Unverified, 9);
    ended.evidence.fail_to_pass.clear();
    ended.evidence.merged.clear();
    ended.evidence.commit = None;
    let text = shown(Some(80), Detail::Normal, &[AgentEvent::SessionEnded(ended)]);
    insta::assert_snapshot!(text.render(Styling::Plain), @r"
    Done, UNVERIFIED: the kernel saw 2 tests fail and then pass, unchanged
      red to green  no test was seen to fail and then pass
      still green   41 tests
      merged        nothing
      reviewed      1 decision answered by a person, 2 calls refused
      used          0 tokens in (0 cached), 0 out, price not known
      ledger        event 1,207
      sha256:9c56cc51b374c3ba189210d5b6d4bf57790d351c96c47c02190ecf1e430635ab
    ");
}

#[test]
fn coverage_and_debt_are_said() {
    use fluffy_workflow::coverage::Points;
    use fluffy_workflow::debt::{Budget, Measured};

    let mut ended = sample::ended(SessionResult::Unverified, 9);
    ended.evidence.coverage = Some(Measured {
        before: Points::hundredths(8_000),
        after: Points::hundredths(7_407),
    });
    ended.evidence.debt = Some(Budget::LockedByCoverage {
        drop: Points::hundredths(593),
    });
    let text = shown(Some(80), Detail::Normal, &[AgentEvent::SessionEnded(ended)]);
    let text = text.render(Styling::Plain);
    assert!(
        text.contains("  coverage      80.00 % before, 74.07 % now\n"),
        "{text}"
    );
    let debt = "  debt          5.93 points of coverage; explore is locked\n";
    assert!(text.contains(debt), "{text}");
}

proptest! {
    #[test]
    fn nothing_from_outside_reaches_the_terminal_raw(hostile in "[\\x00-\\u{ff}]{0,40}", width in 40usize..200) {
        let events = [
            AgentEvent::TextDelta { text: hostile.clone() },
            AgentEvent::ReasoningDelta { text: hostile.clone() },
            AgentEvent::ToolStarted { call: "c".into(), tool: hostile.clone(), subject: hostile.clone() },
            AgentEvent::ToolFinished {
                call: "c".into(),
                tool: hostile.clone(),
                outcome: Outcome::Refused,
                took_ms: 1,
                summary: hostile.clone(),
            },
            AgentEvent::TestsRan { passed: 0, failed: vec![hostile.clone()], skipped: 0, took_ms: 0 },
            AgentEvent::ApprovalWanted {
                approval: sample::APPROVAL,
                question: hostile.clone(),
                reasons: vec![hostile.clone()],
                shown: Some(hostile.clone()),
            },
            AgentEvent::Note { text: hostile.clone() },
            AgentEvent::TaskPaused { name: hostile.clone() },
            AgentEvent::TaskResumed { name: hostile.clone() },
            AgentEvent::TurnRestarted { reason: hostile },
        ];
        for width in [Some(width), None] {
            let text = shown(width, Detail::Everything, &events).render(Styling::Plain);
            let is_safe = |c: char| c == '\n' || c == '\t' || !c.is_control();
            prop_assert!(text.chars().all(is_safe), "{:?}", text);
        }
    }
}

/// `docs/agent-events.md` lists every kind and every field of it.
#[test]
fn the_documentation_of_the_stream_is_complete() {
    let page = include_str!("../../../../../../../docs/agent-events.md");
    let mut kinds = BTreeSet::new();
    for event in sample::session() {
        let value = serde_json::to_value(&event).unwrap();
        let fields = value.as_object().unwrap();
        let kind = fields["type"].as_str().unwrap();
        let (_, rest) = page
            .split_once(&format!("### `{kind}`\n"))
            .unwrap_or_else(|| panic!("no section for {kind}"));
        let section = rest.split("\n### ").next().unwrap();
        kinds.insert(kind.to_owned());
        let inner = fields
            .get("evidence")
            .and_then(|evidence| evidence.as_object());
        let inner = inner
            .into_iter()
            .flatten()
            .map(|(name, _)| format!("evidence.{name}"));
        let outer = fields.keys().filter(|name| *name != "type").cloned();
        for field in outer.chain(inner) {
            assert!(section.contains(&format!("`{field}`")), "{kind}: {field}");
        }
    }
    // A section too many, or a kind that the sample lacks.
    assert_eq!(kinds.len(), page.matches("\n### `").count());
}
