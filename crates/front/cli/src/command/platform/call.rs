//! Commands that are one call: what was typed becomes a request, its answer a
//! table or a receipt.
//!
//! Driven by the table of operations; knows no resource by name. What takes
//! more than one call is in `extra.rs`. Next: `receipt.rs`, `watch.rs`.

use std::collections::BTreeMap;

use clap::ArgMatches;
use fluffy_api::client::Answer;
use fluffy_api::operation::{Kind, Method, Operation, ParamKind, Precondition, Spec};
use fluffy_base::{ByteSize, Span};
use fluffy_report::{ExitCode, Report, Verbosity};
use serde_json::{Map, Value, json};

use super::ask::{Asker, Call};
use super::target::Flags;
use super::{manifest, progress, receipt, status, view, watch};
use crate::args::platform::{Field, FieldKind, Waits, body_id, fields, kind, own_params, waits};
use crate::command::{Outcome, person};
use crate::failure::Failure;
use crate::session::Session;

/// What the flags of a command say about its target.
pub(crate) fn flags(matches: &ArgMatches) -> Flags {
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    // Few commands take one, and it is a field of what one of them sends.
    let files = ["manifest", "body.manifest"].map(|name| matches.try_get_one::<String>(name));
    let mut files = files.into_iter().filter_map(|file| file.ok().flatten());
    Flags {
        context: text("context"),
        server: text("server"),
        org: text("org"),
        app: text("app"),
        env: text("env"),
        manifest: files.next().map(Into::into),
    }
}

/// Whether a flag was given; one that the command does not have was not.
pub(crate) fn has(matches: &ArgMatches, name: &str) -> bool {
    let given = matches.try_get_one::<bool>(name);
    given.ok().flatten().is_some_and(|given| *given)
}

/// Runs the command of these operations.
pub(crate) async fn run(
    asker: &mut Asker<'_>,
    operations: &[Operation],
    matches: &ArgMatches,
) -> Outcome {
    let session = asker.session;
    let Some(operation) = chosen(session, operations, matches)? else {
        return Ok(ExitCode::Success);
    };
    let spec = operation.spec();
    let mut call = Call {
        path: path(asker, spec, matches)?,
        query: query(spec, matches),
        body: body(session, spec, matches)?,
        ..Call::default()
    };
    if has(matches, "watch") {
        return watch::run(asker, operation, &call).await;
    }
    if has(matches, "follow") {
        return watch::logs(asker, operation, call).await;
    }
    if !spec.is_write() {
        let answer = asker.call(operation, call).await?;
        if spec.cli == "status" && !session.json() {
            return status::show(session, &answer.value);
        }
        let is_plain = !session.json() && session.printer.verbosity() != Verbosity::Quiet;
        let shown = match spec.cli == "logs" && is_plain {
            true => watch::with_gaps(answer.value),
            false => answer.value,
        };
        view::show(session, &kind(operation), &shown)?;
        return Ok(ExitCode::Success);
    }
    guard_env(asker, spec).await?;
    confirm(session, spec, matches)?;
    if spec.precondition == Precondition::Required && !names_version(&call) {
        call.if_match = version(asker, spec, &call).await?;
    }
    let changed = changed(&call);
    let answer = asker.call(operation, call).await?;
    let wanted = match waits(spec) {
        Waits::Never => false,
        Waits::OnDemand => has(matches, "wait"),
        Waits::ByDefault => !has(matches, "no-wait"),
    };
    if !wanted || receipt::is_parked(&answer) {
        let shown = receipt::show(asker, operation, &answer, &changed)?;
        return progress::failed(&answer.value).map_or(Ok(shown), |report| Err(report.into()));
    }
    follow(asker, operation, (&answer, &changed), matches).await
}

/// Waits for what a write began, after a line about it.
pub(crate) async fn follow(
    asker: &mut Asker<'_>,
    operation: Operation,
    (answer, changed): (&Answer, &[String]),
    matches: &ArgMatches,
) -> Outcome {
    receipt::show_brief(asker, operation, answer)?;
    let receipt = receipt::to_json(asker, operation, answer, changed);
    let work = progress::Work::of(operation.spec(), &answer.value).with_receipt(receipt);
    let patience = matches.get_one::<Span>("timeout").copied();
    progress::follow(asker, &work, patience.unwrap_or(progress::PATIENCE)).await
}

/// Of two operations with the same words the one that is meant: the second
/// changes what the first shows.
fn chosen(
    session: &Session,
    operations: &[Operation],
    matches: &ArgMatches,
) -> Result<Option<Operation>, Failure> {
    for operation in operations.iter().rev().filter(|it| it.spec().is_write()) {
        if operations.len() == 1 || body(session, operation.spec(), matches)?.is_some() {
            return Ok(Some(*operation));
        }
    }
    Ok(operations.iter().find(|it| !it.spec().is_write()).copied())
}

