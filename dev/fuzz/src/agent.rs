//! Targets for the agent: what models, test runners and repositories say.

use fluffy_contract::model::{Message, ModelEvent, Turn};
use fluffy_models::answer::{Answer, close_open_calls};
use fluffy_models::record::Recording;
use fluffy_models::{BaseUrl, Decoder, ProviderSettings, Wire, encode};
use fluffy_tools::edit::{FileChangeKind, apply, parse as parse_patch};
use fluffy_workflow::coverage::{self, CoverageFormat};
use fluffy_workflow::project::declared::declared;
use fluffy_workflow::project::instructions::{self, Instructions};
use fluffy_workflow::project::parts::{Class, Mixture, Part, Parts, compare};
use fluffy_workflow::project::rust::regions;
use fluffy_workflow::results::{self, Exit, Format, MAX_MESSAGE, MAX_NAME, Outcome, Run};

use crate::as_text;

const WIRES: [Wire; 4] = [Wire::Responses, Wire::Chat, Wire::Anthropic, Wire::Gemini];

/// One of several, chosen by a byte.
fn pick<T: Copy>(all: &[T], byte: u8) -> Option<T> {
    all.get(usize::from(byte) % all.len().max(1)).copied()
}

/// Two bytes that choose, and the rest.
fn chosen(bytes: &[u8]) -> Option<(u8, u8, &[u8])> {
    match bytes {
        [first, second, rest @ ..] => Some((*first, *second, rest)),
        _ => None,
    }
}

/// The first byte chooses the wire format, the second the size of the pieces:
/// an answer is the same in any pieces, ends once, and can be sent back.
pub(crate) fn model_stream(bytes: &[u8]) {
    let Some((wire, size, stream)) = chosen(bytes) else {
        return;
    };
    let Some(wire) = pick(&WIRES, wire) else {
        return;
    };
    let mut turn = turn();
    let whole = decode(wire, &turn, stream, stream.len().max(1));
    assert_eq!(decode(wire, &turn, stream, usize::from(size).max(1)), whole);
    let is_last =
        |event: &ModelEvent| matches!(event, ModelEvent::Done { .. } | ModelEvent::Error(_));
    assert_eq!(whole.iter().position(is_last), whole.len().checked_sub(1));
    let mut answer = Answer::default();
    for event in &whole {
        answer.apply(event);
    }
    turn.messages.push(answer.into_message());
    close_open_calls(&mut turn.messages, "the session ended");
    for wire in WIRES {
        let settings = ProviderSettings {
            provider: "it".to_owned(),
            wire,
            base_url: base(),
        };
        assert!(encode(&turn, &settings).is_ok(), "{turn:?}");
    }
}

fn decode(wire: Wire, turn: &Turn, stream: &[u8], size: usize) -> Vec<ModelEvent> {
    let mut decoder = Decoder::new(wire, turn);
    let mut events: Vec<ModelEvent> = stream
        .chunks(size)
        .flat_map(|piece| decoder.feed(piece))
        .collect();
    events.extend(decoder.finish());
    assert!(decoder.has_ended());
    events
}

fn turn() -> Turn {
    Turn {
        model: "model".to_owned(),
        messages: vec![Message {
            role: fluffy_contract::model::Role::User,
            parts: vec![fluffy_contract::model::Part::Text {
                text: "do it".to_owned(),
                opaque: None,
            }],
        }],
        tools: Vec::new(),
        max_output_tokens: 100,
        effort: None,
        conversation: None,
    }
}

#[expect(clippy::expect_used, reason = "a constant, which every run reads")]
fn base() -> BaseUrl {
    "https://host/path".parse().expect("a plain address")
}

/// A recording that is read is the same when it was written again.
pub(crate) fn recording(bytes: &[u8]) {
    let Ok(recording) = Recording::parse(bytes) else {
        return;
    };
    let mut lines = vec![serde_json::to_string(&recording.head)];
    lines.extend(recording.turns.iter().map(serde_json::to_string));
    let written: Result<Vec<String>, _> = lines.into_iter().collect();
    let again = written.map(|lines| Recording::parse(lines.join("\n").as_bytes()));
    assert_eq!(again.ok().and_then(Result::ok), Some(recording));
}

/// An address is itself when it is shown, and stays below its path.
pub(crate) fn base_url(bytes: &[u8]) {
    let Some(text) = as_text(bytes) else { return };
    let Ok(address) = text.parse::<BaseUrl>() else {
        return;
    };
    assert_eq!(address.to_string().parse(), Ok(address.clone()));
    assert!(!address.path().ends_with('/') && !address.host().is_empty());
    assert!(!address.path().split('/').any(|part| part == ".."));
    // What goes into a request's head ends no line of it.
    let words = [address.authority(), address.path().to_owned()].concat();
    assert!(words.chars().all(|c| c.is_ascii_graphic()));
}

