//! Which files are tests, how they are run, and what configures that.
//!
//! [`detect`] sees a listing and the contents of a few files ([`is_wanted`]).
//! It prefers a runner's own machine output to a project's script, because a
//! script can print whatever it likes. What `.fluffy/config.toml` says wins,
//! and is a plain value here.

use std::collections::{BTreeMap, BTreeSet};

use fluffy_policy::glob::{GlobError, GlobSet};
use serde::{Deserialize, Serialize};

use super::javascript;
use super::makefile;
use super::parts::{Class, Mixture, Part};
use crate::results::Format;

/// The most paths of a listing that are looked at.
pub const MAX_PATHS: usize = 500_000;

/// The most commands that one project has.
pub const MAX_COMMANDS: usize = 16;

/// The files of a project, as workspace paths, and the contents of some.
#[derive(Debug, Clone, Copy)]
pub struct Listing<'a> {
    /// Every file, such as `/src/lib.rs`.
    pub paths: &'a [String],
    /// The text of each file for which [`is_wanted`] says yes.
    pub contents: &'a BTreeMap<String, String>,
}

/// What `.fluffy/config.toml` says about tests; empty lists say nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Overrides {
    /// Globs of test files, instead of those found.
    pub files: Vec<String>,
    /// Globs of files that configure the runner, besides those found.
    pub configuration: Vec<String>,
    /// Commands that run the tests, instead of those found.
    pub commands: Vec<CommandOverride>,
    /// Commands that run integration tests, by name.
    pub integration: BTreeMap<String, CommandOverride>,
    /// What measures coverage; nothing is found by itself, because no file of
    /// a project says for certain that the tool for it is installed.
    pub coverage: Option<CoverageCommand>,
}

/// What measures which lines the tests reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoverageCommand {
    /// Program and arguments, run in the project's directory.
    pub command: Vec<String>,
    /// Where it writes its report, relative to the project.
    pub report: String,
}

/// A command as a project writes it down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommandOverride {
    /// Program and arguments.
    pub command: Vec<String>,
    /// How its output is written; recognised by itself if absent.
    #[serde(default = "automatic")]
    pub format: Format,
    /// Where it runs, such as `/`.
    #[serde(default = "top")]
    pub directory: String,
}

const fn automatic() -> Format {
    Format::Auto
}

fn top() -> String {
    "/".to_owned()
}

/// Why a project's own words about its tests are unusable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DetectError {
    /// A glob is malformed.
    #[error("`{glob}` is not a glob")]
    Glob {
        /// The glob.
        glob: String,
        /// What is wrong with it.
        #[source]
        source: GlobError,
    },
    /// A command is empty.
    #[error("a test command names no program")]
    EmptyCommand,
    /// Coverage without a command or without a report.
    #[error("coverage needs both a command that measures it and the report it writes")]
    HalfCoverage,
    /// There are more commands than [`MAX_COMMANDS`].
    #[error("a project has at most {MAX_COMMANDS} test commands")]
    TooManyCommands,
    /// The listing is longer than [`MAX_PATHS`].
    #[error("a project with more than {MAX_PATHS} files is not looked at")]
    TooManyFiles,
}

/// One way to run tests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TestCommand {
    /// Where it runs, such as `/`.
    pub directory: String,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Variables it needs.
    pub environment: BTreeMap<String, String>,
    /// How its output is written.
    pub format: Format,
}

impl TestCommand {
    pub(super) fn new(directory: &str, command: &[&str], format: Format) -> Self {
        Self {
            directory: directory.to_owned(),
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            environment: BTreeMap::new(),
            format,
        }
    }
}

/// What a project's files are, and how its tests run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// How the tests run, in this order.
    pub commands: Vec<TestCommand>,
    /// Integration tests by name; running them needs a rule of its own.
    pub integration: BTreeMap<String, TestCommand>,
    /// What measures coverage, if anything does.
    pub coverage: Option<CoverageCommand>,
    test_globs: Vec<String>,
    tests: GlobSet,
    configuration: GlobSet,
}