/// What the path names: what was typed, and the target.
pub(crate) fn path(
    asker: &Asker<'_>,
    spec: &'static Spec,
    matches: &ArgMatches,
) -> Result<Vec<String>, Failure> {
    let own: Vec<&str> = own_params(spec).collect();
    spec.path_params()
        .map(|name| {
            if own.contains(&name) {
                let typed = matches.get_one::<String>(&format!("path.{name}"));
                return Ok(typed.cloned().unwrap_or_default());
            }
            Ok(asker.target.part(name)?.name.clone())
        })
        .collect()
}

/// What stands behind the question mark.
fn query(spec: &Spec, matches: &ArgMatches) -> Vec<(String, String)> {
    let found = spec.params().filter_map(|param| {
        let id = match param.name {
            "app" | "env" => param.name.to_owned(),
            name => format!("query.{name}"),
        };
        let value = match param.kind {
            _ if param.name == "min_seq" => None,
            ParamKind::Flag => has(matches, &id).then(|| "true".to_owned()),
            ParamKind::Number(..) => {
                let number = matches.try_get_one::<u64>(&id).ok().flatten();
                number.map(u64::to_string)
            }
            _ => matches.try_get_one::<String>(&id).ok().flatten().cloned(),
        };
        Some((param.name.to_owned(), value?))
    });
    found.collect()
}

/// The body, if anything was typed for it or something has to be sent.
fn body(session: &Session, spec: &Spec, matches: &ArgMatches) -> Result<Option<Value>, Failure> {
    if spec.request.is_none() {
        return Ok(None);
    }
    let fields = fields(spec);
    let body = body_of(session, &fields, matches)?;
    let pointless = body.is_empty() && fields.iter().any(|field| field.kind == FieldKind::Numbers);
    Ok((!pointless).then_some(Value::Object(body)))
}

/// The fields that were typed.
pub(crate) fn body_of(
    session: &Session,
    fields: &[Field],
    matches: &ArgMatches,
) -> Result<Map<String, Value>, Failure> {
    let mut body = Map::new();
    for field in fields {
        let Some(value) = typed(session, field, matches)? else {
            continue;
        };
        let place = match &field.within {
            None => &mut body,
            Some(outer) => {
                let outer = body.entry(outer.as_str()).or_insert_with(|| json!({}));
                match outer {
                    Value::Object(fields) => fields,
                    _ => continue,
                }
            }
        };
        place.insert(field.name.clone(), value);
    }
    Ok(body)
}

fn typed(session: &Session, field: &Field, matches: &ArgMatches) -> Result<Option<Value>, Failure> {
    let id = body_id(field);
    let text = || matches.try_get_one::<String>(&id).ok().flatten();
    let texts = || {
        let values = matches.try_get_many::<String>(&id).ok().flatten();
        values.map(|values| values.cloned().collect::<Vec<_>>())
    };
    Ok(match &field.kind {
        FieldKind::Text | FieldKind::Words(_) => text().map(|text| match text.as_str() {
            "" if field.nullable => Value::Null,
            text => text.into(),
        }),
        FieldKind::Number => {
            let number = matches.try_get_one::<u64>(&id).ok().flatten();
            number.map(|number| (*number).into())
        }
        FieldKind::Size => {
            let size = matches.try_get_one::<ByteSize>(&id).ok().flatten();
            size.map(|size| size.0.into())
        }
        FieldKind::Duration => {
            let span = matches.try_get_one::<Span>(&id).ok().flatten();
            span.map(|span| (span.millis / 1000).into())
        }
        FieldKind::Flag => {
            let flag = matches.try_get_one::<bool>(&id).ok().flatten();
            flag.map(|flag| (*flag).into())
        }
        FieldKind::Texts => texts().map(Value::from),
        FieldKind::Pairs => texts().map(|pairs| named(&pairs)).transpose()?,
        FieldKind::Numbers => texts().map(|pairs| numbers(field, &pairs)).transpose()?,
        FieldKind::File => match (text(), field.name.as_str()) {
            (Some(file), _) => Some(manifest::read(file.as_ref())?.into()),
            (None, "manifest") => Some(manifest::read_nearest(session)?.into()),
            (None, _) => None,
        },
    })
}

/// `web=3 db=default memory=8GiB` as an object; `default` and `none` are null.
/// Processors are typed in cores, as in manifests, and sent in thousandths.
fn numbers(field: &Field, pairs: &[String]) -> Result<Value, Failure> {
    let mut values: BTreeMap<&str, Value> = BTreeMap::new();
    for pair in pairs {
        let wrong = || {
            Report::new(ExitCode::Usage, format!("`{pair}` is not NAME=N"))
                .fix("write for example `web=3`, or `web=default` to take it back")
        };
        let (name, value) = pair.split_once('=').ok_or_else(wrong)?;
        let value = match value {
            "default" | "none" => Value::Null,
            value if field.name == "limits" && name == "cpu" => millis(value)
                .ok_or_else(|| {
                    Report::new(ExitCode::Usage, format!("`{value}` is no number of cores"))
                        .fix("write for example `cpu=64` or `cpu=0.5`")
                })?
                .into(),
            value => value.parse::<ByteSize>().map_err(|_| wrong())?.0.into(),
        };
        values.insert(name, value);
    }
    Ok(json!(values))
}

