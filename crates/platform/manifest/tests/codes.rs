//! Every code of the table, each at its line and column, and its control.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

use std::collections::BTreeSet;

use fluffy_manifest::{Code, Manifest, Problem, schema};

/// Everything that a manifest can say.
const WHOLE: &str = r#"schema_version = "v1"

[app]
name = "shop"
description = "Sells waffles"

[image]
ref = "registry.example.com:5000/acme/shop:1.2@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
pull_policy = "always"

[env]
vars = { LOG = "info", REGION = "eu" }
workdir = "/srv"
user = "app"
prestart = ["migrate"]
prestart_timeout_seconds = 60

[deploy]
strategy = "rolling"
max_surge = 2
max_unavailable = 1
timeout_seconds = 900
min_ready_seconds = 5
on_failure = "rollback"

[processes.web]
command = ["serve", "--port", "8080"]
vars = { LOG = "debug" }
replicas = 3
ports = [{ name = "http", internal = 8080 }, { internal = 9090, protocol = "tcp" }]
resources = { memory = "512MiB", cpu = 0.25, disk = "2GiB" }
scaling = { min = 1, max = 10 }
restart = { policy = "on-failure", max_retries = 5, backoff_seconds = 4 }
stop = { signal = "INT", grace_seconds = 30 }
secrets = { required = true }

[processes.web.health]
type = "http"
port = 8080
path = "/healthz"
interval_seconds = 5
timeout_seconds = 4

[processes.data]
resources = { memory = "1GiB" }

[[processes.data.mounts]]
volume = "disk"
path = "/var/lib/data"

[[volumes]]
name = "disk"
size = "10GiB"

[overrides.prod]
vars = { REGION = "us" }

[overrides.prod.processes.web]
replicas = 5
resources = { memory = "1GiB" }
"#;

