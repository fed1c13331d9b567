//! Commands that are more than one call, or other than their call.
//!
//! Secrets are typed unseen or piped in; they are never arguments, and never
//! printed. Next: `progress.rs` for what is waited for.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};

use clap::ArgMatches;
use fluffy_api::Operation;
use fluffy_api::client::{Answer, CallError};
use fluffy_base::Span;
use fluffy_manifest::{ImageSource, Manifest};
use fluffy_report::{ExitCode, Report, Verbosity};
use serde_json::{Value, json};

use super::ask::{Asker, Call};
use super::{
    call, export, export_org, launch, manifest, progress, receipt, refusal, source, view, watch,
};
use crate::args::platform::{body_id, derived, fields, kind};
use crate::command::{Outcome, person};
use crate::failure::{self, Failure};

/// The largest file of secrets.
const MAX_SECRETS: u64 = 256 << 10;

/// Runs the command of these words.
pub(crate) async fn run(asker: &mut Asker<'_>, words: &str, matches: &ArgMatches) -> Outcome {
    match words {
        "approvals approve" => decide(asker, matches, "approved").await,
        "approvals deny" => decide(asker, matches, "denied").await,
        "deploy" | "deploys create" => deploy(asker, matches).await,
        "describe" => describe(asker, matches).await,
        "events tail" => tail(asker, matches).await,
        "launch" => launch::run(asker, matches).await,
        "login" => login(asker, matches).await,
        "logout" => logout(asker).await,
        "logs export" => export::run(asker, matches).await,
        "orgs export" => export_org::run(asker, matches).await,
        "secrets import" => import(asker, matches).await,
        "secrets render" => render_secrets(asker).await,
        "secrets set" => set_secrets(asker, matches).await,
        "secrets status" => secrets_status(asker).await,
        "secrets unset" => unset_secrets(asker, matches).await,
        _ => wait(asker, matches).await,
    }
}

fn text<'a>(matches: &'a ArgMatches, name: &str) -> Option<&'a String> {
    matches.get_one::<String>(name)
}

/// Asks an operation whose path is the target alone.
async fn ask(
    asker: &mut Asker<'_>,
    operation: Operation,
    body: Option<Value>,
) -> Result<Answer, Failure> {
    let named = operation.spec().path_params();
    let path = named.map(|name| Ok(asker.target.part(name)?.name.clone()));
    let call = Call {
        path: path.collect::<Result<Vec<_>, Failure>>()?,
        body,
        ..Call::default()
    };
    asker.call(operation, call).await
}

async fn decide(asker: &mut Asker<'_>, matches: &ArgMatches, outcome: &str) -> Outcome {
    let operation = Operation::DecideApproval;
    let note = text(matches, "note");
    let call = Call {
        path: call::path(asker, operation.spec(), matches)?,
        body: Some(json!({"outcome": outcome, "note": note})),
        ..Call::default()
    };
    let answer = asker.call(operation, call).await?;
    receipt::show(asker, operation, &answer, &[])
}

/// A release of what is here, unless one is named; then its deploy.
pub(super) async fn deploy(asker: &mut Asker<'_>, matches: &ArgMatches) -> Outcome {
    let operation = Operation::CreateDeploy;
    call::guard_env(asker, operation.spec()).await?;
    let named = matches.try_get_one::<String>("release").ok().flatten();
    let release = match named {
        Some(release) => release.clone(),
        None => match release(asker, matches).await? {
            Made::Release(release) => release,
            Made::Parked(exit) => return Ok(exit),
        },
    };
    let fields: Vec<_> = fields(operation.spec())
        .into_iter()
        .filter(|field| matches.try_contains_id(&body_id(field)).is_ok())
        .collect();
    let mut body = call::body_of(asker.session, &fields, matches)?;
    body.insert("release_id".to_owned(), release.into());
    if let Some(source) = source::of_folder(asker.session)? {
        body.insert("source".to_owned(), json!(source));
    }
    let changed: Vec<String> = body.keys().cloned().collect();
    let answer = ask(asker, operation, Some(Value::Object(body))).await?;
    if call::has(matches, "no-wait") || receipt::is_parked(&answer) {
        return receipt::show(asker, operation, &answer, &changed);
    }
    call::follow(asker, operation, (&answer, &changed), matches).await
}

/// The receipt of a write, or what became of it if that is waited for.
async fn settle(
    asker: &mut Asker<'_>,
    operation: Operation,
    (answer, changed): (&Answer, &[String]),
    matches: &ArgMatches,
) -> Outcome {
    match call::has(matches, "wait") && !receipt::is_parked(answer) {
        true => call::follow(asker, operation, (answer, changed), matches).await,
        false => receipt::show(asker, operation, answer, changed),
    }
}