impl Layout {
    /// The globs of test files, for people and models.
    #[must_use]
    pub fn test_globs(&self) -> &[String] {
        &self.test_globs
    }

    /// What a file is, by its path.
    #[must_use]
    pub fn class(&self, path: &str) -> Class {
        let name = path.rsplit('/').next().unwrap_or_default();
        if self.configuration.matches(path) {
            return Class::Whole(Part::Configuration);
        }
        let mixture = match name {
            "Cargo.toml" => Some(Mixture::Cargo),
            "package.json" => Some(Mixture::Package),
            "pyproject.toml" => Some(Mixture::Pyproject),
            "setup.cfg" => Some(Mixture::SetupCfg),
            "Makefile" | "makefile" | "GNUmakefile" => Some(Mixture::Makefile),
            "go.mod" => Some(Mixture::GoMod),
            _ => None,
        };
        match mixture {
            // A manifest among the tests belongs to a fixture.
            _ if self.tests.matches(path) => Class::Whole(Part::Test),
            Some(mixture) => Class::Mixed(mixture),
            None if name.ends_with(".rs") => Class::Mixed(Mixture::Rust),
            None => Class::Whole(Part::Source),
        }
    }
}

/// Whether [`detect`] wants to see what is in a file.
#[must_use]
pub fn is_wanted(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    matches!(
        name,
        "Cargo.toml" | "package.json" | "Makefile" | "makefile" | "GNUmakefile"
    )
}

/// Finds out which files are tests and how they are run.
///
/// # Errors
/// The overrides are unusable or the listing is too long.
pub fn detect(listing: &Listing<'_>, overrides: &Overrides) -> Result<Layout, DetectError> {
    if listing.paths.len() > MAX_PATHS {
        return Err(DetectError::TooManyFiles);
    }
    let mut found = Found::default();
    found.rust(listing);
    found.python(listing);
    found.javascript(listing);
    found.go(listing);
    if found.commands.is_empty() {
        found.make(listing);
    }
    found.commands.truncate(MAX_COMMANDS);
    if found.globs.is_empty() {
        found.globs.extend(EVERYWHERE);
    }
    let commands = match overrides.commands.is_empty() {
        true => found.commands,
        false => overrides
            .commands
            .iter()
            .map(written)
            .collect::<Result<_, _>>()?,
    };
    let integration = overrides.integration.iter();
    let integration = integration.map(|(name, command)| Ok((name.clone(), written(command)?)));
    let integration: BTreeMap<_, _> = integration.collect::<Result<_, DetectError>>()?;
    if commands.len().saturating_add(integration.len()) > MAX_COMMANDS {
        return Err(DetectError::TooManyCommands);
    }
    let test_globs: Vec<String> = match overrides.files.is_empty() {
        true => found.globs.iter().map(|glob| (*glob).to_owned()).collect(),
        false => overrides.files.clone(),
    };
    let coverage = overrides.coverage.clone();
    let is_half =
        |coverage: &CoverageCommand| coverage.command.is_empty() || coverage.report.is_empty();
    if coverage.as_ref().is_some_and(is_half) {
        return Err(DetectError::HalfCoverage);
    }
    let measuring = measuring(listing, coverage.as_ref());
    let configuration = CONFIGURATION.iter().copied();
    let configuration = configuration.chain(overrides.configuration.iter().map(String::as_str));
    let configuration = configuration.chain(measuring.iter().map(String::as_str));
    Ok(Layout {
        commands,
        integration,
        coverage,
        tests: globs(test_globs.iter().map(String::as_str))?,
        configuration: globs(configuration)?,
        test_globs,
    })
}

/// The project's own files that measure its coverage: who writes them says how
/// much is covered.
fn measuring(listing: &Listing<'_>, coverage: Option<&CoverageCommand>) -> Vec<String> {
    let words = coverage.iter().flat_map(|coverage| &coverage.command);
    let paths = words.map(|word| format!("/{}", word.trim_start_matches("./")));
    let plain = |path: &String| !path.contains(['*', '?', '[', '{', '!', '\\']);
    paths
        .filter(|path| plain(path) && listing.paths.contains(path))
        .collect()
}

