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
use super::target::Flags;
use crate::args::Global;
use crate::session::Session;

/// How long a person waits for a key to do something.
const BUDGET: Duration = Duration::from_millis(300);

/// How many names are offered.
const MOST: &str = "100";

/// Names that fit where `param` of this path stands.
pub(crate) fn names(path: &'static str, param: &str, current: &OsStr) -> Vec<CompletionCandidate> {
    let found = list_of(path, param).and_then(fetch).unwrap_or_default();
    let current = current.to_string_lossy();
    let fits = found.into_iter().filter(|name| name.starts_with(&*current));
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
    let global = Global {
        json: false,
        quiet: true,
        verbose: false,
        project: None,
    };
    let session = Session::new(&global);
    let mut asker = Asker::new(&session, &typed_flags()).ok()?;
    let params = list.spec().path_params();
    let path = params.map(|part| match part {
        "org" | "app" | "env" => Some(asker.target.part(part).ok()?.name.clone()),
        _ => None,
    });
    let call = Call {
        path: path.collect::<Option<Vec<_>>>()?,
        query: vec![("limit".to_owned(), MOST.to_owned())],
        ..Call::default()
    };
    let answer = ask::block(async {
        let work = asker.try_call(list, &call);
        Ok(timeout(BUDGET, work).await)
    });
    let value = answer.ok()?.ok()?.ok()?.value;
    let items = value.get("items").and_then(Value::as_array)?;
    let name = |item: &Value| {
        let text = |field: &str| item.get(field).and_then(Value::as_str);
        let name = text("name").or_else(|| text("slug")).or_else(|| text("id"));
        name.map(str::to_owned)
    };
    Some(items.iter().filter_map(name).collect())
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
