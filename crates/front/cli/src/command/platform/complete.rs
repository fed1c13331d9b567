//! Names that exist right now, for completion by tab.
//!
//! Asks the server of what was typed so far, within a moment; whatever goes
//! wrong means that there are no names, and is never said.

use std::ffi::OsStr;
use std::time::Duration;

use clap_complete::CompletionCandidate;
use fluffy_api::Operation;
use fluffy_api::operation::Kind;
use serde_json::Value;
use tokio::time::timeout;

use super::ask::{self, Asker, Call};
use super::contexts::Contexts;
use super::target::Flags;
use crate::args::Global;
use crate::session::Session;

/// How long a person waits for a key to do something.
const BUDGET: Duration = Duration::from_millis(300);

/// How many names are offered.
const MOST: &str = "100";

/// Names that fit where `param` of this path stands.
pub(crate) fn names(path: &'static str, param: &str, current: &OsStr) -> Vec<CompletionCandidate> {
    let found = list_of(path, param).and_then(fetch);
    fitting(found, current)
}

/// What a list holds.
pub(crate) fn listed(list: Operation, current: &OsStr) -> Vec<CompletionCandidate> {
    fitting(fetch(list), current)
}

/// The process types that an env runs.
pub(crate) fn processes(current: &OsStr) -> Vec<CompletionCandidate> {
    fitting(scaled(""), current)
}

/// The process types that an env runs, each to be followed by its number.
pub(crate) fn scales(current: &OsStr) -> Vec<CompletionCandidate> {
    fitting(scaled("="), current)
}

/// The contexts of this person; nobody is asked for them.
pub(crate) fn contexts(current: &OsStr) -> Vec<CompletionCandidate> {
    let session = quiet();
    let known = session.here().ok();
    let known = known.and_then(|here| Contexts::read(&here.paths).ok());
    fitting(known.map(|it| it.contexts.into_keys().collect()), current)
}

/// What there is of the kind that was typed before.
pub(crate) fn described(current: &OsStr) -> Vec<CompletionCandidate> {
    let words: Vec<String> = std::env::args().collect();
    let kinds = words.iter().skip_while(|word| *word != "describe").skip(1);
    let kinds = kinds.filter_map(|kind| {
        let wanted = format!("{kind}s describe");
        let mut all = Operation::ALL.iter();
        let read = all.find(|operation| operation.spec().cli == wanted)?;
        let param = read.spec().path_params().last()?;
        list_of(read.spec().path, param)
    });
    fitting(kinds.take(1).find_map(fetch), current)
}

fn fitting(found: Option<Vec<String>>, current: &OsStr) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    let found = found.unwrap_or_default().into_iter();
    let fits = found.filter(|name| name.starts_with(&*current));
    fits.map(CompletionCandidate::new).collect()
}

/// The list that a parameter is taken from: what its path is below.
fn list_of(path: &str, param: &str) -> Option<Operation> {
    let end = path.find(&format!("/{{{param}}}"))?;
    let list = path.get(..end)?;
    let operations = Operation::ALL.iter().copied();
    let mut lists = operations.filter(|it| it.spec().kind == Kind::List);
    lists.find(|operation| operation.spec().path == list)
}

fn fetch(list: Operation) -> Option<Vec<String>> {
    let value = read(list, vec![("limit".to_owned(), MOST.to_owned())])?;
    let items = value.get("items").and_then(Value::as_array)?;
    let name = |item: &Value| {
        let text = |field: &str| item.get(field).and_then(Value::as_str);
        let name = text("name").or_else(|| text("slug")).or_else(|| text("id"));
        name.map(str::to_owned)
    };
    Some(items.iter().filter_map(name).collect())
}

fn scaled(end: &str) -> Option<Vec<String>> {
    let value = read(Operation::GetScale, Vec::new())?;
    let processes = value.get("processes").and_then(Value::as_object)?;
    let names = processes.keys().map(|name| format!("{name}{end}"));
    Some(names.collect())
}

/// Reads something of the target once, within the budget.
fn read(operation: Operation, query: Vec<(String, String)>) -> Option<Value> {
    let session = quiet();
    let mut asker = Asker::new(&session, &typed_flags()).ok()?;
    let params = operation.spec().path_params();
    let path = params.map(|part| match part {
        "org" | "app" | "env" => Some(asker.target.part(part).ok()?.name.clone()),
        _ => None,
    });
    let call = Call {
        path: path.collect::<Option<Vec<_>>>()?,
        query,
        ..Call::default()
    };
    // Only looked at: what is cut off in the middle must not be a login.
    let answer = ask::block(async { Ok(timeout(BUDGET, asker.glance(operation, &call)).await) });
    Some(answer.ok()?.ok()?.ok()?.value)
}

fn quiet() -> Session {
    Session::new(&Global {
        json: false,
        quiet: true,
        verbose: false,
        project: None,
    })
}

/// What was typed so far about the target, by the words alone.
fn typed_flags() -> Flags {
    let words: Vec<String> = std::env::args().collect();
    let after = |flag: &str| {
        let words = words.iter().zip(words.iter().skip(1));
        let mut found = words.filter(|(name, _)| *name == flag);
        found.next().map(|(_, value)| value.clone())
    };
    Flags {
        context: after("--context"),
        server: after("--server"),
        org: after("--org"),
        app: after("--app"),
        env: after("--env"),
        manifest: after("--manifest").map(Into::into),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_is_taken_from_the_list_above_it() {
        let of = |operation: Operation, param| list_of(operation.spec().path, param);
        assert_eq!(of(Operation::GetApp, "app"), Some(Operation::ListApps));
        assert_eq!(
            of(Operation::CancelDeploy, "deploy"),
            Some(Operation::ListDeploys)
        );
        assert_eq!(
            of(Operation::CancelDeploy, "env"),
            Some(Operation::ListEnvs)
        );
        assert_eq!(of(Operation::DrainNode, "node"), Some(Operation::ListNodes));
        assert_eq!(of(Operation::GetOperation, "operation"), None);
    }
}
