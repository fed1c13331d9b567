//! `fluffy launch`: from a folder to something that runs.
//!
//! Makes what is missing and leaves what is there: the manifest, the app, the
//! env. Then it is a deploy like any other, so doing it again does no harm.

mod detect;

use std::fs;

use clap::ArgMatches;
use fluffy_api::Operation;
use fluffy_api::client::CallError;
use fluffy_base::ByteSize;
use fluffy_manifest::Manifest;
use fluffy_report::{ExitCode, Report};
use serde_json::{Value, json};

use super::ask::{Asker, Call};
use super::{call, extra, manifest, receipt, refusal};
use crate::command::{Outcome, person};
use crate::failure::{self, Failure};
use crate::session::Session;

/// The env of who names none.
const ENV: &str = "dev";

/// Makes what is missing, then deploys.
pub(super) async fn run(asker: &mut Asker<'_>, matches: &ArgMatches) -> Outcome {
    let session = asker.session;
    let named = matches.get_one::<String>("manifest");
    if named.is_none() && manifest::nearest(&session.folder()?).is_none() {
        write_manifest(session, matches)?;
    }
    // The manifest may have said which app only now.
    let mut flags = call::flags(matches);
    let mut asker = Asker::new(session, &flags)?;
    let unnamed = asker.target.part("env").is_err();
    if unnamed {
        flags.env = Some(ENV.to_owned());
        asker = Asker::new(session, &flags)?;
    }
    let part = |asker: &Asker<'_>, name| Ok::<_, Failure>(asker.target.part(name)?.name.clone());
    let org = part(&asker, "org")?;
    let app = part(&asker, "app")?;
    let env = part(&asker, "env")?;
    let path = vec![org.clone(), app.clone()];
    let made = ensure(
        &mut asker,
        (Operation::GetApp, path),
        (Operation::CreateApp, &app),
    );
    if let There::Parked(exit) = made.await? {
        return Ok(exit);
    }
    let path = vec![org, app, env.clone()];
    let made = ensure(
        &mut asker,
        (Operation::GetEnv, path),
        (Operation::CreateEnv, &env),
    );
    let found = match made.await? {
        There::Is(found) => found,
        There::Parked(exit) => return Ok(exit),
    };
    if unnamed && found.get("protected") == Some(&Value::Bool(true)) {
        return Err(call::env_not_named(&env).into());
    }
    extra::deploy(&mut asker, matches).await
}

/// What there is of what was needed.
enum There {
    Is(Value),
    /// Making it waits for a person, and its receipt has been shown.
    Parked(ExitCode),
}

/// Makes something by its name, unless it is there; gives what is there.
async fn ensure(
    asker: &mut Asker<'_>,
    (read, path): (Operation, Vec<String>),
    (create, name): (Operation, &str),
) -> Result<There, Failure> {
    let mut call = Call {
        path,
        ..Call::default()
    };
    match asker.try_call(read, &call).await {
        Ok(found) => return Ok(There::Is(found.value)),
        Err(CallError::Refused(problem)) if problem.code == "not_found" => {}
        Err(error) => return Err(refusal::failed(&error, read.spec().cli).into()),
    }
    call.path.pop();
    call.body = Some(json!({"name": name}));
    let made = asker.call(create, call).await?;
    if receipt::is_parked(&made) {
        let shown = receipt::show(asker, create, &made, &["name".to_owned()]);
        return Ok(There::Parked(shown?));
    }
    let done = format!("made {name} (`fluffy {}`)", create.spec().cli);
    asker.session.printer.note(&done);
    Ok(There::Is(made.value))
}

