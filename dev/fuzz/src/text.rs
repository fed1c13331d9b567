//! Targets for text that people see: configuration, redaction, terminals.

use std::sync::LazyLock;

use fluffy_config::{FileText, ProjectText, Settings, Sources};
use fluffy_report::{sanitize_for_terminal, sanitize_line};
use fluffy_secret::{Redactor, SecretString};

use crate::as_text;

/// A value that no output may ever show.
const MARKED: &str = "marked-secret-value";

/// Compiled once: its patterns are far slower to build than to use.
static REDACTOR: LazyLock<Option<Redactor>> = LazyLock::new(|| {
    let mut redactor = Redactor::new(&[]).ok()?;
    redactor
        .register(SecretString::from(MARKED.to_owned()))
        .ok()?;
    Some(redactor)
});

/// Configuration of a project and of a user is read whole, or refused.
pub(crate) fn config_toml(bytes: &[u8]) {
    let Some(text) = as_text(bytes) else {
        return;
    };
    let file = || FileText {
        path: "config.toml".into(),
        text: text.to_owned(),
    };
    let user = Sources {
        user: Some(file()),
        ..Sources::default()
    };
    let project = Sources {
        project: Some(ProjectText {
            file: file(),
            reviewed: None,
        }),
        ..Sources::default()
    };
    for sources in [user, project] {
        if let Err(rejected) = Settings::resolve(&sources) {
            assert!(!rejected.problems.is_empty());
        }
    }
}

/// No registered secret survives, and a second pass finds nothing.
pub(crate) fn redaction(bytes: &[u8]) {
    let Some(text) = as_text(bytes) else {
        return;
    };
    let redactor = REDACTOR.as_ref();
    assert!(redactor.is_some(), "the redactor cannot be built");
    if let Some(redactor) = redactor {
        let once = redactor.redact(text);
        assert!(!once.text.contains(MARKED));
        let twice = redactor.redact(&once.text);
        assert_eq!((twice.text, twice.count), (once.text, 0));
    }
}

/// Nothing that a terminal acts on is left, and nothing is escaped twice.
pub(crate) fn terminal(bytes: &[u8]) {
    let Some(text) = as_text(bytes) else {
        return;
    };
    let clean = sanitize_for_terminal(text);
    assert!(!clean.contains(|c: char| c.is_control() && !matches!(c, '\n' | '\t')));
    assert_eq!(sanitize_for_terminal(&clean), clean);
    let line = sanitize_line(text);
    assert!(!line.contains(char::is_control));
}
