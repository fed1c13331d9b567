//! How a JavaScript project runs its tests.
//!
//! A script is used only to recognise the runner. Where the script does more
//! than call it, `npm test` runs with the runner's machine output asked for.

use serde_json::Value;

use super::detect::TestCommand;
use crate::results::Format;

/// Test files, whatever the runner.
pub(super) const GLOBS: &[&str] = &[
    "*.test.*",
    "*.spec.*",
    "*-test.js",
    "*_test.js",
    "**/__tests__/**",
    "**/__mocks__/**",
    "**/__snapshots__/**",
    "**/test/**",
    "**/tests/**",
];

/// The command for one `package.json`, if there are tests at all.
pub(super) fn command(folder: &str, manifest: &str, paths: &[String]) -> Option<TestCommand> {
    let manifest: Value = serde_json::from_str(manifest).unwrap_or(Value::Null);
    let script = manifest.pointer("/scripts/test").and_then(Value::as_str);
    // What `npm init` writes is no test.
    let script = script.filter(|script| !script.contains("no test specified"));
    let runner = match script {
        Some(script) => Runner::named_in(script),
        None => Runner::installed(&manifest).or_else(|| has_tests(paths).then_some(Runner::Node)),
    };
    let has_hook = manifest.pointer("/scripts/pretest").is_some();
    match (script, runner) {
        (None, None) => None,
        (None, Some(runner)) => Some(runner.command(folder, &[])),
        (Some(_), None) => Some(TestCommand::new(
            folder,
            &["npm", "test", "--silent"],
            Format::Auto,
        )),
        (Some(script), Some(runner)) => Some(match words(script).filter(|_| !has_hook) {
            Some(words) if runner.is_called_by(&words) => {
                let rest = words.get(1..).unwrap_or_default();
                runner.command(folder, rest)
            }
            Some(_) | None => runner.through_npm(folder),
        }),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Runner {
    Node,
    Vitest,
    Jest,
    Mocha,
}

impl Runner {
    const INSTALLED: [(&'static str, Self); 3] = [
        ("vitest", Self::Vitest),
        ("jest", Self::Jest),
        ("mocha", Self::Mocha),
    ];

    /// The last one that a script calls: what comes before it prepares.
    fn named_in(script: &str) -> Option<Self> {
        let last = script.rsplit(['&', ';', '|']).next().unwrap_or_default();
        let words: Vec<&str> = last.split_whitespace().collect();
        let named = |name: &str| {
            words
                .iter()
                .any(|word| word.rsplit('/').next() == Some(name))
        };
        let installed = Self::INSTALLED.into_iter().find(|(name, _)| named(name));
        let node = named("node") && words.contains(&"--test");
        installed
            .map(|(_, runner)| runner)
            .or(node.then_some(Self::Node))
    }

    fn installed(manifest: &Value) -> Option<Self> {
        let listed = |name: &str| {
            ["devDependencies", "dependencies"].iter().any(|group| {
                manifest
                    .get(group)
                    .is_some_and(|group| group.get(name).is_some())
            })
        };
        Self::INSTALLED
            .into_iter()
            .find(|(name, _)| listed(name))
            .map(|(_, runner)| runner)
    }

    fn is_called_by(self, words: &[String]) -> bool {
        let program = words.first().map_or("", String::as_str);
        let name = match self {
            Self::Node => "node",
            Self::Vitest => "vitest",
            Self::Jest => "jest",
            Self::Mocha => "mocha",
        };
        program == name
    }

    const fn flags(self) -> (&'static [&'static str], Format) {
        match self {
            Self::Node => (&["--test-reporter=tap"], Format::Tap),
            Self::Vitest => (&["--reporter=json"], Format::JestJson),
            Self::Jest => (&["--ci", "--json"], Format::JestJson),
            Self::Mocha => (&["--reporter", "json"], Format::MochaJson),
        }
    }

    /// The runner itself, with the arguments that its script gives it.
    fn command(self, folder: &str, rest: &[String]) -> TestCommand {
        let (flags, format) = self.flags();
        let given = rest.iter().map(String::as_str);
        let given: Vec<&str> = given
            .filter(|word| !matches!(*word, "run" | "watch" | "--watch" | "--test"))
            .collect();
        let start: &[&str] = match self {
            // Node's options must come before its files.
            Self::Node => &["node", "--test"],
            Self::Vitest => &["npx", "--no-install", "vitest", "run"],
            Self::Jest => &["npx", "--no-install", "jest"],
            Self::Mocha => &["npx", "--no-install", "mocha"],
        };
        TestCommand::new(folder, &[start, flags, &given].concat(), format)
    }

    fn through_npm(self, folder: &str) -> TestCommand {
        let (flags, format) = self.flags();
        match self {
            Self::Node => {
                let mut command = TestCommand::new(folder, &["npm", "test", "--silent"], format);
                let options = ("NODE_OPTIONS".to_owned(), flags.join(" "));
                command.environment.extend([options]);
                command
            }
            Self::Vitest | Self::Jest | Self::Mocha => {
                let words = [&["npm", "test", "--silent", "--"], flags].concat();
                TestCommand::new(folder, &words, format)
            }
        }
    }
}

/// The words of a script that is one plain command.
fn words(script: &str) -> Option<Vec<String>> {
    if script.contains(['&', ';', '|', '<', '>', '$', '`', '\\', '\n', '(']) {
        return None;
    }
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quote = None;
    for character in script.chars() {
        match (quote, character) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), c) => word.push(c),
            (None, '\'' | '"') => quote = Some(character),
            (None, c) if c.is_whitespace() => words.push(std::mem::take(&mut word)),
            (None, c) => word.push(c),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    quote.is_none().then_some(words)
}

fn has_tests(paths: &[String]) -> bool {
    paths.iter().any(|path| {
        let name = path.rsplit('/').next().unwrap_or_default();
        name.contains(".test.") && !path.contains("/node_modules/")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(manifest: &str) -> Option<String> {
        let command = command("/", manifest, &["/a.test.js".to_owned()])?;
        Some(command.command.join(" "))
    }

    #[test]
    fn the_runner_is_called_with_its_machine_output() {
        for (script, expected) in [
            ("node --test", "node --test --test-reporter=tap"),
            ("node --test test/", "node --test --test-reporter=tap test/"),
            ("vitest", "npx --no-install vitest run --reporter=json"),
            (
                "vitest run --dir 'a b'",
                "npx --no-install vitest run --reporter=json --dir a b",
            ),
            (
                "jest --coverage",
                "npx --no-install jest --ci --json --coverage",
            ),
            ("mocha lib", "npx --no-install mocha --reporter json lib"),
            ("tsc && jest", "npm test --silent -- --ci --json"),
            (
                "NODE_ENV=test mocha",
                "npm test --silent -- --reporter json",
            ),
            ("tsc && node --test", "npm test --silent"),
            ("./strange.sh", "npm test --silent"),
        ] {
            let manifest = serde_json::json!({ "scripts": { "test": script } });
            assert_eq!(
                run(&manifest.to_string()).as_deref(),
                Some(expected),
                "{script}"
            );
        }
    }

    #[test]
    fn without_a_script_what_is_installed_decides() {
        assert_eq!(
            run(r#"{"devDependencies":{"jest":"^30"}}"#).as_deref(),
            Some("npx --no-install jest --ci --json")
        );
        assert_eq!(
            run("{}").as_deref(),
            Some("node --test --test-reporter=tap")
        );
        assert_eq!(command("/", "{}", &[]), None);
        let empty = r#"{"scripts":{"test":"echo \"Error: no test specified\" && exit 1"}}"#;
        assert_eq!(command("/", empty, &[]), None);
    }

    #[test]
    fn a_hook_before_the_tests_is_kept() {
        let manifest = r#"{"scripts":{"pretest":"tsc","test":"node --test"}}"#;
        let command = command("/", manifest, &[]).unwrap();
        assert_eq!(command.command, ["npm", "test", "--silent"]);
        assert_eq!(command.environment["NODE_OPTIONS"], "--test-reporter=tap");
    }
}