/// Files that do nothing but configure tests, in any language.
const CONFIGURATION: &[&str] = &[
    // Runners.
    "conftest.py",
    "pytest.ini",
    ".pytest.ini",
    "tox.ini",
    "noxfile.py",
    ".coveragerc",
    "jest.config.*",
    "jest.setup.*",
    "vitest.config.*",
    "vitest.setup.*",
    "vitest.workspace.*",
    "vite.config.*",
    ".mocharc*",
    ".nycrc*",
    ".c8rc*",
    ".taprc",
    "ava.config.*",
    "babel.config.*",
    ".babelrc*",
    ".swcrc",
    ".npmrc",
    "requirements-dev.txt",
    "requirements-test.txt",
    "requirements_dev.txt",
    "requirements_test.txt",
    "dev-requirements.txt",
    "test-requirements.txt",
    "rust-toolchain",
    "rust-toolchain.toml",
    "go.work",
    "**/.config/nextest.toml",
    "**/.cargo/config.toml",
    "**/.cargo/config",
    "/.fluffy/**",
    // What would stand in for a runner, or is one.
    "pytest.py",
    "**/pytest/**",
    "**/_pytest/**",
    "pluggy.py",
    "sitecustomize.py",
    "usercustomize.py",
    "**/node_modules/**",
    "**/site-packages/**",
    "**/.venv/**",
    // Continuous integration, and what else starts tests.
    "justfile",
    "Justfile",
    "Taskfile.yml",
    "/.github/workflows/**",
    "/.github/actions/**",
    ".gitlab-ci.yml",
    "/.circleci/**",
    "/.ci/**",
    ".travis.yml",
    ".drone.yml",
    ".woodpecker.yml",
    "/.woodpecker/**",
    "azure-pipelines.yml",
    "Jenkinsfile",
    "/.buildkite/**",
    "appveyor.yml",
    "bitbucket-pipelines.yml",
];

const RUST: &[&str] = &[
    "**/tests/**",
    "**/benches/**",
    "tests.rs",
    "test.rs",
    "*_test.rs",
    "*_tests.rs",
    "*.snap",
];
const PYTHON: &[&str] = &[
    "test_*.py",
    "*_test.py",
    "tests.py",
    "**/tests/**",
    "**/test/**",
];
const GO: &[&str] = &["*_test.go", "**/testdata/**"];
const EVERYWHERE: &[&str] = &[
    "**/tests/**",
    "**/test/**",
    "**/t/**",
    "*_test.*",
    "*.test.*",
    "test_*",
];

#[derive(Default)]
struct Found {
    commands: Vec<TestCommand>,
    globs: BTreeSet<&'static str>,
}

impl Found {
    fn rust(&mut self, listing: &Listing<'_>) {
        for manifest in topmost(listing, &["Cargo.toml"]) {
            self.globs.extend(RUST);
            let folder = parent(manifest);
            let text = listing.contents.get(manifest).map_or("", String::as_str);
            let table: Option<toml::Table> = text.parse().ok();
            let has = |key: &str| table.as_ref().is_some_and(|table| table.contains_key(key));
            let whole: &[&str] = match has("workspace") {
                true => &["--workspace"],
                false => &[],
            };
            let nextest = child(folder, ".config/nextest.toml");
            let runner: (&[&str], Format) = match listing.paths.contains(&nextest) {
                true => (
                    &["cargo", "nextest", "run", "--no-fail-fast"],
                    Format::Nextest,
                ),
                false => (&["cargo", "test", "--no-fail-fast"], Format::Libtest),
            };
            let words = [runner.0, whole].concat();
            self.commands
                .push(TestCommand::new(folder, &words, runner.1));
            // Nextest runs no documentation tests.
            if runner.1 == Format::Nextest {
                let words = [&["cargo", "test", "--doc", "--no-fail-fast"], whole].concat();
                self.commands
                    .push(TestCommand::new(folder, &words, Format::Libtest));
            }
        }
    }

