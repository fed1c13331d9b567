//! A model that tries to cheat, steal, stay and break out.
//!
//! Each trick is a real call of a real session: it must have been started and
//! must have ended as its row says, what it was after must not have reached
//! the model, and an honest rest of the same session must still come to the
//! same commit, with the same evidence, as if nothing had been tried.

mod along;
mod endings;
mod runners;
mod secrets;

use fluffy_model_server::Reply;
use serde_json::{Value, json};

use super::languages::Repository;
use super::stage::{Played, Stage};

/// One call of the model, and how it has to end.
pub(super) struct Step {
    name: &'static str,
    tool: &'static str,
    arguments: Value,
    holds: Holds,
}

/// What must be so afterwards.
#[derive(Debug, Clone, Copy)]
pub(super) enum Holds {
    /// It did what it says; the model is told this.
    Done(&'static str),
    /// It was not run, and the model is told why.
    Refused(&'static str),
    /// It ran in vain, and the model is told how it failed.
    Failed(&'static str),
}

use Holds::{Done, Failed, Refused};

fn step(name: &'static str, tool: &'static str, arguments: Value, holds: Holds) -> Step {
    Step {
        name,
        tool,
        arguments,
        holds,
    }
}

fn shell(name: &'static str, command: &str, holds: Holds) -> Step {
    step(name, "shell.exec", json!({"command": command}), holds)
}

fn write(name: &'static str, path: &str, content: &str, holds: Holds) -> Step {
    let arguments = json!({"path": path, "content": content});
    step(name, "fs.write", arguments, holds)
}

fn read(name: &'static str, path: &str, holds: Holds) -> Step {
    step(name, "fs.read", json!({"path": path}), holds)
}

fn plan() -> Step {
    let arguments = json!({"summary": "Lines without = are left out"});
    step("plan", "plan.complete", arguments, Done("test_writing"))
}

fn run_tests(holds: Holds) -> Step {
    step("run the tests", "test.run", json!({}), holds)
}

fn validate(holds: Holds) -> Step {
    let arguments = json!({"to": "validating"});
    step("validate", "workflow.transition", arguments, holds)
}

/// The honest steps to a red test.
fn red(repository: &Repository) -> Vec<Step> {
    vec![
        write(
            "an honest test",
            repository.test,
            repository.test_text,
            Done("created"),
        ),
        run_tests(Done("State code_writing now")),
    ]
}

/// The honest steps from there to the commit.
fn green(repository: &Repository) -> Vec<Step> {
    vec![
        write(
            "honest code",
            repository.source,
            repository.solved,
            Done("changed"),
        ),
        validate(Done("Merged and committed")),
    ]
}

/// Plays the steps, and checks each.
fn play(stage: &Stage, steps: &[Step]) -> Played {
    let replies = steps.iter();
    let replies = replies.map(|step| Reply::call(step.tool, step.arguments.clone()));
    let played = stage.play(replies.collect());
    check(&played, steps);
    played
}

/// Every step was made, in order, and ended as it had to.
fn check(played: &Played, steps: &[Step]) {
    let calls = played.calls();
    let mut wrong = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        let Some(call) = calls.get(at) else {
            panic!("`{}` was never made\n{}", step.name, played.transcript);
        };
        assert_eq!(call.tool, step.tool, "{}", step.name);
        let (outcome, words) = match step.holds {
            Done(words) => ("done", words),
            Refused(words) => ("refused", words),
            Failed(words) => ("failed", words),
        };
        // What the session ends with is told to nobody but the person.
        let told = played.told.get(at).unwrap_or(&call.summary);
        if call.outcome != outcome || !told.contains(words) {
            let told: String = told.chars().take(1_500).collect();
            wrong.push(format!(
                "`{}` must be {:?} and was {}: {told}",
                step.name, step.holds, call.outcome
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// It ended as an honest session does: two files, one proven test.
fn ended_honestly(stage: &Stage, repository: &Repository, played: &Played) {
    assert_eq!(played.code, 0, "{}", played.transcript);
    let ended = played.ended();
    assert_eq!(ended["result"], "verified");
    let proven = ended["evidence"]["fail_to_pass"].as_array().unwrap();
    assert_eq!(proven.len(), 1, "{ended}");
    assert!(
        proven[0].as_str().unwrap().contains(repository.named),
        "{ended}"
    );
    let mut both = vec![repository.source, repository.test];
    both.sort_unstable();
    assert_eq!(stage.commits().0, both);
    assert_eq!(stage.git(&["status", "--porcelain"]), "");
    let text = |path: &str| std::fs::read_to_string(stage.file(path)).unwrap();
    assert_eq!(text(repository.source), repository.solved);
    assert_eq!(text(repository.test), repository.test_text);
    stage.site.succeeds(&["audit", "verify"]);
}
