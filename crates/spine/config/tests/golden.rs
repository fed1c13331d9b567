//! Files of every version ever written are still read, and mean the same.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::path::PathBuf;

use fluffy_base::{ByteSize, Span};
use fluffy_config::keys::{KEYS, PROVIDER_KEYS, ProjectRule};
use fluffy_config::{
    ColorMode, FileText, KeySource, Origin, ProcessEngine, ProjectText, Settings, Sources, Wire,
};

fn file(text: &str) -> FileText {
    FileText {
        path: PathBuf::from("/golden.toml"),
        text: text.to_owned(),
    }
}

#[test]
fn the_users_file_of_version_1() {
    let sources = Sources {
        user: Some(file(include_str!("golden/user-v1.toml"))),
        ..Sources::default()
    };
    let settings = Settings::resolve(&sources).unwrap();
    let values = settings.values();
    assert_eq!(values.model.as_deref(), Some("openai/some-model"));
    assert_eq!(
        values.budget.wall_time,
        Span {
            millis: 45 * 60_000
        }
    );
    assert_eq!(values.budget.tokens, 1_000_000);
    assert_eq!(values.ledger.retention_size, ByteSize(512 << 20));
    assert_eq!(values.ledger.witness.len(), 2);
    assert_eq!(values.policy.trial_last, 1000);
    assert_eq!(values.ui.color, ColorMode::Never);
    assert_eq!(values.providers["openai"].wire, Some(Wire::Chat));
    assert_eq!(
        values.providers["anthropic"].api_key,
        Some(KeySource::Env("ANTHROPIC_API_KEY".to_owned()))
    );
    let later = [
        include_str!("golden/user-v1-sandbox.toml"),
        include_str!("golden/user-v1-tasks.toml"),
        include_str!("golden/user-v1-coverage.toml"),
        include_str!("golden/user-v1-plugins.toml"),
        include_str!("golden/user-v1-channels.toml"),
    ];
    let [sandbox, tasks, coverage, plugins, channels] = later.map(|text| {
        let sources = Sources {
            user: Some(file(text)),
            ..Sources::default()
        };
        Settings::resolve(&sources).unwrap()
    });
    assert_eq!(sandbox.values().sandbox.engine, ProcessEngine::Bwrap);
    assert_eq!(tasks.values().tasks.total, 6);
    let report = coverage.values().tests.coverage.report.as_deref();
    assert_eq!(report, Some("coverage/lcov.info"));
    assert_eq!(channels.values().channels.senders.len(), 2);
    // Each key of the registry is in a file: a new key needs a new golden file.
    for key in KEYS {
        let is_set =
            |settings: &Settings| matches!(settings.origin(key.name), Some(Origin::User { .. }));
        let all = [&settings, &sandbox, &tasks, &coverage, &plugins, &channels];
        let set = all.into_iter().any(is_set);
        assert!(set, "{}", key.name);
    }
    for key in PROVIDER_KEYS {
        let set = |entry: &str| entry.starts_with("providers.") && entry.ends_with(key.name);
        assert!(
            settings.entries().any(|entry| set(entry.key)),
            "{}",
            key.name
        );
    }
}

#[test]
fn the_projects_file_of_version_1() {
    let files = [
        include_str!("golden/project-v1.toml"),
        include_str!("golden/project-v1-coverage.toml"),
        include_str!("golden/project-v1-plugins.toml"),
    ];
    let [first, coverage, plugins] = files.map(|text| {
        let sources = Sources {
            project: Some(ProjectText {
                file: file(text),
                reviewed: None,
            }),
            ..Sources::default()
        };
        Settings::resolve(&sources).unwrap()
    });
    for key in KEYS {
        let is_set =
            |settings: &Settings| matches!(settings.origin(key.name), Some(Origin::Project { .. }));
        let set = [&first, &coverage, &plugins].into_iter().any(is_set);
        assert_eq!(set, key.project != ProjectRule::Never, "{}", key.name);
    }
    assert_eq!(first.values().budget.subagent_depth, 0);
}