    fn python(&mut self, listing: &Listing<'_>) {
        let markers = [
            "pyproject.toml",
            "setup.py",
            "setup.cfg",
            "pytest.ini",
            "tox.ini",
        ];
        let mut folders: Vec<&str> = topmost(listing, &markers).into_iter().map(parent).collect();
        folders.sort_unstable();
        folders.dedup();
        let is_test = |path: &&String| {
            let name = path.rsplit('/').next().unwrap_or_default();
            name.ends_with(".py") && (name.starts_with("test_") || name.ends_with("_test.py"))
        };
        if folders.is_empty() && listing.paths.iter().any(|path| is_test(&path)) {
            folders.push("/");
        }
        for folder in folders {
            self.globs.extend(PYTHON);
            let words = [
                "python3",
                "-m",
                "pytest",
                "-v",
                "-rA",
                "--tb=short",
                "--color=no",
            ];
            let words = [&words[..], &["-p", "no:cacheprovider"]].concat();
            let mut command = TestCommand::new(folder, &words, Format::Pytest);
            // Compiled files that something left among the sources are not
            // what is tested, and the run leaves none there.
            let elsewhere = "/tmp/fluffy-python".to_owned();
            let variable = "PYTHONPYCACHEPREFIX".to_owned();
            command.environment.insert(variable, elsewhere);
            self.commands.push(command);
        }
    }

    fn javascript(&mut self, listing: &Listing<'_>) {
        for manifest in topmost(listing, &["package.json"]) {
            self.globs.extend(javascript::GLOBS);
            let text = listing.contents.get(manifest).map_or("", String::as_str);
            let folder = parent(manifest);
            self.commands
                .extend(javascript::command(folder, text, listing.paths));
        }
    }

    fn go(&mut self, listing: &Listing<'_>) {
        for module in topmost(listing, &["go.mod"]) {
            self.globs.extend(GO);
            let words = ["go", "test", "-json", "./..."];
            self.commands
                .push(TestCommand::new(parent(module), &words, Format::GoJson));
        }
    }

    fn make(&mut self, listing: &Listing<'_>) {
        for file in topmost(listing, &["GNUmakefile", "makefile", "Makefile"]) {
            let text = listing.contents.get(file).map_or("", String::as_str);
            if let Some(target) = makefile::test_target(text) {
                let words = ["make", target];
                self.commands
                    .push(TestCommand::new(parent(file), &words, Format::Auto));
                return;
            }
        }
    }
}

/// The files with one of these names that are below no other one.
fn topmost<'a>(listing: &Listing<'a>, names: &[&str]) -> Vec<&'a str> {
    let is_named = |path: &&String| {
        let name = path.rsplit('/').next().unwrap_or_default();
        // What others wrote, and what tests bring along, is not the project.
        let foreign = [
            "/node_modules/",
            "/target/",
            "/vendor/",
            "/.venv/",
            "/fixtures/",
            "/testdata/",
        ];
        names.contains(&name) && !foreign.iter().any(|folder| path.contains(folder))
    };
    let mut found: Vec<&str> = listing
        .paths
        .iter()
        .filter(is_named)
        .map(String::as_str)
        .collect();
    found.sort_unstable_by_key(|path| (path.matches('/').count(), *path));
    let mut top: Vec<&str> = Vec::new();
    for path in found {
        let below = |other: &&str| {
            let folder = parent(other);
            folder == "/"
                || path
                    .strip_prefix(folder)
                    .is_some_and(|rest| rest.starts_with('/'))
        };
        if top.len() < MAX_COMMANDS && !top.iter().any(below) {
            top.push(path);
        }
    }
    top
}

/// The folder of a file; `/` at the top.
fn parent(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some(("", _)) | None => "/",
        Some((folder, _)) => folder,
    }
}

