//! The tools of the product, and how their arguments are read.
//!
//! What each is for is in its family's manifest (`built_in`): what the model
//! chooses by, in a few words. A new tool is one line there, one entry here,
//! one type in `arguments`, one variant of `Call`, and one example in the
//! registry's tests.

use std::time::Duration;

use fluffy_contract::tool::{Handling, Keep, Place, Repeat, ToolDescription};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Entry, Read};
use crate::arguments::{
    AskPath, Commit, CompletePlan, EditFile, FindFiles, ListDirectory, Nothing, ReadFile,
    RemoveFile, RequestExemption, RunCommand, RunTests, SearchText, SetMode, ShowDiff, ShowLog,
    TestIsWrong, Transition, WriteFile,
};
use crate::built_in;
use crate::call::{Call, ReplaceInFile};
use crate::edit::{self, FileChangeKind, Which};
use crate::paths::ProjectPaths;
use crate::schema;

/// The most entries of a list in the arguments.
const MAX_LIST: usize = 256;

/// How long a read waits before it is tried again.
const AGAIN: Repeat = Repeat::Once {
    after: Duration::from_millis(100),
};

/// In the kernel, only reading.
const NATIVE: Handling = handling(Place::Native, AGAIN, Keep::Head);

/// In a sandbox, changing files.
const WRITING: Handling = handling(Place::Sandbox, Repeat::Never, Keep::Head);

/// In a sandbox, only looking.
const LOOKING: Handling = handling(Place::Sandbox, AGAIN, Keep::Head);

/// In a sandbox; the reason for a failure is at an end of the output.
const COMMAND: Handling = handling(Place::Sandbox, Repeat::Never, Keep::Ends);

/// In a sandbox; the result is at the end of the output.
const TESTS: Handling = handling(Place::Sandbox, Repeat::Never, Keep::Tail);

/// A step of the workflow.
const KERNEL: Handling = handling(Place::Kernel, Repeat::Never, Keep::Head);

type Made = Result<Call, String>;

/// Every tool, in the order in which the model sees them.
pub(super) fn tools() -> Vec<Entry> {
    let mut tools = reading();
    tools.extend(writing());
    tools.extend(commands());
    tools.extend(workflow());
    let mut declared = built_in::declared();
    for tool in &mut tools {
        let description = &mut tool.description;
        if let Some(declared) = declared.remove(&description.name) {
            description.summary = declared.summary;
        }
    }
    tools
}

fn reading() -> Vec<Entry> {
    vec![
        entry("fs.read", NATIVE, |arguments: ReadFile, paths| {
            let path = paths.resource(&arguments.path);
            Ok(Call::Read(ReadFile { path, ..arguments }))
        }),
        entry("fs.list", NATIVE, |arguments: ListDirectory, paths| {
            let path = paths.resource(&arguments.path);
            Ok(Call::List(ListDirectory { path, ..arguments }))
        }),
        entry("fs.exists", NATIVE, |arguments: AskPath, paths| {
            let path = paths.resource(&arguments.path);
            Ok(Call::Exists(AskPath { path }))
        }),
        entry("search.grep", NATIVE, search_text),
        entry("search.glob", NATIVE, |arguments: FindFiles, paths| {
            let path = paths.resource(&arguments.path);
            Ok(Call::Glob(FindFiles { path, ..arguments }))
        }),
    ]
}

fn writing() -> Vec<Entry> {
    vec![
        entry("fs.write", WRITING, |arguments: WriteFile, paths| {
            let path = paths.resource(&arguments.path);
            Ok(Call::Write(WriteFile { path, ..arguments }))
        }),
        entry("fs.edit", WRITING, edit_file),
        entry("fs.remove", WRITING, |arguments: RemoveFile, paths| {
            let path = paths.resource(&arguments.path);
            Ok(Call::Remove(RemoveFile { path }))
        }),
    ]
}

fn commands() -> Vec<Entry> {
    vec![
        entry("shell.exec", COMMAND, |arguments, paths| {
            Ok(Call::Shell(command(arguments, paths)))
        }),
        entry("sandbox.exec", COMMAND, |arguments, paths| {
            Ok(Call::Debug(command(arguments, paths)))
        }),
        entry("test.run", TESTS, |arguments: RunTests, _| {
            at_most(arguments.tests.len(), "tests")?;
            Ok(Call::Test(arguments))
        }),
        entry("git.status", LOOKING, |_: Nothing, _| Ok(Call::GitStatus)),
        entry("git.diff", LOOKING, |arguments: ShowDiff, paths| {
            let path = paths.resource(&arguments.path);
            Ok(Call::GitDiff(ShowDiff { path }))
        }),
        entry("git.log", LOOKING, |arguments: ShowLog, paths| {
            let path = paths.resource(&arguments.path);
            Ok(Call::GitLog(ShowLog { path, ..arguments }))
        }),
        entry("git.commit", WRITING, commit),
    ]
}

