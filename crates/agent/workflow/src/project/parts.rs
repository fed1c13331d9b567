//! What a change touches: tests, source, or the runner's configuration.
//!
//! Most files are one thing. A Rust file can hold tests beside its source,
//! and a manifest holds the test runner's settings beside the program's; such
//! files are compared part by part. What cannot be read counts as every part.

use std::collections::{BTreeMap, BTreeSet};

use fluffy_base::Digest;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{gomod, ini, makefile, rust};

/// What a piece of a file is to the workflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Tests, their fixtures and snapshots.
    Test,
    /// What is tested, and everything else.
    Source,
    /// How tests are found and run.
    Configuration,
}

impl Part {
    /// The word for people.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Test => "tests",
            Self::Source => "source",
            Self::Configuration => "test configuration",
        }
    }
}

/// What a file is, as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// All of it is one part.
    Whole(Part),
    /// It is more than one thing.
    Mixed(Mixture),
}

/// Files that are more than one thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mixture {
    /// Rust source with inline tests.
    Rust,
    /// `Cargo.toml`.
    Cargo,
    /// `package.json`.
    Package,
    /// `pyproject.toml`.
    Pyproject,
    /// `setup.cfg`.
    SetupCfg,
    /// A Makefile.
    Makefile,
    /// `go.mod`.
    GoMod,
}

/// One version of a file, part by part; a part that is absent has no digest.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Parts(BTreeMap<Part, Digest>);

impl Parts {
    /// Looks at one version of a file; `None` is a file that does not exist.
    #[must_use]
    pub fn of(class: Class, text: Option<&str>) -> Self {
        let Some(text) = text else {
            return Self::default();
        };
        match class {
            Class::Whole(part) => Self(BTreeMap::from([(part, Digest::of(text.as_bytes()))])),
            Class::Mixed(mixture) => {
                let split = mixture.split(text);
                split.unwrap_or_else(|| Self::unreadable(text))
            }
        }
    }

    fn unreadable(text: &str) -> Self {
        let digest = Digest::of(text.as_bytes());
        let parts = [Part::Test, Part::Source, Part::Configuration];
        Self(parts.map(|part| (part, digest)).into())
    }

    fn from_texts(texts: [(Part, &str); 2]) -> Self {
        let present = texts.into_iter().filter(|(_, text)| !text.is_empty());
        Self(
            present
                .map(|(part, text)| (part, Digest::of(text.as_bytes())))
                .collect(),
        )
    }

    /// The parts that differ between two versions.
    #[must_use]
    pub fn touched(before: &Self, after: &Self) -> BTreeSet<Part> {
        let all = [Part::Test, Part::Source, Part::Configuration];
        let differs = |part: &Part| before.0.get(part) != after.0.get(part);
        all.into_iter().filter(differs).collect()
    }

    /// The digest of one part, if the file has it.
    #[must_use]
    pub fn digest(&self, part: Part) -> Option<Digest> {
        self.0.get(&part).copied()
    }

    /// A digest of everything that is frozen while source is written.
    #[must_use]
    pub fn frozen(&self) -> Digest {
        let part = |part| self.0.get(&part).map_or([0; 32], |digest| digest.0);
        Digest::of_parts(&[&part(Part::Test), &part(Part::Configuration)])
    }
}

/// The parts that differ between two versions of a file.
#[must_use]
pub fn compare(class: Class, before: Option<&str>, after: Option<&str>) -> BTreeSet<Part> {
    Parts::touched(&Parts::of(class, before), &Parts::of(class, after))
}