/// What came of asking for a release.
enum Made {
    Release(String),
    /// It waits for a person, and its receipt has been shown.
    Parked(ExitCode),
}

async fn release(asker: &mut Asker<'_>, matches: &ArgMatches) -> Result<Made, Failure> {
    let file = text(matches, "manifest").map(PathBuf::from);
    let file = manifest::named_or_nearest(asker.session, file)?;
    let manifest = manifest::read_valid(&file)?;
    let image = match text(matches, "image") {
        Some(image) => Some(from_here(image, Path::new(""))?),
        None => written_path(&manifest, &file)?,
    };
    let body = json!({"manifest": manifest, "image": image});
    let answer = ask(asker, Operation::CreateRelease, Some(body)).await?;
    if receipt::is_parked(&answer) {
        let shown = receipt::show(asker, Operation::CreateRelease, &answer, &[]);
        return Ok(Made::Parked(shown?));
    }
    let id = view::name(&answer.value).into_owned();
    if !asker.session.json() {
        asker.session.printer.note(&format!("release {id}"));
    }
    Ok(Made::Release(id))
}

/// The image that a manifest names by a path, which is meant from its folder.
fn written_path(manifest: &str, file: &Path) -> Result<Option<String>, Failure> {
    let manifest = Manifest::parse(manifest).ok();
    let Some(image) = manifest.and_then(|it| it.image.reference) else {
        return Ok(None);
    };
    let folder = file.parent().unwrap_or(Path::new(""));
    let whole = from_here(&image, folder)?;
    Ok((whole != image).then_some(whole))
}

/// An image with its path whole: the server runs somewhere else.
fn from_here(image: &str, folder: &Path) -> Result<String, Failure> {
    let whole = |path: &Path| {
        let path = folder.join(path);
        let whole = std::path::absolute(&path);
        whole.map_err(|error| failure::unreadable(&path, &error))
    };
    Ok(match image.parse() {
        Ok(ImageSource::Layout(path)) => format!("oci:{}", whole(&path)?.display()),
        Ok(ImageSource::Archive(path)) => format!("docker-archive:{}", whole(&path)?.display()),
        Ok(ImageSource::Registry(_)) | Err(_) => image.to_owned(),
    })
}

async fn describe(asker: &mut Asker<'_>, matches: &ArgMatches) -> Outcome {
    let wanted = format!(
        "{}s describe",
        text(matches, "kind").map_or("", String::as_str)
    );
    let found = derived().into_iter().find(|(words, _)| *words == wanted);
    let operation = found.and_then(|(_, operations)| operations.first().copied());
    let operation = operation.unwrap_or(Operation::GetApp);
    let params: Vec<&str> = operation.spec().path_params().collect();
    let (_, parts) = params.split_last().unwrap_or((&"", &[]));
    let named = parts
        .iter()
        .map(|part| Ok(asker.target.part(part)?.name.clone()));
    let mut path = named.collect::<Result<Vec<_>, Failure>>()?;
    path.extend(text(matches, "id").cloned());
    let call = Call {
        path,
        ..Call::default()
    };
    let answer = asker.call(operation, call).await?;
    view::show(asker.session, &kind(operation), &answer.value)?;
    Ok(ExitCode::Success)
}

async fn tail(asker: &mut Asker<'_>, matches: &ArgMatches) -> Outcome {
    let mut query = Vec::new();
    for name in ["types", "app", "env"] {
        query.extend(text(matches, name).map(|value| (name.to_owned(), value.clone())));
    }
    let call = Call {
        path: vec![asker.target.part("org")?.name.clone()],
        query,
        ..Call::default()
    };
    let number = |name: &str| matches.get_one::<u64>(name).copied();
    watch::tail(asker, &call, (number("after"), number("count"))).await
}

async fn wait(asker: &mut Asker<'_>, matches: &ArgMatches) -> Outcome {
    let id = text(matches, "id").map_or("", String::as_str);
    let patience = matches.get_one::<Span>("timeout").copied();
    let work = progress::Work::named(id);
    progress::follow(asker, &work, patience.unwrap_or(progress::PATIENCE)).await
}

