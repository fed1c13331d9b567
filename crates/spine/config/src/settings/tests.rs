//! The layers together: who wins, what is refused, and where it says so.

use fluffy_base::ByteSize;
use proptest::prelude::*;

use super::*;
use crate::values::{ColorMode, KeySource, Wire};

fn user(text: &str) -> Sources {
    Sources {
        user: Some(file("/home/me/.config/fluffy/config.toml", text)),
        ..Sources::default()
    }
}

fn project(text: &str) -> Sources {
    Sources {
        project: Some(ProjectText {
            file: file("/p/.fluffy/config.toml", text),
            reviewed: None,
        }),
        ..Sources::default()
    }
}

fn file(path: &str, text: &str) -> FileText {
    FileText {
        path: path.into(),
        text: text.to_owned(),
    }
}

fn flag(name: &str, key: &str, value: &str) -> Flag {
    Flag {
        name: name.to_owned(),
        key: key.to_owned(),
        value: value.to_owned(),
    }
}

/// Every problem as `place: text; fix`.
fn problems(sources: &Sources) -> Vec<String> {
    let rejected = Settings::resolve(sources).unwrap_err();
    let line = |problem: &Problem| format!("{}: {problem}; {}", problem.place(), problem.fix());
    rejected.problems.iter().map(line).collect()
}

#[test]
fn nothing_at_all_means_the_defaults() {
    let settings = Settings::resolve(&Sources::default()).unwrap();
    let values = settings.values();
    assert_eq!(values.ledger.retention_days, 90);
    assert_eq!(values.ledger.retention_size, ByteSize(1 << 30));
    assert_eq!(values.policy.trial_last, 100);
    assert_eq!(values.ui.color, ColorMode::Auto);
    assert_eq!(values.model, None);
    assert_eq!(settings.origin("ui.color"), Some(&Origin::Default));
    assert_eq!(settings.origin("model"), None);
}

#[test]
fn every_layer_beats_the_one_below_and_says_so() {
    let mut sources = user("[budget]\nturns = 40\ntokens = 1000\n[policy]\ntrial_last = 7\n");
    sources.project = project("budget.turns = 30\nbudget.tokens = 900").project;
    sources.environment = [
        ("FLUFFY_BUDGET_TOKENS", "950"),
        ("FLUFFY_UI_COLOR", "never"),
    ]
    .into_iter()
    .collect();
    sources.flags = vec![
        flag("--color", "ui.color", "auto"),
        flag("--color", "ui.color", "always"),
    ];
    let settings = Settings::resolve(&sources).unwrap();
    let found: Vec<String> = settings
        .entries()
        .filter(|entry| *entry.origin != Origin::Default)
        .map(|entry| format!("{} = {} ({})", entry.key, entry.value, entry.origin))
        .collect();
    assert_eq!(
        found,
        [
            "budget.tokens = 950 (FLUFFY_BUDGET_TOKENS)",
            "budget.turns = 30 (/p/.fluffy/config.toml:1)",
            "policy.trial_last = 7 (/home/me/.config/fluffy/config.toml:5)",
            "ui.color = always (--color)",
        ]
    );
    assert_eq!(settings.values().ui.color, ColorMode::Always);
}

#[test]
fn a_misspelt_key_is_refused_with_its_place_and_a_suggestion() {
    assert_eq!(
        problems(&user(
            "version = 1\n[ledger]\npth = '/x'\n[kubernetes]\na = 1\n"
        )),
        [
            "/home/me/.config/fluffy/config.toml:3:1: `ledger.pth` is not a configuration key; \
             did you mean `ledger.path`?",
            "/home/me/.config/fluffy/config.toml:4:2: `kubernetes` is not a configuration key; \
             remove it; `fluffy config` lists the keys that exist",
        ]
    );
}