impl Mixture {
    fn split(self, text: &str) -> Option<Parts> {
        match self {
            Self::Rust => {
                let (test, source) = rust::split(text).ok()?;
                let texts = [(Part::Test, test.as_str()), (Part::Source, &source)];
                Some(Parts::from_texts(texts))
            }
            Self::Cargo => tree(toml_value(text)?, CARGO),
            Self::Pyproject => tree(toml_value(text)?, PYPROJECT),
            Self::Package => tree(serde_json::from_str(text).ok()?, PACKAGE),
            Self::SetupCfg => Some(two(ini::split(text))),
            Self::Makefile => Some(two(makefile::split(text))),
            Self::GoMod => Some(two(gomod::split(text))),
        }
    }
}

fn two((configuration, source): (String, String)) -> Parts {
    let texts = [
        (Part::Configuration, configuration.as_str()),
        (Part::Source, &source),
    ];
    Parts::from_texts(texts)
}

/// Where test settings are in `Cargo.toml`; `*` is every key or entry.
const CARGO: &[&[&str]] = &[
    &["dev-dependencies"],
    &["dev_dependencies"],
    &["target", "*", "dev-dependencies"],
    &["test"],
    &["bench"],
    &["lib", "test"],
    &["lib", "doctest"],
    &["lib", "harness"],
    &["bin", "*", "test"],
    &["bin", "*", "harness"],
    &["example", "*", "test"],
    &["package", "autotests"],
    // Either can put something else in the place of what tests use.
    &["patch"],
    &["replace"],
    &["profile", "test"],
    &["profile", "dev"],
];

const PYPROJECT: &[&[&str]] = &[
    &["dependency-groups"],
    &["project", "optional-dependencies"],
    &["tool", "coverage"],
    &["tool", "hatch", "envs"],
    &["tool", "nox"],
    &["tool", "poetry", "dev-dependencies"],
    &["tool", "poetry", "group"],
    &["tool", "pytest"],
    &["tool", "tox"],
    &["tool", "uv"],
];

const PACKAGE: &[&[&str]] = &[
    &["ava"],
    &["c8"],
    &["devDependencies"],
    &["jest"],
    &["mocha"],
    &["nyc"],
    &["overrides"],
    &["pnpm"],
    &["resolutions"],
    &["scripts"],
    &["tap"],
    &["vitest"],
];

fn toml_value(text: &str) -> Option<Value> {
    let table: toml::Table = text.parse().ok()?;
    serde_json::to_value(table).ok()
}

/// Takes the named places out of a document; what is left is source.
fn tree(mut document: Value, places: &[&[&str]]) -> Option<Parts> {
    if !document.is_object() {
        return None;
    }
    let mut taken = Vec::new();
    for place in places {
        take(&mut document, place, &mut taken);
    }
    let configuration = match taken.is_empty() {
        true => String::new(),
        false => serde_json::to_string(&taken).ok()?,
    };
    let source = serde_json::to_string(&document).ok()?;
    Some(two((configuration, source)))
}