/// A code, what to find in the whole, and what to put there; `^` is the place.
const CASES: &[(Code, &str, &str)] = &[
    (Code::SchemaVersion, r#""v1""#, r#"^"v2""#),
    (Code::Required, "schema_version = \"v1\"\n\n", "^"),
    (
        Code::Required,
        "{ memory = \"512MiB\", cpu = 0.25, disk = \"2GiB\" }",
        "^{ cpu = 1 }",
    ),
    (Code::Required, "size = \"10GiB\"\n", ""),
    (Code::Length, r#""shop""#, r#"^"""#),
    (Code::Length, r#"["serve", "--port", "8080"]"#, "^[]"),
    (
        Code::ImageRef,
        r#""registry.example.com:5000/acme/shop:1.2@sha256:0"#,
        r#"^"x@sha256:"#,
    ),
    (
        Code::ImageRef,
        r#""registry.example.com:5000/"#,
        r#"^"registry.example.com:nine/"#,
    ),
    (Code::ImageRef, "/acme/shop:1.2", "/Acme/shop:1.2"),
    (Code::Enum, r#""always""#, r#"^"sometimes""#),
    (Code::Enum, r#""INT""#, r#"^"KILL""#),
    (
        Code::Enum,
        r#"on_failure = "rollback""#,
        r#"on_failure = ^"explode""#,
    ),
    (Code::VarKey, r#"LOG = "info""#, r#"log = ^"info""#),
    (Code::VarValue, r#"LOG = "info""#, "LOG = ^1"),
    (Code::Path, r#""/srv""#, r#"^"srv""#),
    (Code::Path, r#""/srv""#, r#"^"/srv/../etc""#),
    (Code::Path, r#""app""#, r#"^"app user""#),
    (
        Code::Range,
        "prestart_timeout_seconds = 60",
        "prestart_timeout_seconds = ^601",
    ),
    (
        Code::Range,
        "max_surge = 2\nmax_unavailable = 1",
        "max_surge = ^0\nmax_unavailable = 0",
    ),
    (
        Code::Range,
        "timeout_seconds = 900",
        "timeout_seconds = ^99999999999999999999",
    ),
    (Code::StrategyUnsupported, r#""rolling""#, r#"^"canary""#),
    (Code::Name, r#"name = "http""#, r#"name = ^"Ht tp""#),
    (
        Code::Name,
        "[processes.data]",
        "[processes.\"Da ta\".resources]\nmemory = \"1GiB\"\n\n[processes.data]",
    ),
    (Code::MemoryRange, r#""512MiB""#, r#"^"63MiB""#),
    (Code::Unit, r#""512MiB""#, r#"^"512Mi""#),
    (Code::CpuRange, "0.25", "^0.26"),
    (Code::CpuRange, "0.25", "^64.05"),
    (Code::DiskRange, r#""2GiB""#, r#"^"101GiB""#),
    (Code::ReplicaRange, "replicas = 3", "replicas = ^101"),
    (
        Code::ScaleBounds,
        "{ min = 1, max = 10 }",
        "^{ min = 4, max = 10 }",
    ),
    (
        Code::ScaleBounds,
        "{ min = 1, max = 10 }",
        "^{ min = 1, max = 2 }",
    ),
    (
        Code::AutoscaleUnsupported,
        "max = 10 }",
        "max = 10, autoscale = ^true }",
    ),
    (Code::Restart, r#""on-failure""#, r#"^"sometimes""#),
    (
        Code::Restart,
        r#""on-failure", max_retries = 5"#,
        r#""always", max_retries = ^5"#,
    ),
    (
        Code::Restart,
        "backoff_seconds = 4",
        "backoff_seconds = ^61",
    ),
    (Code::PortRange, "internal = 9090", "internal = ^65536"),
    (
        Code::PortDuplicate,
        "{ internal = 9090,",
        "^{ internal = 8080,",
    ),
    (Code::PortProtocol, r#""tcp""#, r#"^"udp""#),
    (Code::HealthPort, "port = 8080\n", "port = ^8081\n"),
    (Code::HealthPath, "path = \"/healthz\"\n", ""),
    (Code::HealthPath, r#""/healthz""#, r#"^"healthz""#),
    (
        Code::HealthTiming,
        "timeout_seconds = 4",
        "timeout_seconds = ^5",
    ),
    (Code::MountPath, r#""/var/lib/data""#, r#"^"var/lib""#),
    (Code::MountReserved, r#""/var/lib/data""#, r#"^"/run/x""#),
    (Code::MountReserved, r#""/var/lib/data""#, r#"^"/""#),
    (
        Code::MountUnknownVolume,
        "volume = \"disk\"",
        "volume = ^\"disc\"",
    ),
    (
        Code::MountDuplicate,
        "path = \"/var/lib/data\"\n",
        "path = \"/var/lib/data\"\n\n^[[processes.data.mounts]]\nvolume = \"disk\"\npath = \"/b\"\n",
    ),
    (
        Code::SecretPathFixed,
        "required = true",
        "required = true, path = ^\"/x\"",
    ),
    (
        Code::VolumeDuplicate,
        "size = \"10GiB\"\n",
        "size = \"10GiB\"\n\n^[[volumes]]\nname = \"disk\"\nsize = \"1GiB\"\n",
    ),
    (Code::VolumeSize, r#""10GiB""#, r#"^"1MiB""#),
    (
        Code::VolumeFilesystem,
        "size = \"10GiB\"",
        "size = \"10GiB\"\nfilesystem = ^\"xfs\"",
    ),
    (
        Code::VolumeReplicaLimit,
        "{ memory = \"1GiB\" }\n\n[[",
        "{ memory = \"1GiB\" }\nreplicas = ^2\n\n[[",
    ),
    (
        Code::VolumeReplicaLimit,
        "{ memory = \"1GiB\" }\n\n[[",
        "{ memory = \"1GiB\" }\nscaling = ^{ max = 2 }\n\n[[",
    ),
    (
        Code::VolumeReplicaLimit,
        "[overrides.prod.processes.web]\nreplicas = 5",
        "[overrides.prod.processes.data]\nreplicas = ^5",
    ),
    (
        Code::OverrideField,
        "[overrides.prod]\n",
        "[overrides.prod]\nimage = ^1\n",
    ),
    (Code::OverrideField, "replicas = 5", "command = ^[\"x\"]"),
    (Code::TomlSyntax, "[app]", "[app^"),
    (Code::UnknownField, "pull_policy", "^pul_policy"),
    (Code::Type, "replicas = 3", "replicas = ^\"3\""),
    (Code::Type, "required = true", "required = ^1"),
];

fn changed(find: &str, put: &str) -> (String, Option<(usize, usize)>) {
    assert!(WHOLE.contains(find), "{find}");
    marked(WHOLE.replacen(find, put, 1))
}

/// A text without its `^`, and where that was.
fn marked(text: String) -> (String, Option<(usize, usize)>) {
    let Some(at) = text.find('^') else {
        return (text, None);
    };
    let before = &text[..at];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap().chars().count() + 1;
    (text.replacen('^', "", 1), Some((line, column)))
}

fn shown(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}

#[test]
fn each_mistake_has_its_code_at_its_place() {
    let whole = Manifest::parse(WHOLE);
    assert!(whole.is_ok(), "{:?}", whole.map_err(|it| shown(&it)));
    for (code, find, put) in CASES {
        let (text, place) = changed(find, put);
        let problems = Manifest::parse(&text).expect_err(put);
        let first = problems.iter().find(|problem| problem.code == *code);
        let problem = first.unwrap_or_else(|| panic!("{code} for {put}: {:?}", shown(&problems)));
        if let Some(place) = place {
            assert_eq!((problem.line, problem.column), place, "{problem}");
        }
        assert!(!problem.message.is_empty() && !problem.message.ends_with('.'));
    }
}

#[test]
fn a_mistake_alone_is_one_problem() {
    for (code, find, put) in CASES {
        let (text, _) = changed(find, put);
        let problems = Manifest::parse(&text).expect_err(put);
        let codes: BTreeSet<Code> = problems.iter().map(|problem| problem.code).collect();
        let expected = BTreeSet::from([*code]);
        assert_eq!(codes, expected, "{put}: {:?}", shown(&problems));
    }
}

#[test]
fn every_code_can_be_raised() {
    let mut raised: BTreeSet<Code> = CASES.iter().map(|(code, _, _)| *code).collect();
    // What takes more than one replacement.
    let many: String = (0..257).map(|it| format!("V{it} = \"x\"\n")).collect();
    let limit = format!("{WHOLE}\n^[overrides.dev.vars]\n{many}");
    let shared = WHOLE.replace(
        "[overrides.prod]\n",
        "^[processes.other]\nresources = { memory = \"1GiB\" }\n\
         mounts = [{ volume = \"disk\", path = \"/x\" }]\n\n[overrides.prod]\n",
    );
    let none = "^schema_version = \"v1\"\n".to_owned();
    let empty = "schema_version = \"v1\"\nprocesses = ^{}\n".to_owned();
    let inherited = format!(
        "schema_version = \"v1\"\nenv = {{ vars = {} }}\n^[processes.web]\nvars = {}\n\
         resources = {{ memory = \"64MiB\" }}\n",
        many_of('A', 200),
        many_of('B', 57),
    );
    let texts = [
        (Code::VarLimit, inherited),
        (Code::VarLimit, limit),
        (Code::VolumeShared, shared),
        (Code::NoProcess, none),
        (Code::NoProcess, empty),
    ];
    for (code, text) in texts {
        let (text, place) = marked(text);
        let problems = Manifest::parse(&text).unwrap_err();
        assert_eq!(problems.len(), 1, "{:?}", shown(&problems));
        let problem = &problems[0];
        assert_eq!(problem.code, code);
        assert_eq!(Some((problem.line, problem.column)), place, "{problem}");
        raised.insert(code);
    }
    assert_eq!(raised, Code::ALL.iter().copied().collect());
}

#[test]
fn all_problems_are_told_at_once_in_the_order_of_the_text() {
    let text = WHOLE
        .replace("0.25", "9000")
        .replace("\"INT\"", "\"KILL\"")
        .replace("pull_policy", "pull_polcy")
        .replace("\"10GiB\"", "\"10Gi\"");
    let problems = Manifest::parse(&text).unwrap_err();
    let codes: Vec<Code> = problems.iter().map(|problem| problem.code).collect();
    assert_eq!(
        codes,
        [Code::UnknownField, Code::CpuRange, Code::Enum, Code::Unit]
    );
    assert_eq!(
        problems[0].fix.as_deref(),
        Some("did you mean `pull_policy`?")
    );
    assert_eq!(problems[3].fix.as_deref(), Some("write `10GiB`"));
}

#[test]
fn the_words_of_the_replica_limit_are_published() {
    let (text, _) = changed(
        "{ memory = \"1GiB\" }\n\n[[",
        "{ memory = \"1GiB\" }\nreplicas = 2\n\n[[",
    );
    let problems = Manifest::parse(&text).unwrap_err();
    let words = "process type 'data' has volume mounts and cannot have replicas > 1";
    assert_eq!(problems[0].message, words);
    assert_eq!(problems[0].code.as_str(), "E_VOLUME_REPLICA_LIMIT");
}

#[test]
fn a_manifest_that_is_too_large_is_not_read() {
    let text = format!("{WHOLE}# {}", "x".repeat(64 << 10));
    let problems = Manifest::parse(&text).unwrap_err();
    assert_eq!((problems.len(), problems[0].code), (1, Code::Length));
}

/// What is stored of a manifest fits into an event, or it is no manifest: `env`
/// is written out for every process, and defaults for every override.
#[test]
fn a_short_text_that_comes_to_too_much_is_refused_where_it_grows() {
    let inherited = |bytes: usize| {
        let processes = (0..14)
            .map(|number| format!("[processes.p{number}]\nresources = {{ memory = \"64MiB\" }}\n"));
        let processes: String = processes.collect();
        let value = "x".repeat(bytes);
        format!("schema_version = \"v1\"\n[env]\nvars = {{ BIG = \"{value}\" }}\n{processes}")
    };
    let problems = Manifest::parse(&inherited(20 << 10)).unwrap_err();
    let [problem] = problems.as_slice() else {
        panic!("{problems:?}");
    };
    assert_eq!((problem.code, &*problem.field), (Code::Length, "env"));
    assert_eq!(problem.line, 2);
    assert!(problem.fix.is_some());
    let fits = Manifest::parse(&inherited(16 << 10)).unwrap();
    assert!(fits.canonical().len() > 224 << 10);
    let overridden = |many: usize| {
        let envs = (0..many).map(|number| format!("e{number}.processes.w = {{}}\n"));
        let envs: String = envs.collect();
        format!(
            "schema_version = \"v1\"\n[processes.w]\nresources = {{ memory = \"64MiB\" }}\n\
             [overrides]\n{envs}"
        )
    };
    let problems = Manifest::parse(&overridden(2_300)).err().unwrap();
    let told = problems.iter().map(|it| (it.code, &*it.field));
    assert_eq!(told.collect::<Vec<_>>(), [(Code::Length, "overrides")]);
    assert!(Manifest::parse(&overridden(1_500)).is_ok());
}

#[test]
fn the_canonical_form_depends_on_meaning_alone() {
    let least = "schema_version = \"v1\"\n[processes.web.resources]\nmemory = \"512MiB\"\n";
    let spelt = "# The same.\nprocesses = { web = { resources = { disk = \"4GiB\", cpu = 1, \
                 memory = \"536870912\" }, replicas = 1, restart = { policy = \"always\" } } }\n\
                 schema_version = 'v1'\n[deploy]\nmax_surge = 1\n";
    let (least, spelt) = (
        Manifest::parse(least).unwrap(),
        Manifest::parse(spelt).unwrap(),
    );
    assert_eq!(least.canonical(), spelt.canonical());
    assert_eq!(least.hash(), spelt.hash());
    let whole = Manifest::parse(WHOLE).unwrap();
    assert_ne!(whole.hash(), least.hash());
    // Published: stored releases refer to it.
    assert!(least.canonical().starts_with(
        r#"{"app":{"description":null,"name":null},"deploy":{"max_surge":1,"max_unavailable":0,"#
    ));
    for (find, put) in [
        ("3\nports", "4\nports"),
        ("\"info\"", "\"warn\""),
        ("0.25", "0.3"),
    ] {
        let other = Manifest::parse(&WHOLE.replacen(find, put, 1)).unwrap();
        assert_ne!(other.hash(), whole.hash(), "{put}");
    }
}

#[test]
fn the_canonical_form_reads_back() {
    let manifest = Manifest::parse(WHOLE).unwrap();
    let again: Manifest = serde_json::from_str(&manifest.canonical()).unwrap();
    assert_eq!(again.canonical(), manifest.canonical());
    assert_eq!(again.processes["web"], manifest.processes["web"]);
    assert_eq!(again.overrides, manifest.overrides);
}

#[test]
fn what_an_env_overrides_holds_there_alone() {
    let manifest = Manifest::parse(WHOLE).unwrap();
    let (prod, dev) = (manifest.processes_in("prod"), manifest.processes_in("dev"));
    assert_eq!((prod["web"].replicas, dev["web"].replicas), (5, 3));
    assert_eq!(prod["web"].resources.memory, 1 << 30);
    assert_eq!(prod["web"].resources.cpu_millis, 250);
    assert_eq!(
        (&*prod["web"].vars["REGION"], &*dev["web"].vars["REGION"]),
        ("us", "eu")
    );
    assert_eq!(&*prod["web"].vars["LOG"], "debug", "the process wins");
    assert_eq!(prod["data"].prestart.len(), 1);
}

/// What a schema can know; the rest is between fields or in the form of texts.
const IN_SCHEMA: &[Code] = &[
    Code::AutoscaleUnsupported,
    Code::Enum,
    Code::MountPath,
    Code::Name,
    Code::OverrideField,
    Code::PortProtocol,
    Code::PortRange,
    Code::ReplicaRange,
    Code::Required,
    Code::SchemaVersion,
    Code::SecretPathFixed,
    Code::StrategyUnsupported,
    Code::Type,
    Code::Unit,
    Code::UnknownField,
    Code::VarKey,
    Code::VarValue,
    Code::VolumeFilesystem,
];

#[test]
fn the_schema_takes_what_the_reader_takes_and_refuses_what_it_can() {
    let validator = jsonschema::validator_for(&schema()).unwrap();
    let read = |text: &str| toml::from_str::<serde_json::Value>(text).unwrap();
    let whole = read(WHOLE);
    let errors: Vec<String> = validator
        .iter_errors(&whole)
        .map(|it| it.to_string())
        .collect();
    assert!(errors.is_empty(), "{errors:?}");
    for (code, find, put) in CASES.iter().filter(|(code, _, _)| IN_SCHEMA.contains(code)) {
        let (text, _) = changed(find, put);
        assert!(!validator.is_valid(&read(&text)), "{code}: {put}");
    }
}

proptest::proptest! {
    #[test]
    fn no_text_panics_and_every_place_is_in_it(text in "([a-z_.\\[\\]=\"{} 0-9\n]{0,120})") {
        if let Err(problems) = Manifest::parse(&text) {
            for problem in problems {
                let lines = text.split('\n').count();
                assert!(problem.line <= lines, "{problem}");
            }
        }
    }
}

/// Variables `A0` and on, as a table.
fn many_of(letter: char, count: usize) -> String {
    let each = (0..count).map(|at| format!("{letter}{at} = \"x\""));
    format!("{{ {} }}", each.collect::<Vec<_>>().join(", "))
}

#[test]
fn what_a_process_inherits_counts_for_its_limit() {
    let manifest = |env: usize, own: usize, over: usize| {
        format!(
            "schema_version = \"v1\"\n[env]\nvars = {}\n[processes.web]\nvars = {}\n\
             resources = {{ memory = \"64MiB\" }}\n[overrides.prod]\nvars = {}\n",
            many_of('A', env),
            many_of('B', own),
            many_of('C', over),
        )
    };
    let codes = |text: &str| -> Vec<(String, String)> {
        let problems = Manifest::parse(text).err().unwrap_or_default();
        let each = problems.iter();
        each.map(|it| (it.code.as_str().to_owned(), it.field.clone()))
            .collect()
    };
    // As many as there may be, and one name that only replaces another.
    assert_eq!(codes(&manifest(200, 56, 0)), []);
    assert_eq!(codes(&manifest(200, 50, 6)), []);
    let limit = |field: &str| ("E_VAR_LIMIT".to_owned(), field.to_owned());
    assert_eq!(codes(&manifest(200, 57, 0)), [limit("processes.web")]);
    assert_eq!(codes(&manifest(200, 50, 7)), [limit("overrides.prod")]);
}
