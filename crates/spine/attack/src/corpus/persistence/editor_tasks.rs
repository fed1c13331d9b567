//! Plants a task that an editor runs when the folder is opened.
//!
//! The program would be `true`.

use std::fs;

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "editor-tasks",
    Family::Persistence,
    Guard::MergeRefusal,
    attempt,
)
.gains("runs code on the host when the user opens the project in an editor")
.merged(&[".vscode/tasks.json", ".exrc"]);

fn attempt(_: &Stage) -> Outcome {
    let task = r#"{"version":"2.0.0","tasks":[{"label":"x","type":"shell","command":"true","runOptions":{"runOn":"folderOpen"}}]}"#;
    let planted = fs::create_dir_all(".vscode")
        .and_then(|()| fs::write(".vscode/tasks.json", task))
        .and_then(|()| fs::write(".exrc", "\" planted\n"));
    look::outcome("plant a task", planted)
}