/// Writes a manifest of what was typed or is answered.
fn write_manifest(session: &Session, matches: &ArgMatches) -> Result<(), Failure> {
    let folder = session.folder()?;
    let here = folder.file_name().unwrap_or_default().to_string_lossy();
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    let asked = |flag: &str, question: &str, usual: &str| -> Result<String, Failure> {
        let answer = match (text(flag), call::has(matches, "no-input")) {
            (Some(given), _) => return Ok(given),
            (None, true) => None,
            (None, false) => person::prompt(session, question)?,
        };
        Ok(answer
            .filter(|it| !it.is_empty())
            .unwrap_or(usual.to_owned()))
    };
    let found = detect::look(&folder);
    let usual = slug(found.name.as_deref().unwrap_or(&here));
    let name = asked("name", &format!("The app's name [{usual}]: "), &usual)?;
    let image = asked("image", "Its image: ", "")?;
    if image.is_empty() {
        return Err(Report::new(ExitCode::Usage, "which image?")
            .why("there is no `fluffy.toml` here, and nothing says what is to run")
            .fix("name it: fluffy launch --image ghcr.io/acme/web:1 --port 8080")
            .into());
    }
    let usual = found.port.map(|port| port.to_string()).unwrap_or_default();
    let port = match matches.get_one::<u16>("port") {
        Some(port) => port.to_string(),
        None if call::has(matches, "no-input") => usual,
        None => {
            let shown = match usual.as_str() {
                "" => String::new(),
                port => format!(" [{port}]"),
            };
            let question = format!("The port it listens at, if any{shown}: ");
            let answer = person::prompt(session, &question)?;
            answer.filter(|it| !it.is_empty()).unwrap_or(usual)
        }
    };
    let memory = matches.get_one::<ByteSize>("memory");
    let memory = memory.map_or_else(|| "256MiB".to_owned(), ToString::to_string);
    let content = content(&name, &image, &port, &memory);
    if let Err(problems) = Manifest::parse(&content) {
        let mut report = Report::new(ExitCode::Usage, "no manifest can be made of that");
        for problem in problems {
            report = report.why(problem.message.clone());
        }
        return Err(report.fix("change what was typed").into());
    }
    let file = folder.join(manifest::NAME);
    // Never over one that appeared meanwhile.
    let written = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&file);
    let written =
        written.and_then(|mut file| std::io::Write::write_all(&mut file, content.as_bytes()));
    written.map_err(|error| failure::unwritable(&file, &error))?;
    session.printer.note(&format!("wrote {}", manifest::NAME));
    Ok(())
}

/// The manifest of a new app.
fn content(name: &str, image: &str, port: &str, memory: &str) -> String {
    let text = |value: &str| toml::Value::String(value.to_owned()).to_string();
    let (name, image, memory) = (text(name), text(image), text(memory));
    let ports = match port {
        "" => String::new(),
        // Nobody is sent to one that does not answer at it.
        port => format!(
            "ports = [{{ internal = {port} }}]\nhealth = {{ type = \"tcp\", port = {port} }}\n"
        ),
    };
    format!(
        "schema_version = \"v1\"\n\n[app]\nname = {name}\n\n[image]\nref = {image}\n\n\
         [processes.web]\nresources = {{ memory = {memory} }}\n{ports}"
    )
}

/// A name as apps have it, of what a folder is called.
fn slug(text: &str) -> String {
    let mut slug = String::new();
    for letter in text.to_lowercase().chars() {
        match letter {
            'a'..='z' | '0'..='9' => slug.push(letter),
            _ if !slug.ends_with('-') => slug.push('-'),
            _ => {}
        }
    }
    let slug = slug.trim_start_matches(|letter: char| !letter.is_ascii_lowercase());
    let slug: String = slug.chars().take(32).collect();
    match slug.trim_end_matches('-') {
        "" => "app".to_owned(),
        slug => slug.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use fluffy_manifest::model::Probe;

    use super::*;

    #[test]
    fn a_folder_names_an_app() {
        for (folder, name) in [
            ("shop", "shop"),
            ("My Shop (2)", "my-shop-2"),
            ("2048", "app"),
            ("_", "app"),
            ("3-tiers", "tiers"),
        ] {
            assert_eq!(slug(folder), name, "{folder}");
        }
        assert_eq!(slug(&"x".repeat(50)).len(), 32);
    }

    #[test]
    fn what_is_written_is_a_valid_manifest() {
        for port in ["", "8080"] {
            let text = content("shop", "ghcr.io/acme/\"web\":1", port, "256MiB");
            assert!(toml::from_str::<toml::Table>(&text).is_ok(), "{text}");
            let text = content("shop", "ghcr.io/acme/web:1", port, "256MiB");
            let manifest = Manifest::parse(&text);
            assert!(manifest.is_ok(), "{text}{manifest:?}");
            let health = manifest.unwrap().processes["web"].health.clone();
            let asked = health.map(|health| (health.probe, health.port.to_string()));
            let expected = (!port.is_empty()).then(|| (Probe::Tcp, port.to_owned()));
            assert_eq!(asked, expected, "{text}");
            let formatted = fluffy_manifest::format(&text);
            assert_eq!(
                formatted.as_deref().ok(),
                Some(text.as_str()),
                "its one form"
            );
        }
    }
}