/// `zone=a rack=7` as an object of texts.
fn named(pairs: &[String]) -> Result<Value, Failure> {
    let mut values: BTreeMap<&str, &str> = BTreeMap::new();
    for pair in pairs {
        let (name, value) = pair.split_once('=').ok_or_else(|| {
            Report::new(ExitCode::Usage, format!("`{pair}` is not NAME=VALUE"))
                .fix("write for example `zone=eu-1`")
        })?;
        if values.insert(name, value).is_some() {
            let what = format!("`{name}` is there twice");
            return Err(Report::new(ExitCode::Usage, what)
                .fix("write each name once")
                .into());
        }
    }
    Ok(json!(values))
}

/// Cores such as `64` or `0.25`, in thousandths.
fn millis(text: &str) -> Option<u64> {
    let (whole, rest) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(rest) || rest.len() > 3 {
        return None;
    }
    let rest: u64 = format!("{rest:0<3}").parse().ok()?;
    whole
        .parse::<u64>()
        .ok()?
        .checked_mul(1000)?
        .checked_add(rest)
}

/// What a call would change, by the names of its fields.
fn changed(call: &Call) -> Vec<String> {
    let body = call.body.as_ref().and_then(Value::as_object);
    let names = body
        .into_iter()
        .flatten()
        .filter(|(name, _)| *name != "expected_version");
    let mut names: Vec<String> = names.map(|(name, _)| name.clone()).collect();
    names.sort_unstable();
    names
}

fn names_version(call: &Call) -> bool {
    let body = call.body.as_ref();
    body.is_some_and(|body| body.get("expected_version").is_some())
}

/// The version of what is there now: what was looked at is what is changed.
async fn version(asker: &mut Asker<'_>, spec: &Spec, call: &Call) -> Result<Option<u64>, Failure> {
    let read = Operation::ALL.iter().find(|operation| {
        let other = operation.spec();
        other.method == Method::Get && other.path == spec.path
    });
    let Some(read) = read else { return Ok(None) };
    let look = Call {
        path: call.path.clone(),
        ..Call::default()
    };
    let answer = asker.call(*read, look).await?;
    Ok(answer.value.get("version").and_then(Value::as_u64))
}

/// A protected env is changed only where somebody named it for this call.
pub(crate) async fn guard_env(asker: &mut Asker<'_>, spec: &'static Spec) -> Result<(), Failure> {
    let is_target =
        spec.path_params().any(|name| name == "env") && own_params(spec).all(|name| name != "env");
    if !is_target || asker.target.part("env")?.from.is_explicit() {
        return Ok(());
    }
    let path = ["org", "app", "env"].map(|part| asker.target.part(part).map(|it| it.name.clone()));
    let path = path.into_iter().collect::<Result<Vec<_>, _>>()?;
    let call = Call {
        path,
        ..Call::default()
    };
    let answer = asker.call(Operation::GetEnv, call).await?;
    if answer.value.get("protected") != Some(&Value::Bool(true)) {
        return Ok(());
    }
    Err(env_not_named(&asker.target.part("env")?.name).into())
}

/// A protected env that nobody named for this call.
pub(crate) fn env_not_named(env: &str) -> Report {
    Report::new(ExitCode::Usage, format!("`{env}` is a protected env"))
        .code("env_not_named")
        .why("nobody named it for this call, and a protected env has to be named")
        .fix(format!("add --env {env}, or set FLUFFY_ENV={env}"))
}

/// Asks before something goes; its name is the answer.
fn confirm(session: &Session, spec: &'static Spec, matches: &ArgMatches) -> Result<(), Failure> {
    if spec.method != Method::Delete || has(matches, "yes") {
        return Ok(());
    }
    let own = own_params(spec).last();
    let typed = own.and_then(|name| matches.get_one::<String>(&format!("path.{name}")));
    let name = typed.map_or("yes", String::as_str);
    let answer = match has(matches, "no-input") {
        true => None,
        false => person::prompt(session, &format!("Type `{name}` to go on: "))?,
    };
    if answer.as_deref() == Some(name) {
        return Ok(());
    }
    let report = Report::new(
        ExitCode::Usage,
        format!("`fluffy {}` was not confirmed", spec.cli),
    );
    Err(match answer {
        Some(_) => report.why("what was typed is not its name"),
        None => report.why("there is nobody to ask"),
    }
    .fix("add --yes")
    .into())
}

/// Whether a command lists.
pub(crate) fn is_list(operation: Operation) -> bool {
    operation.spec().kind == Kind::List
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_sent_in_thousandths() {
        for (text, expected) in [
            ("64", Some(64_000)),
            ("0.5", Some(500)),
            ("1.125", Some(1125)),
            ("0", Some(0)),
            ("", None),
            (".5", None),
            ("1.", None),
            ("1.0005", None),
            ("-1", None),
            ("+1", None),
            ("18446744073709551615", None),
        ] {
            assert_eq!(millis(text), expected, "{text}");
        }
    }
}
