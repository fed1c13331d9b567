//! `fluffy plugin new`: a working project, written whole or not at all.
//!
//! The files are those below `templates/plugin`, and the SDK's own sources for
//! Rust. Never writes into a folder that is there.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use fluffy_policy::action::is_plugin_name;
use fluffy_report::{ExitCode, Report};
use serde_json::json;

use crate::args::PluginLanguage;
use crate::command::Outcome;
use crate::session::Session;

/// What stands for the plugin's name in a template.
const NAME: &str = "{{name}}";

/// A path in the project, and the text of that file.
type File = (&'static str, &'static str);

macro_rules! template {
    ($language:literal: $($path:literal),+ $(,)?) => {
        &[
            (".gitignore", include_str!(concat!("../../../templates/plugin/", $language, "/gitignore"))),
            $(($path, include_str!(concat!("../../../templates/plugin/", $language, "/", $path)))),+
        ]
    };
}

macro_rules! sdk {
    ($($path:literal),+ $(,)?) => {
        &[$((concat!("vendor/", $path), include_str!(concat!("../../../../../plugin/", $path)))),+]
    };
}

const GO: &[File] = template!("go": "README.md", "go.mod", "main.go", "plugin/plugin.yaml", "tools.go", "tools_test.go");

const PYTHON: &[File] = template!(
    "python": "README.md", "plugin/plugin.yaml", "plugin/server.py", "plugin/tools.py", "tests/test_plugin.py",
);

const RUST: &[File] = template!(
    "rust": "Cargo.lock", "Cargo.toml", "README.md", "plugin/plugin.yaml", "src/lib.rs",
    "vendor/sdk-macros/Cargo.toml", "vendor/sdk/Cargo.toml",
);

/// The SDK is not in a registry yet, so a project brings it along.
const SDK: &[File] = sdk!(
    "host/wit/host.wit",
    "host/wit/plugin.wit",
    "sdk-macros/src/lib.rs",
    "sdk/src/arguments.rs",
    "sdk/src/component.rs",
    "sdk/src/host.rs",
    "sdk/src/host/double.rs",
    "sdk/src/lib.rs",
    "sdk/src/tool.rs",
);

const TYPESCRIPT: &[File] = template!(
    "ts": "README.md", "package.json", "plugin/package.json", "plugin/plugin.yaml", "src/main.ts",
    "src/node.d.ts", "src/server.ts", "src/tools.ts", "test/plugin.test.mjs", "tsconfig.json",
);

/// Writes a project for a plugin of this name.
pub(super) fn run(
    session: &Session,
    language: PluginLanguage,
    name: &str,
    folder: Option<PathBuf>,
) -> Outcome {
    if !is_plugin_name(name) {
        return Err(Report::new(
            ExitCode::Usage,
            format!("`{name}` cannot be a plugin's name"),
        )
        .why("a name has 2 to 64 characters of a to z, 0 to 9 and `-`, and begins with a letter")
        .fix("choose another, such as `word-count`")
        .into());
    }
    let place = session
        .folder()?
        .join(folder.unwrap_or_else(|| name.into()));
    // Also a link that leads nowhere is something that is there.
    if fs::symlink_metadata(&place).is_ok() {
        return Err(Report::new(
            ExitCode::Usage,
            format!("`{}` is there already", place.display()),
        )
        .why("a new project is never written over something else")
        .fix("choose another folder with --dir, or remove this one")
        .into());
    }
    let files = files_of(language);
    write_whole(&place, &files, name).map_err(|error| {
        let what = format!("`{}` cannot be written", place.display());
        Report::new(ExitCode::Failure, what)
            .why(error.to_string())
            .fix("check that the folder around it exists, is yours and has room")
    })?;
    if session.json() {
        let paths: Vec<&str> = files.iter().map(|(path, _)| *path).collect();
        let value = json!({"plugin": name, "folder": place, "files": paths});
        session.printer.json(&value)?;
    } else {
        let said = format!(
            "`{name}` is in {}; its README.md says how to build, test and install it.",
            place.display()
        );
        session.printer.data(&said)?;
    }
    Ok(ExitCode::Success)
}

fn files_of(language: PluginLanguage) -> Vec<File> {
    match language {
        PluginLanguage::Go => GO.to_vec(),
        PluginLanguage::Python => PYTHON.to_vec(),
        PluginLanguage::Rust => [RUST, SDK].concat(),
        PluginLanguage::Ts => TYPESCRIPT.to_vec(),
    }
}

/// Writes beside the place and renames, so that nothing is there by half.
fn write_whole(place: &Path, files: &[File], name: &str) -> io::Result<()> {
    let around = place.parent().unwrap_or(Path::new("/"));
    let whole = tempfile::Builder::new()
        .prefix(".fluffy-new-")
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .tempdir_in(around)?;
    for (path, text) in files {
        let path = whole.path().join(path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, text.replace(NAME, name))?;
    }
    fs::rename(whole.path(), place)?;
    // It has another name now; there is nothing left to remove.
    let _ = whole.keep();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn below(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => below(&path, found),
                false => found.push(path),
            }
        }
    }

    /// The files below a folder, from the folder on.
    fn all(folder: &str) -> Vec<String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        let mut found = Vec::new();
        below(&root, &mut found);
        let short = |path: PathBuf| {
            path.strip_prefix(&root)
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned()
        };
        let mut found: Vec<String> = found.into_iter().map(short).collect();
        found.sort_unstable();
        found
    }

    #[test]
    fn every_file_of_a_template_is_in_it() {
        for (folder, files) in [
            ("go", GO),
            ("python", PYTHON),
            ("rust", RUST),
            ("ts", TYPESCRIPT),
        ] {
            let mut named: Vec<&str> = files.iter().map(|(path, _)| *path).collect();
            named[0] = "gitignore";
            named.sort_unstable();
            assert_eq!(all(&format!("templates/plugin/{folder}")), named);
        }
    }

    #[test]
    fn a_rust_project_brings_the_whole_sdk_along() {
        for crate_name in ["sdk", "sdk-macros"] {
            let mut files = all(&format!("../../plugin/{crate_name}/src"));
            files.sort_unstable();
            let prefix = format!("vendor/{crate_name}/src/");
            let named = SDK
                .iter()
                .filter_map(|(path, _)| path.strip_prefix(&prefix));
            assert_eq!(files, named.collect::<Vec<_>>());
        }
        assert_eq!(all("../../plugin/host/wit"), ["host.wit", "plugin.wit"]);
    }

    #[test]
    fn the_sdk_that_is_brought_along_wants_what_ours_wants() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let ours = fs::read_to_string(root.join("../../../Cargo.toml")).unwrap();
        let wanted = RUST.iter().filter(|(path, _)| path.starts_with("vendor/"));
        let lines = wanted.flat_map(|(_, text)| {
            text.lines()
                .skip_while(|line| !line.contains("dependencies]"))
        });
        let mut looked_at = 0;
        for line in lines.filter(|line| {
            line.contains(" = ") && !line.starts_with('[') && !line.contains("path =")
        }) {
            let (name, rest) = line.split_once(" = ").unwrap();
            let version = rest.split('"').nth(1).unwrap();
            let same = ours.lines().any(|line| {
                line.starts_with(&format!("{name} = ")) && line.contains(&format!("\"{version}\""))
            });
            assert!(same, "{line}");
            looked_at += 1;
        }
        assert_eq!(looked_at, 5);
    }
}