async fn login(asker: &mut Asker<'_>, matches: &ArgMatches) -> Outcome {
    let session = asker.session;
    let client = text(matches, "client-id");
    let ask = asks(matches, "fluffy login");
    let body = if call::has(matches, "invite") {
        let code = person::secret(session, "The one-time code:", ask)?;
        json!({"grant_type": "invite", "code": code.expose()})
    } else if let Some(id) = client {
        let secret = person::secret(session, "The secret of the service principal:", ask)?;
        let secret = secret.expose();
        json!({
            "grant_type": "client_credentials", "client_id": id, "client_secret": secret,
        })
    } else {
        let token = person::secret(session, "The API token:", ask)?;
        return token_login(asker, token.expose()).await;
    };
    let answer = self::ask(asker, Operation::ExchangeToken, Some(body)).await?;
    let part = |name: &str| answer.value.get(name).and_then(Value::as_str);
    let refresh = part("refresh_token").map(str::to_owned);
    asker.log_in(part("access_token").unwrap_or_default(), refresh)?;
    match asker.try_call(Operation::Whoami, &Call::default()).await {
        Ok(answer) => view::show(session, "Whoami", &answer.value)?,
        Err(error) => return Err(not_seen(asker, &error)?.into()),
    }
    Ok(ExitCode::Success)
}

/// What new tokens that could not be tried leave: those that do not open the
/// door are not kept; others are, since the code for them is used up.
fn not_seen(asker: &Asker<'_>, error: &CallError) -> Result<Report, Failure> {
    let report = refusal::failed(error, Operation::Whoami.spec().cli);
    match error {
        CallError::Refused(problem) if [401, 403].contains(&problem.status) => {
            asker.log_out()?;
            Ok(report)
        }
        _ => Ok(report.fix("the login is kept: look again with `fluffy whoami`")),
    }
}

/// Keeps an API token that opens the door; another one changes nothing.
async fn token_login(asker: &mut Asker<'_>, token: &str) -> Outcome {
    asker.try_token(token);
    let answer = ask(asker, Operation::Whoami, None).await?;
    asker.log_in(token, None)?;
    view::show(asker.session, "Whoami", &answer.value)?;
    Ok(ExitCode::Success)
}

/// Whether a secret may be asked for, and by which command it is piped in.
fn asks<'a>(matches: &ArgMatches, words: &'a str) -> person::Asks<'a> {
    match call::has(matches, "no-input") {
        true => person::Asks::Never { words },
        false => person::Asks::Allowed { words },
    }
}

async fn logout(asker: &mut Asker<'_>) -> Outcome {
    let ended = ask(asker, Operation::RevokeOwnToken, Some(json!({}))).await;
    asker.log_out()?;
    ended?;
    asker
        .session
        .printer
        .note("logged out, and the token is revoked");
    Ok(ExitCode::Success)
}

async fn set_secrets(asker: &mut Asker<'_>, matches: &ArgMatches) -> Outcome {
    let keys: Vec<&String> = matches.get_many("keys").into_iter().flatten().collect();
    if let Some(key) = keys.iter().find(|key| key.contains('=')) {
        let name = key.split('=').next().unwrap_or_default();
        return Err(
            Report::new(ExitCode::Usage, "a secret is never an argument")
                .why("arguments are seen by other programs, and kept by shells")
                .fix(format!("type it when asked: fluffy secrets set {name}"))
                .fix(format!("or pipe it in: … | fluffy secrets set {name}"))
                .into(),
        );
    }
    if keys.len() > 1 && !io::stdin().is_terminal() {
        return Err(
            Report::new(ExitCode::Usage, "one secret can be piped in, not several")
                .fix("set them one by one, or all by `fluffy secrets import FILE`")
                .into(),
        );
    }
    let operation = Operation::UpdateSecrets;
    call::guard_env(asker, operation.spec()).await?;
    let mut set = serde_json::Map::new();
    for key in &keys {
        let words = format!("fluffy secrets set {key}");
        let question = format!("{key}:");
        let value = person::secret(asker.session, &question, asks(matches, &words))?;
        set.insert((*key).clone(), value.expose().as_str().into());
    }
    let body = json!({"set": set, "unset": []});
    let answer = ask(asker, operation, Some(body)).await?;
    let names: Vec<String> = keys.into_iter().cloned().collect();
    settle(asker, operation, (&answer, &names), matches).await
}

async fn unset_secrets(asker: &mut Asker<'_>, matches: &ArgMatches) -> Outcome {
    let operation = Operation::UpdateSecrets;
    call::guard_env(asker, operation.spec()).await?;
    let keys = matches.get_many::<String>("keys").into_iter().flatten();
    let names: Vec<String> = keys.cloned().collect();
    let body = json!({"set": {}, "unset": names});
    let answer = ask(asker, operation, Some(body)).await?;
    settle(asker, operation, (&answer, &names), matches).await
}