#[test]
fn a_wrong_value_is_refused_with_what_was_expected() {
    assert_eq!(
        problems(&user(
            "ui.color = 'red'\nledger = 5\nledger.witness = '/x'\npolicy.trial_last = '7'\n"
        ))
        .len(),
        1,
        "TOML itself refuses a key that is a value and a table"
    );
    assert_eq!(
        problems(&user(
            "model = 7\npolicy = 5\n[ui]\ncolor = 'red'\n[ledger]\nwitness = '/x'\n"
        )),
        [
            "/home/me/.config/fluffy/config.toml:1:9: `7` is no value for `model`; \
             write a provider and its model, as in provider/model",
            "/home/me/.config/fluffy/config.toml:2:1: `policy` is a section and takes no value; \
             write `[policy]` and its keys below",
            "/home/me/.config/fluffy/config.toml:4:9: `'red'` is no value for `ui.color`; \
             write auto, always or never",
            "/home/me/.config/fluffy/config.toml:6:11: `'/x'` is no value for `ledger.witness`; \
             write a list of absolute paths; ~/ stands for your home directory",
        ]
    );
}

#[test]
fn broken_toml_is_one_problem_with_its_place() {
    let found = problems(&user("model = 'a/b'\nui.color = never\n"));
    assert_eq!(found.len(), 1);
    assert!(
        found[0]
            .starts_with("/home/me/.config/fluffy/config.toml:2:12: the file is not valid TOML"),
        "{found:?}"
    );
}

#[test]
fn another_version_is_not_guessed_at() {
    assert!(Settings::resolve(&user("version = 1")).is_ok());
    let found = problems(&user("version = 2"));
    assert!(
        found[0].contains("configuration of version 1, not `2`"),
        "{found:?}"
    );
    assert!(Settings::resolve(&user("version = '1'")).is_err());
}

#[test]
fn a_repository_brings_data_and_nothing_else() {
    let allowed = project("tests.command = ['make', 'check']\nbudget.wall_time = '10m'\n");
    let settings = Settings::resolve(&allowed).unwrap();
    assert_eq!(
        settings.values().tests.command.as_deref().unwrap(),
        ["make", "check"]
    );
    let measured = "[tests]\ncoverage = {command = ['sh', 'c.sh'], report = 'out/lcov.info'}\n";
    let settings = Settings::resolve(&project(measured)).unwrap();
    let coverage = &settings.values().tests.coverage;
    assert_eq!(coverage.command.as_deref().unwrap(), ["sh", "c.sh"]);
    assert_eq!(coverage.report.as_deref(), Some("out/lcov.info"));
    for text in [
        "model = 'evil/x'",
        "providers.openai.base_url = 'https://evil'",
        "[providers.openai]\napi_key = {env = 'OPENAI_API_KEY'}",
        "providers = 7",
        "providers.openai.wrong = 1",
        "[network]\nallow = ['evil:443']",
        "plugins = ['evil']",
        "[plugins.evil]\nallow = ['*']",
        "[rules]",
        "ledger.path = '/p/ledger'",
        "ledger.retention_days = 1",
        "policy.trial_last = 1",
        "ui.color = 'never'",
    ] {
        let rejected = Settings::resolve(&project(text)).unwrap_err();
        assert!(
            matches!(rejected.problems[..], [Problem::ProjectMayNot { .. }]),
            "{text}: {rejected:?}"
        );
    }
}

#[test]
fn integration_tests_are_named_commands() {
    let text = "[tests.integration]\nserver = ['make', 'server']\ndatabase = ['make', 'db']\n";
    let mut sources = project(text);
    sources.user = Some(file(
        "/home/me/c.toml",
        "tests.integration.server = ['mine']",
    ));
    let settings = Settings::resolve(&sources).unwrap();
    let tests = &settings.values().tests.integration;
    assert_eq!(tests["server"], ["make", "server"]);
    assert_eq!(tests.len(), 2);
    let origin = settings.origin("tests.integration.server").unwrap();
    assert_eq!(origin.to_string(), "/p/.fluffy/config.toml:2");
    for text in [
        "tests.integration.server = 'make'",
        "tests.integration.server = []",
        "tests.integration.server = [1]",
        "tests.integration.server = {command = ['make']}",
        "tests.integration.'Two Words' = ['make']",
        "tests.integration = ['make']",
    ] {
        assert_eq!(problems(&project(text)).len(), 1, "{text}");
    }
}

