//! What the files of a folder say about the app in it: a name, a port.
//!
//! Only proposals: a person sees them, or has typed something else. Reads what
//! builders read, bounded, and runs none of it.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use serde_json::Value;

/// The most that is read of a file.
const LARGEST: u64 = 1 << 20;

/// What was found; nothing is certain.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// What the app calls itself.
    pub(super) name: Option<String>,
    /// Where it listens.
    pub(super) port: Option<u16>,
}

/// Looks at the files that say such things.
pub(super) fn look(folder: &Path) -> Found {
    let read = |name: &str| read(&folder.join(name));
    let recipe = read("Dockerfile").or_else(|| read("Containerfile"));
    let names = [
        read("package.json").and_then(|text| of_package(&text)),
        read("Cargo.toml").and_then(|text| of_toml(&text, "package")),
        read("pyproject.toml").and_then(|text| of_toml(&text, "project")),
        read("go.mod").and_then(|text| of_module(&text)),
    ];
    Found {
        name: names.into_iter().flatten().next(),
        port: recipe.and_then(|text| exposed(&text)),
    }
}

fn read(path: &Path) -> Option<String> {
    // Neither a pipe nor a device: those never end.
    if !path.is_file() {
        return None;
    }
    let mut text = String::new();
    let file = File::open(path).ok()?;
    file.take(LARGEST).read_to_string(&mut text).ok()?;
    Some(text)
}

/// The last port that a recipe of an image exposes; the others are of stages
/// before.
fn exposed(recipe: &str) -> Option<u16> {
    let lines = recipe.lines().rev().map(str::split_whitespace);
    let mut exposed = lines.filter_map(|mut words| {
        let first = words.next()?;
        first.eq_ignore_ascii_case("EXPOSE").then_some(words)
    });
    exposed.find_map(|mut words| words.find_map(port))
}

fn port(word: &str) -> Option<u16> {
    let word = word.strip_suffix("/tcp").unwrap_or(word);
    word.parse().ok().filter(|port| *port > 0)
}

fn of_package(text: &str) -> Option<String> {
    let package: Value = serde_json::from_str(text).ok()?;
    let name = package.get("name")?.as_str()?;
    // `@scope/name`.
    name.rsplit('/').next().map(str::to_owned)
}

fn of_toml(text: &str, table: &str) -> Option<String> {
    let document: toml::Table = toml::from_str(text).ok()?;
    Some(document.get(table)?.get("name")?.as_str()?.to_owned())
}

fn of_module(text: &str) -> Option<String> {
    let module = text.lines().find_map(|line| line.strip_prefix("module "))?;
    module.trim().rsplit('/').next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn found(files: &[(&str, &str)]) -> (Option<String>, Option<u16>) {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let Found { name, port } = look(folder.path());
        (name, port)
    }

    #[test]
    fn files_name_an_app_and_its_port() {
        let named = |name: &str| (Some(name.to_owned()), None);
        assert_eq!(found(&[]), (None, None));
        for (file, text, expected) in [
            ("package.json", r#"{"name": "@acme/shop"}"#, named("shop")),
            ("Cargo.toml", "[package]\nname = \"web\"\n", named("web")),
            ("Cargo.toml", "[workspace]\n", (None, None)),
            (
                "pyproject.toml",
                "[project]\nname = \"api\"\n",
                named("api"),
            ),
            ("go.mod", "module example.com/acme/edge\n", named("edge")),
            (
                "Dockerfile",
                "FROM a\nEXPOSE 80\nFROM b\nexpose 8080/tcp\n",
                (None, Some(8080)),
            ),
            ("Containerfile", "EXPOSE 53/udp 5353\n", (None, Some(5353))),
            ("Dockerfile", "EXPOSE $PORT\nEXPOSE 0 99999\n", (None, None)),
            ("package.json", "no JSON", (None, None)),
            ("Cargo.toml", "no = [", (None, None)),
        ] {
            assert_eq!(found(&[(file, text)]), expected, "{file}: {text}");
        }
    }
}