/// The depth is that of the tables above, so this does not recurse far.
fn take(value: &mut Value, place: &[&str], taken: &mut Vec<(String, Value)>) {
    let Some((key, rest)) = place.split_first() else {
        return;
    };
    match (value, *key) {
        (Value::Object(map), "*") => map.retain(|_, value| {
            take(value, rest, taken);
            !value.as_object().is_some_and(serde_json::Map::is_empty)
        }),
        (Value::Array(list), "*") => list.iter_mut().for_each(|value| take(value, rest, taken)),
        (Value::Object(map), key) if rest.is_empty() => {
            if let Some(found) = map.remove(key) {
                taken.push((key.to_owned(), found));
            }
        }
        (Value::Object(map), key) => {
            if let Some(value) = map.get_mut(key) {
                take(value, rest, taken);
                // A table that only held test settings is no source.
                if value.as_object().is_some_and(serde_json::Map::is_empty) {
                    map.remove(key);
                }
            }
        }
        (
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_),
            _,
        ) => {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn touched(mixture: Mixture, before: &str, after: &str) -> Vec<Part> {
        let touched = compare(Class::Mixed(mixture), Some(before), Some(after));
        touched.into_iter().collect()
    }

    #[test]
    fn inline_tests_and_source_are_apart() {
        let file = |body: &str, test: &str| {
            format!("fn a() {{ {body} }}\n#[cfg(test)]\nmod tests {{ {test} }}\n")
        };
        let before = file("1", "x");
        assert_eq!(
            touched(Mixture::Rust, &before, &file("2", "x")),
            [Part::Source]
        );
        assert_eq!(
            touched(Mixture::Rust, &before, &file("1", "y")),
            [Part::Test]
        );
        assert_eq!(
            touched(Mixture::Rust, &before, &file("2", "y")),
            [Part::Test, Part::Source]
        );
        assert_eq!(
            touched(Mixture::Rust, &before, &format!("\n{before}\n")),
            []
        );
        assert_eq!(
            touched(Mixture::Rust, "fn a() { 1 }", &before),
            [Part::Test]
        );
        assert_eq!(
            touched(Mixture::Rust, &before, "fn a() { /* x */ 1 }"),
            [Part::Test, Part::Source]
        );
    }

    #[test]
    fn what_cannot_be_read_counts_as_everything() {
        let all = [Part::Test, Part::Source, Part::Configuration];
        assert_eq!(touched(Mixture::Rust, "fn a() {}", "fn a() {"), all);
        let two = [Part::Test, Part::Source, Part::Configuration];
        assert_eq!(touched(Mixture::Cargo, "a = 1", "a = "), two);
        assert_eq!(touched(Mixture::Package, "{}", "[]"), two);
    }

    #[test]
    fn test_sections_of_manifests_are_configuration() {
        let cargo = "[package]\nname = \"a\"\n[dependencies]\nb = \"1\"\n";
        let check = |extra: &str| touched(Mixture::Cargo, cargo, &format!("{cargo}{extra}"));
        assert_eq!(
            check("[dev-dependencies]\nc = \"1\"\n"),
            [Part::Configuration]
        );
        assert_eq!(
            check("[[test]]\nname = \"x\"\nharness = false\n"),
            [Part::Configuration]
        );
        assert_eq!(check("[lib]\ntest = false\n"), [Part::Configuration]);
        assert_eq!(
            check("[target.'cfg(unix)'.dev-dependencies]\nc = \"1\"\n"),
            [Part::Configuration]
        );
        assert_eq!(check("c = \"1\"\n"), [Part::Source]);
        assert_eq!(check("# a comment\n"), []);

        let package = r#"{"name":"a","scripts":{"test":"jest"}}"#;
        let check = |after: &str| touched(Mixture::Package, package, after);
        assert_eq!(
            check(r#"{"name":"a","scripts":{"test":"true"}}"#),
            [Part::Configuration]
        );
        assert_eq!(
            check(r#"{"name":"b","scripts":{"test":"jest"}}"#),
            [Part::Source]
        );

        let go = "module a\n\nrequire b v1\n";
        let check = |extra: &str| touched(Mixture::GoMod, go, &format!("{go}{extra}"));
        assert_eq!(check("replace b => ./fake\n"), [Part::Configuration]);
        assert_eq!(
            check("replace (\n\tb => ./fake\n)\n"),
            [Part::Configuration]
        );
        assert_eq!(check("require c v1\n"), [Part::Source]);

        let python = "[project]\nname = \"a\"\n";
        let after = format!("{python}[tool.pytest.ini_options]\naddopts = \"-q\"\n");
        assert_eq!(
            touched(Mixture::Pyproject, python, &after),
            [Part::Configuration]
        );
    }

    #[test]
    fn a_new_and_a_removed_file_touch_their_parts() {
        let class = Class::Whole(Part::Test);
        assert_eq!(
            compare(class, None, Some("x")),
            BTreeSet::from([Part::Test])
        );
        assert_eq!(
            compare(class, Some("x"), None),
            BTreeSet::from([Part::Test])
        );
        let rust = Class::Mixed(Mixture::Rust);
        assert_eq!(
            compare(rust, None, Some("fn a() {}")),
            BTreeSet::from([Part::Source])
        );
    }

    /// Items of a Rust file, with a number that can be changed.
    const SOURCE: &[&str] = &[
        "pub fn a() { let x = N; }",
        "// a comment N",
        "/* { N */ const A: [u8; 1] = [N];",
        "static TEXT: &str = r##\"#[cfg(test)] mod x { N\"##;",
        "struct S<'a> { a: &'a str, b: [u8; N] }",
        "#[derive(Debug)]\nenum E { A = N }",
        "#[cfg(not(test))]\nfn real() -> char { '{'; N }",
        "macro_rules! m { () => { N } }",
        "impl S<'_> { fn n(&self) -> u8 { b'\\''; N } }",
    ];
    const TESTS: &[&str] = &[
        "#[cfg(test)]\nmod tests { use super::*; #[test] fn t() { assert_eq!(N, \"}\".len()); } }",
        "#[test]\n#[ignore]\nfn outside() { let _ = N; }",
        "#[cfg(all(test, unix))]\nconst LIMIT: usize = { N };",
        "#[cfg(test)]\nuse std::collections::{BTreeMap as B_N};",
        "#[tokio::test]\nasync fn later() { N }",
    ];

    proptest! {
        /// Whatever a text is, it is not different from itself.
        #[test]
        fn any_text_can_be_compared(
            picks in proptest::collection::vec((0..PIECES.len(), any::<bool>()), 0..40),
            noise in "\\PC{0,20}",
        ) {
            let mut text = String::new();
            for (pick, newline) in picks {
                text.push_str(PIECES[pick]);
                text.push_str(if newline { "\n" } else { &noise });
            }
            for mixture in MIXTURES {
                prop_assert_eq!(touched(mixture, &text, &text), []);
            }
        }

        /// A change to source touches source only, one to tests only tests,
        /// wherever they stand and whatever stands around them.
        #[test]
        fn changes_are_told_apart(
            items in proptest::collection::vec((any::<bool>(), 0usize..45), 1..12),
            chosen in any::<proptest::sample::Index>(),
            wrapped in any::<bool>(),
        ) {
            let chosen = chosen.index(items.len());
            let file = |changed: Option<usize>| {
                let mut text = String::new();
                for (at, (is_test, pick)) in items.iter().enumerate() {
                    let list = if *is_test { TESTS } else { SOURCE };
                    let number = if changed == Some(at) { "77" } else { "5" };
                    text.push_str(&list[pick % list.len()].replace('N', number));
                    text.push_str("\n\n");
                }
                match wrapped {
                    true => format!("mod outer {{\n{text}}}\n"),
                    false => text,
                }
            };
            let expected = if items[chosen].0 { Part::Test } else { Part::Source };
            prop_assert_eq!(touched(Mixture::Rust, &file(None), &file(Some(chosen))), [expected]);
        }
    }

    const MIXTURES: [Mixture; 7] = [
        Mixture::Rust,
        Mixture::Cargo,
        Mixture::Package,
        Mixture::Pyproject,
        Mixture::SetupCfg,
        Mixture::Makefile,
        Mixture::GoMod,
    ];

    const PIECES: &[&str] = &[
        "#[cfg(test)]",
        "#[test]",
        "mod tests {",
        "}",
        "{",
        "fn a() {}",
        "use a::{b, c};",
        "r#\"",
        "\"#",
        "\"",
        "'",
        "'a",
        "'\\''",
        "/*",
        "*/",
        "// x",
        "#",
        "[",
        "]",
        "(",
        ")",
        ";",
        ",",
        "b\"x\"",
        "r",
        "é",
        "[test]",
        "scripts",
        "test:",
        "\ttrue",
        "a = 1",
        "[tool.pytest]",
        "replace (",
        "{\"scripts\":{}}",
    ];
}