/// The first byte chooses the format, the second the exit code: a report
/// without trouble has results, and they agree with the exit code.
pub(crate) fn test_output(bytes: &[u8]) {
    let Some((format, code, output)) = chosen(bytes) else {
        return;
    };
    let (Some(format), Some(text)) = (pick(&Format::ALL, format), as_text(output)) else {
        return;
    };
    // The two streams of a run, where the text has a mark for it.
    let (stdout, stderr) = text.split_once('\u{0}').unwrap_or((text, ""));
    let code = i32::from(code);
    let report = results::parse(
        format,
        &Run {
            command: "test",
            root: "/w",
            stdout,
            stderr,
            exit: Exit::Code(code),
        },
    );
    let bad = |result: &results::TestResult| result.outcome > Outcome::Skipped;
    if report.trouble.is_empty() {
        assert!(!report.results.is_empty(), "nothing proves nothing");
        let any_bad = report.results.iter().any(bad);
        assert_eq!(any_bad, code != 0, "{report:?}");
    }
    for result in &report.results {
        assert!(result.name.len() <= MAX_NAME);
        let message = result.message.as_ref();
        assert!(message.is_none_or(|said| said.len() <= MAX_MESSAGE));
    }
}

/// The first byte chooses the format; never more lines reached than found.
pub(crate) fn coverage_report(bytes: &[u8]) {
    let formats = [
        CoverageFormat::Lcov,
        CoverageFormat::Cobertura,
        CoverageFormat::Istanbul,
    ];
    let Some((format, rest)) = bytes.split_first() else {
        return;
    };
    let (Some(format), Some(text)) = (pick(&formats, *format), as_text(rest)) else {
        return;
    };
    if let Ok(coverage) = coverage::parse(format, "/w", text) {
        let total = coverage.total();
        assert!(total.found > 0 && total.hit <= total.found, "{total:?}");
    }
}

/// A patch that is read names each file once, and applying it to anything
/// ends in a text or in a reason.
pub(crate) fn agent_patch(bytes: &[u8]) {
    let Some(text) = as_text(bytes) else { return };
    let Ok(changes) = parse_patch(text) else {
        return;
    };
    let mut seen = std::collections::BTreeSet::new();
    for change in &changes {
        assert!(seen.insert(&change.path));
        let FileChangeKind::Update { hunks, .. } = &change.kind else {
            continue;
        };
        // Without the signs in front, its own lines are where it would fit.
        let bare: Vec<&str> = text
            .lines()
            .map(|line| line.strip_prefix([' ', '-', '+']).unwrap_or(line))
            .collect();
        for before in ["", "a\n", text, &bare.join("\n")] {
            if let Ok(applied) = apply(before, hunks) {
                assert_eq!(applied.landed.len(), hunks.len());
                assert!(applied.text.len() <= before.len() + 2 * text.len());
            }
        }
    }
}

/// The first byte chooses the kind of file: a version differs from itself in
/// nothing, and what is found in a text is in that text.
pub(crate) fn source_parts(bytes: &[u8]) {
    let kinds = [
        (Mixture::Rust, "a.rs"),
        (Mixture::Cargo, "a.py"),
        (Mixture::Package, "a.js"),
        (Mixture::Pyproject, "a.go"),
        (Mixture::SetupCfg, "a.ts"),
        (Mixture::Makefile, "a"),
        (Mixture::GoMod, ""),
    ];
    let Some((kind, rest)) = bytes.split_first() else {
        return;
    };
    let (Some((mixture, path)), Some(text)) = (pick(&kinds, *kind), as_text(rest)) else {
        return;
    };
    let class = Class::Mixed(mixture);
    assert!(compare(class, Some(text), Some(text)).is_empty());
    let parts = Parts::of(class, Some(text));
    let found = [Part::Test, Part::Source, Part::Configuration];
    assert!(text.trim().is_empty() || found.iter().any(|part| parts.digest(*part).is_some()));
    let lines = text.split('\n').count();
    for test in declared(path, text) {
        assert!((1..=lines).contains(&(test.line as usize)), "{test:?}");
    }
    for region in regions(text).into_iter().flatten() {
        assert!(text.get(region.bytes.clone()).is_some(), "{region:?}");
    }
}

/// A skill's head is bounded, and instructions are cut to what fits.
pub(crate) fn skill(bytes: &[u8]) {
    let Some(text) = as_text(bytes) else { return };
    if let Some(skill) = instructions::skill("SKILL.md", text) {
        assert!(!skill.name.is_empty() && skill.name.len() <= 64);
        assert!(!skill.name.contains('\n') && !skill.description.contains('\n'));
        assert_eq!(instructions::list(&[skill]).lines().count(), 1);
    }
    let one = |text: &str| Instructions {
        path: "AGENTS.md".to_owned(),
        text: text.to_owned(),
    };
    let shown = instructions::render(&[one(text), one(&text.repeat(64))]);
    assert!(shown.len() <= instructions::MAX_BYTES + 100);
}