async fn import(asker: &mut Asker<'_>, matches: &ArgMatches) -> Outcome {
    let operation = Operation::ReplaceSecrets;
    let file = text(matches, "file").map_or("-", String::as_str);
    let mut content = String::new();
    let read = match file {
        "-" => io::stdin()
            .lock()
            .take(MAX_SECRETS + 1)
            .read_to_string(&mut content),
        file => std::fs::File::open(file)
            .and_then(|file| file.take(MAX_SECRETS + 1).read_to_string(&mut content)),
    };
    read.map_err(|error| failure::unreadable(file.as_ref(), &error))?;
    call::guard_env(asker, operation.spec()).await?;
    let answer = ask(asker, operation, Some(json!({"file": content}))).await?;
    settle(asker, operation, (&answer, &[]), matches).await
}

/// The file that instances get; no server gives a value back.
async fn render_secrets(asker: &mut Asker<'_>) -> Outcome {
    let answer = ask(asker, Operation::GetSecrets, None).await?;
    let session = asker.session;
    if session.json() {
        view::show(session, "SecretBundle", &answer.value)?;
        return Ok(ExitCode::Success);
    }
    let keys = answer.value.get("keys").and_then(Value::as_array);
    let keys = keys.into_iter().flatten().filter_map(Value::as_str);
    let quiet = session.printer.verbosity() == Verbosity::Quiet;
    if !quiet {
        session.printer.data("# FLUFFY_SECRETS_V1")?;
    }
    for key in keys {
        let line = match quiet {
            true => key.to_owned(),
            false => format!("{key}=(redacted)"),
        };
        session.printer.data(&line)?;
    }
    Ok(ExitCode::Success)
}

async fn secrets_status(asker: &mut Asker<'_>) -> Outcome {
    let mut bundle = ask(asker, Operation::GetSecrets, None).await?.value;
    let runs = runs(asker).await?;
    let session = asker.session;
    let json = session.json();
    let versions = bundle.get_mut("versions").and_then(Value::as_array_mut);
    for version in versions.into_iter().flatten() {
        let by = runs.get(&*view::name(version)).cloned().unwrap_or_default();
        if let Some(fields) = version.as_object_mut() {
            let words = || {
                let each = by
                    .iter()
                    .map(|(process, count)| format!("{process}: {count}"));
                each.collect::<Vec<_>>().join(", ").into()
            };
            fields.insert("run_by".to_owned(), if json { json!(by) } else { words() });
        }
    }
    if json {
        view::show(session, "SecretBundle", &bundle)?;
        return Ok(ExitCode::Success);
    }
    let part = |name: &str| bundle.get(name).and_then(Value::as_str).unwrap_or_default();
    let current = part("current_version_id");
    session
        .printer
        .data(&format!("{}: {current}", part("status")))?;
    let versions = bundle.get("versions").and_then(Value::as_array);
    let rows = versions.into_iter().flatten();
    session.printer.table(&view::table("SecretVersion", rows))?;
    Ok(ExitCode::Success)
}

/// How many instances of each process type run with each version.
async fn runs(asker: &mut Asker<'_>) -> Result<BTreeMap<String, BTreeMap<String, u64>>, Failure> {
    let operation = Operation::ListInstances;
    let named = operation.spec().path_params();
    let path = named.map(|name| Ok(asker.target.part(name)?.name.clone()));
    let path = path.collect::<Result<Vec<_>, Failure>>()?;
    let mut runs: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    let mut cursor = None;
    loop {
        let mut query = vec![("limit".to_owned(), "200".to_owned())];
        query.extend(cursor.map(|cursor| ("cursor".to_owned(), cursor)));
        let call = Call {
            path: path.clone(),
            query,
            ..Call::default()
        };
        let page = asker.call(operation, call).await?.value;
        let items = page.get("items").and_then(Value::as_array);
        for instance in items.into_iter().flatten() {
            let text = |pointer: &str| instance.pointer(pointer).and_then(Value::as_str);
            let over = matches!(text("/observed/status"), Some("stopped" | "collected"));
            if let (false, Some(version), Some(process)) =
                (over, text("/secret_version_id"), text("/process"))
            {
                let of = runs.entry(version.to_owned()).or_default();
                *of.entry(process.to_owned()).or_default() += 1;
            }
        }
        cursor = page
            .get("next_cursor")
            .and_then(Value::as_str)
            .map(str::to_owned);
        if cursor.is_none() {
            return Ok(runs);
        }
    }
}