fn workflow() -> Vec<Entry> {
    vec![
        entry("plan.complete", KERNEL, complete_plan),
        entry("workflow.transition", KERNEL, |arguments: Transition, _| {
            Ok(Call::Transition(arguments))
        }),
        entry("workflow.request_exemption", KERNEL, exemption),
        entry(
            "workflow.test_is_wrong",
            KERNEL,
            |arguments: TestIsWrong, _| {
                at_most(arguments.tests.len(), "tests")?;
                Ok(Call::TestIsWrong(arguments))
            },
        ),
        entry("workflow.set_mode", KERNEL, |arguments: SetMode, _| {
            Ok(Call::SetMode(arguments))
        }),
    ]
}

const fn handling(place: Place, repeat: Repeat, keep: Keep) -> Handling {
    Handling {
        place,
        repeat,
        keep,
    }
}

/// A tool whose arguments are of type `A`.
fn entry<A: DeserializeOwned + JsonSchema + 'static>(
    name: &str,
    handling: Handling,
    make: fn(A, &ProjectPaths) -> Made,
) -> Entry {
    let description = ToolDescription {
        name: name.to_owned(),
        summary: String::new(),
        parameters: schema::of::<A>(),
    };
    let read = move |arguments: Value, paths: &ProjectPaths| {
        let arguments = serde_json::from_value(arguments).map_err(|error| error.to_string())?;
        make(arguments, paths)
    };
    Entry {
        description,
        handling,
        read: Read::Own(Box::new(read)),
    }
}

fn search_text(arguments: SearchText, paths: &ProjectPaths) -> Made {
    at_most(arguments.globs.len(), "globs")?;
    let path = paths.resource(&arguments.path);
    Ok(Call::Grep(SearchText { path, ..arguments }))
}

fn command(arguments: RunCommand, paths: &ProjectPaths) -> RunCommand {
    let directory = paths.resource(&arguments.directory);
    RunCommand {
        directory,
        ..arguments
    }
}

fn commit(arguments: Commit, _: &ProjectPaths) -> Made {
    match arguments.message.trim().is_empty() {
        true => Err("`message` is empty".to_owned()),
        false => Ok(Call::GitCommit(arguments)),
    }
}

fn complete_plan(mut arguments: CompletePlan, paths: &ProjectPaths) -> Made {
    at_most(arguments.steps.len(), "steps")?;
    at_most(arguments.paths.len(), "paths")?;
    for path in &mut arguments.paths {
        *path = paths.resource(path);
    }
    Ok(Call::CompletePlan(arguments))
}

fn exemption(mut arguments: RequestExemption, paths: &ProjectPaths) -> Made {
    at_most(arguments.paths.len(), "paths")?;
    if arguments.paths.is_empty() {
        return Err("`paths` is empty: name the files".to_owned());
    }
    for path in &mut arguments.paths {
        *path = paths.resource(path);
    }
    Ok(Call::RequestExemption(arguments))
}

/// The two forms of an edit.
fn edit_file(arguments: EditFile, paths: &ProjectPaths) -> Made {
    let EditFile {
        path,
        old,
        new,
        replace_all,
        patch,
    } = arguments;
    match (path, old, new, patch) {
        (None, None, None, Some(text)) => patch_files(&text, paths),
        (Some(path), Some(old), Some(new), None) => Ok(Call::Replace(ReplaceInFile {
            path: paths.resource(&path),
            old,
            new,
            which: match replace_all {
                true => Which::All,
                false => Which::Only,
            },
        })),
        (_, _, _, Some(_)) => {
            Err("`patch` names its files itself: leave `path`, `old` and `new` out".to_owned())
        }
        _ => Err("give `path`, `old` and `new`, or `patch` alone".to_owned()),
    }
}

fn patch_files(text: &str, paths: &ProjectPaths) -> Made {
    let mut changes = edit::parse(text).map_err(|error| error.to_string())?;
    for change in &mut changes {
        change.path = paths.resource(&change.path);
        if let FileChangeKind::Update {
            move_to: Some(to), ..
        } = &mut change.kind
        {
            *to = paths.resource(to);
        }
    }
    Ok(Call::Patch(changes))
}

fn at_most(length: usize, what: &str) -> Result<(), String> {
    match length <= MAX_LIST {
        true => Ok(()),
        false => Err(format!("`{what}` has more than {MAX_LIST} entries")),
    }
}