#[test]
fn a_repository_lowers_budgets_and_never_raises_them() {
    assert_eq!(
        problems(&project(
            "[budget]\nturns = 101\nwall_time = '2h'\ntokens = 2_000_000\n"
        )),
        [
            "/p/.fluffy/config.toml:2:9: a project may lower `budget.turns` and not raise it \
             from 100 to 101; raise it in your own configuration file, by a variable or by a flag",
            "/p/.fluffy/config.toml:3:13: a project may lower `budget.wall_time` and not raise it \
             from 1h to 2h; raise it in your own configuration file, by a variable or by a flag",
        ]
    );
    let mut sources = project("budget.turns = 60");
    sources.user = user("budget.turns = 50").user;
    assert!(Settings::resolve(&sources).is_err());
}

#[test]
fn a_repository_narrows_what_plugins_can_have_and_never_widens_it() {
    let allowed = |users: &str, projects: &str| {
        let mut sources = project(projects);
        sources.user = user(users).user;
        let settings = Settings::resolve(&sources);
        settings.map(|settings| settings.values().plugins.allow.clone())
    };
    assert_eq!(allowed("", "").unwrap(), ["*"]);
    let narrow = "plugins.allow = ['kv.*', 'fs.read./docs/*']";
    assert_eq!(allowed("", narrow).unwrap(), ["kv.*", "fs.read./docs/*"]);
    assert_eq!(allowed("", "plugins.allow = []").unwrap(), [""; 0]);
    assert_eq!(
        allowed(narrow, "plugins.allow = ['kv.get.*']").unwrap(),
        ["kv.get.*"]
    );
    for wide in [
        "*",
        "kv.get.*', 'exec.*",
        "fs.read./*",
        "fs.*",
        "net.connect.evil:443",
    ] {
        let wide = format!("plugins.allow = ['{wide}']");
        let rejected = allowed(narrow, &wide).unwrap_err();
        assert!(
            matches!(rejected.problems[..], [Problem::ProjectRaises { .. }]),
            "{wide}: {rejected:?}"
        );
        // The control: a person's own file may say it.
        assert!(allowed(&wide, "").is_ok(), "{wide}");
    }
    for wrong in ["'kv.*'", "['kv..*']", "['']", "[1]", "{a = 1}"] {
        let text = format!("plugins.allow = {wrong}");
        assert!(allowed(&text, "").is_err(), "{wrong}");
    }
}

#[test]
fn a_review_counts_for_exactly_the_reviewed_bytes() {
    let text = "model = 'openai/x'\nbudget.turns = 500\n";
    let mut sources = project(text);
    let review = |sources: &mut Sources, of: &str| {
        sources.project.as_mut().unwrap().reviewed = Some(Digest::of(of.as_bytes()));
    };
    review(&mut sources, text);
    let settings = Settings::resolve(&sources).unwrap();
    assert_eq!(settings.values().budget.turns, 500);
    assert!(matches!(
        settings.origin("model"),
        Some(Origin::Project { line: 1, .. })
    ));
    review(&mut sources, "model = 'openai/y'\nbudget.turns = 500\n");
    assert_eq!(Settings::resolve(&sources).unwrap_err().problems.len(), 2);
}