fn child(folder: &str, name: &str) -> String {
    match folder {
        "/" => format!("/{name}"),
        folder => format!("{folder}/{name}"),
    }
}

fn written(command: &CommandOverride) -> Result<TestCommand, DetectError> {
    match command.command.first().is_none_or(String::is_empty) {
        true => Err(DetectError::EmptyCommand),
        false => Ok(TestCommand {
            directory: command.directory.clone(),
            command: command.command.clone(),
            environment: BTreeMap::new(),
            format: command.format,
        }),
    }
}

fn globs<'a>(texts: impl Iterator<Item = &'a str> + Clone) -> Result<GlobSet, DetectError> {
    GlobSet::build(texts.clone()).map_err(|(index, source)| DetectError::Glob {
        glob: texts
            .clone()
            .nth(index)
            .unwrap_or_default()
            .chars()
            .take(128)
            .collect(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(files: &[(&str, &str)], overrides: &Overrides) -> Layout {
        let paths: Vec<String> = files.iter().map(|(path, _)| (*path).to_owned()).collect();
        let contents = files
            .iter()
            .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
        let contents: BTreeMap<String, String> = contents.collect();
        let listing = Listing {
            paths: &paths,
            contents: &contents,
        };
        detect(&listing, overrides).unwrap()
    }

    fn commands(files: &[(&str, &str)]) -> Vec<String> {
        let layout = layout(files, &Overrides::default());
        let shown = layout.commands.iter().map(|command| {
            format!(
                "{}: {} ({:?})",
                command.directory,
                command.command.join(" "),
                command.format
            )
        });
        shown.collect()
    }

    #[test]
    fn every_kind_of_project_has_its_command() {
        for (files, expected) in [
            (
                &[("/Cargo.toml", "[package]\nname='a'")][..],
                "/: cargo test --no-fail-fast (Libtest)",
            ),
            (
                &[("/Cargo.toml", "[workspace]")],
                "/: cargo test --no-fail-fast --workspace (Libtest)",
            ),
            (
                &[("/pyproject.toml", "")],
                "/: python3 -m pytest -v -rA --tb=short --color=no -p no:cacheprovider (Pytest)",
            ),
            (
                &[("/tests/test_a.py", "")],
                "/: python3 -m pytest -v -rA --tb=short --color=no -p no:cacheprovider (Pytest)",
            ),
            (&[("/go.mod", "")], "/: go test -json ./... (GoJson)"),
            (&[("/Makefile", "test:\n\ttrue")], "/: make test (Auto)"),
            (
                &[("/a/go.mod", ""), ("/a/b/go.mod", "")],
                "/a: go test -json ./... (GoJson)",
            ),
        ] {
            assert_eq!(commands(files), [expected]);
        }
        assert_eq!(commands(&[("/readme", "")]), Vec::<String>::new());
    }

    #[test]
    fn nextest_is_used_where_it_is_configured() {
        let found = commands(&[("/Cargo.toml", "[package]"), ("/.config/nextest.toml", "")]);
        assert_eq!(
            found,
            [
                "/: cargo nextest run --no-fail-fast (Nextest)",
                "/: cargo test --doc --no-fail-fast (Libtest)",
            ]
        );
    }

    #[test]
    fn several_languages_live_together_and_foreign_ones_do_not_count() {
        let found = commands(&[
            ("/Cargo.toml", "[package]"),
            ("/web/package.json", r#"{"scripts":{"test":"node --test"}}"#),
            (
                "/web/node_modules/x/package.json",
                r#"{"scripts":{"test":"jest"}}"#,
            ),
            ("/Makefile", "test:\n\tcargo test"),
        ]);
        assert_eq!(
            found,
            [
                "/: cargo test --no-fail-fast (Libtest)",
                "/web: node --test --test-reporter=tap (Tap)",
            ]
        );
    }

    #[test]
    fn files_have_their_class() {
        let layout = layout(
            &[
                ("/Cargo.toml", "[package]"),
                ("/package.json", "{}"),
                ("/go.mod", ""),
                ("/setup.py", ""),
            ],
            &Overrides::default(),
        );
        let (test, source) = (Class::Whole(Part::Test), Class::Whole(Part::Source));
        let configuration = Class::Whole(Part::Configuration);
        for (path, class) in [
            ("/tests/a.rs", test),
            ("/crates/x/tests/data/a.json", test),
            ("/src/config/tests.rs", test),
            ("/src/lib.rs", Class::Mixed(Mixture::Rust)),
            ("/Cargo.toml", Class::Mixed(Mixture::Cargo)),
            ("/tests/fixture/Cargo.toml", test),
            ("/web/package.json", Class::Mixed(Mixture::Package)),
            ("/src/a.test.ts", test),
            ("/src/a.ts", source),
            ("/src/__tests__/a.ts", test),
            ("/pkg/a_test.go", test),
            ("/app/test_a.py", test),
            ("/app/contest.py", source),
            ("/tests/conftest.py", configuration),
            ("/jest.config.mjs", configuration),
            ("/.github/workflows/ci.yml", configuration),
            ("/.config/nextest.toml", configuration),
            ("/README.md", source),
            ("/pytest.py", configuration),
            ("/web/node_modules/jest/index.js", configuration),
            ("/node_modules/a/test/x.js", configuration),
            ("/go.mod", Class::Mixed(Mixture::GoMod)),
            ("/Makefile", Class::Mixed(Mixture::Makefile)),
        ] {
            assert_eq!(layout.class(path), class, "{path}");
        }
    }

    #[test]
    fn what_measures_coverage_is_configuration() {
        let coverage = |command: &[&str], report: &str| Overrides {
            coverage: Some(CoverageCommand {
                command: command.iter().map(|word| (*word).to_owned()).collect(),
                report: report.to_owned(),
            }),
            ..Overrides::default()
        };
        let files = [("/cov.sh", ""), ("/tools/cov.py", ""), ("/src/a.js", "")];
        let found = layout(
            &files,
            &coverage(&["sh", "./cov.sh", "tools/cov.py"], "out/a"),
        );
        let configuration = Class::Whole(Part::Configuration);
        assert_eq!(found.class("/cov.sh"), configuration);
        assert_eq!(found.class("/tools/cov.py"), configuration);
        assert_eq!(found.class("/src/a.js"), Class::Whole(Part::Source));
        assert!(found.coverage.is_some());
        let nothing = BTreeMap::new();
        let listing = Listing {
            paths: &[],
            contents: &nothing,
        };
        for half in [coverage(&[], "a"), coverage(&["a"], "")] {
            assert_eq!(detect(&listing, &half), Err(DetectError::HalfCoverage));
        }
    }

    #[test]
    fn a_project_can_say_otherwise() {
        let overrides = Overrides {
            files: vec!["checks/**".to_owned()],
            configuration: vec!["/run.sh".to_owned()],
            commands: vec![CommandOverride {
                command: vec!["./run.sh".to_owned()],
                format: Format::Tap,
                directory: "/".to_owned(),
            }],
            ..Overrides::default()
        };
        let layout = layout(&[("/Cargo.toml", "[package]")], &overrides);
        assert_eq!(layout.class("/checks/a"), Class::Whole(Part::Test));
        assert_eq!(layout.class("/run.sh"), Class::Whole(Part::Configuration));
        assert_eq!(layout.commands.len(), 1);
        let nothing = BTreeMap::new();
        let listing = Listing {
            paths: &[],
            contents: &nothing,
        };
        let bad = Overrides {
            files: vec!["a//b".to_owned()],
            ..Overrides::default()
        };
        assert!(matches!(
            detect(&listing, &bad),
            Err(DetectError::Glob { .. })
        ));
        let command = CommandOverride {
            command: vec![],
            format: Format::Auto,
            directory: "/".to_owned(),
        };
        let empty = Overrides {
            commands: vec![command],
            ..Overrides::default()
        };
        assert_eq!(detect(&listing, &empty), Err(DetectError::EmptyCommand));
    }
}
