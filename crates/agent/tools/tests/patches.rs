//! Patches against folders: `input` and `patch.txt` give `expected`, or a problem.
//!
//! The way of a real call: the registry reads the patch, the request goes
//! through the runner in a folder of its own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "tests"
)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use fluffy_tools::runner::{Answer, Before, Request, read_frame, run, write_frame};
use fluffy_tools::{ProjectPaths, Registry};
use serde_json::json;

/// Every file below a folder with its content.
fn files(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => open.push(path),
                false => {
                    let name = path.strip_prefix(root).unwrap().to_owned();
                    files.insert(name, fs::read(&path).unwrap());
                }
            }
        }
    }
    files
}

/// Applies a patch to a folder, as a call of `fs.edit` would.
fn apply(project: &Path, patch: &str) -> Result<(), String> {
    let registry = Registry::standard(ProjectPaths::new(project));
    let arguments = json!({ "patch": patch });
    let checked = registry.check("fs.edit", &arguments);
    let checked = checked.map_err(|error| error.to_string())?;
    let request = Request::of(&checked.call, |_| Before::Anything);
    let request = request.map_err(|error| error.to_string())?;
    let (mut input, mut output) = (Vec::new(), Vec::new());
    write_frame(&mut input, &request).unwrap();
    run(project, input.as_slice(), &mut output).unwrap();
    match read_frame(output.as_slice()).unwrap() {
        Answer::Done { .. } => Ok(()),
        Answer::Refused { problem, .. } => Err(problem),
        other @ Answer::Broken { .. } => panic!("{other:?}"),
    }
}

#[test]
fn every_fixture_gives_what_it_says() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/patches");
    let mut count = 0;
    for entry in fs::read_dir(fixtures).unwrap() {
        let fixture = entry.unwrap().path();
        let name = fixture.file_name().unwrap().display().to_string();
        let project = tempfile::tempdir().unwrap();
        let input = files(&fixture.join("input"));
        for (path, content) in &input {
            let path = project.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let patch = fs::read_to_string(fixture.join("patch.txt")).unwrap();
        let result = apply(project.path(), &patch);
        let after = files(project.path());
        match fs::read_to_string(fixture.join("problem.txt")) {
            Ok(problem) => {
                let said = result.expect_err(&name);
                assert!(said.contains(problem.trim()), "{name}: {said}");
                assert_eq!(after, input, "{name}: nothing changed");
            }
            Err(_) => {
                assert_eq!(result, Ok(()), "{name}");
                assert_eq!(after, files(&fixture.join("expected")), "{name}");
                assert_ne!(after, input, "{name}: something changed");
            }
        }
        count += 1;
    }
    assert!(count >= 30, "{count} fixtures");
}