#[test]
fn who_may_speak_belongs_to_the_user() {
    let text = "channels.senders = ['chat:ada']\nmodel = 'plugin:mine/one'\n";
    let settings = Settings::resolve(&user(text)).unwrap();
    assert_eq!(settings.values().channels.senders, ["chat:ada"]);
    assert_eq!(settings.values().channels.approvers, Vec::<String>::new());
    for text in ["ada", "chat:", ":ada", "Chat:ada", "chat:a b", "chat:ä"] {
        let found = problems(&user(&format!("channels.senders = ['{text}']")));
        assert!(
            found.len() == 1 && found[0].contains("identities with their channel"),
            "{text}: {found:?}"
        );
    }
}

#[test]
fn providers_belong_to_the_user() {
    let settings = Settings::resolve(&user(
        "[providers.openai]\nbase_url = 'http://127.0.0.1:11434/v1'\nwire = 'chat'\n\
         api_key = { keyring = 'fluffy-openai' }\n",
    ))
    .unwrap();
    let provider = &settings.values().providers["openai"];
    assert_eq!(provider.wire, Some(Wire::Chat));
    assert_eq!(
        provider.api_key,
        Some(KeySource::Keyring("fluffy-openai".to_owned()))
    );
    for (text, part) in [
        (
            "providers.x.api_key = {env='A', keyring='b'}",
            "names two places",
        ),
        ("providers.x.wire = 'soap'", "write responses or chat"),
        (
            "providers.x.bas_url = 'http://a'",
            "did you mean `providers.x.base_url`?",
        ),
        ("providers.x.api_key = 'sk-abcdef'", "is a section"),
        ("providers.x.wire = 5", "write a text"),
        ("providers.X.wire = 'chat'", "is not a configuration key"),
        ("providers.x = 5", "is a section"),
    ] {
        let found = problems(&user(text));
        assert!(
            found.len() == 1 && found[0].contains(part),
            "{text}: {found:?}"
        );
    }
}

#[test]
fn variables_and_flags_are_checked_like_files() {
    let mut sources = Sources {
        environment: [
            ("FLUFFY_LEDGER_RETENTION_DAYS", "many"),
            ("FLUFFY_MODEL", ""),
        ]
        .into_iter()
        .collect(),
        flags: vec![
            flag("--set", "ui.colour", "auto"),
            flag("--model", "model", "x"),
        ],
        ..Sources::default()
    };
    assert_eq!(
        problems(&sources),
        [
            "FLUFFY_LEDGER_RETENTION_DAYS: `many` is no value for `ledger.retention_days`; \
             write a whole number from 1 to 36500",
            "--set: `ui.colour` is not a configuration key; did you mean `ui.color`?",
            "--model: `x` is no value for `model`; \
             write a provider and its model, as in provider/model",
        ]
    );
    sources.flags.clear();
    sources.environment = [("FLUFFY_MODLE", "a/b"), ("FLUFFY_STATE_DIR", "/x")]
        .into_iter()
        .collect();
    let settings = Settings::resolve(&sources).unwrap();
    let [unknown] = settings.unknown_variables() else {
        panic!("{settings:?}")
    };
    assert_eq!(unknown.nearest.as_deref(), Some("FLUFFY_MODEL"));
}

proptest! {
    #[test]
    fn no_text_panics_and_no_repository_sets_more_than_data(text in "\
        ((model|providers\\.a\\.(wire|base_url)|ledger\\.(path|witness)|budget\\.(turns|tokens)\
        |network|ui\\.color|tests\\.command) = ('chat'|'a/b'|'/x'|\\['a'\\]|[0-9]{1,7})\n){0,6}"
    ) {
        let _ = Settings::resolve(&user(&text));
        if let Ok(settings) = Settings::resolve(&project(&text)) {
            let plain = Settings::resolve(&Sources::default()).unwrap();
            let (mut got, before) = (settings.values().clone(), plain.values().clone());
            prop_assert!(got.budget.turns <= before.budget.turns);
            prop_assert!(got.budget.tokens <= before.budget.tokens);
            got.budget = before.budget.clone();
            got.tests = before.tests.clone();
            prop_assert_eq!(got, before);
        }
    }
}
