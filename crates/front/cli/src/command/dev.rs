//! `fluffy dev generate`: the parts of `docs/` that the code knows better.
//!
//! For contributors; run at the root of the repository. `--check` writes
//! nothing and fails when a file is not what it should be.

use std::fs;
use std::path::Path;

use clap::CommandFactory;
use fluffy_policy::schema;
use fluffy_report::{ExitCode, Report, sorted};

use crate::args::{Cli, DevCommand};
use crate::command::Outcome;
use crate::failure;
use crate::session::Session;

const NOTICE: &str = "<!-- Written by `fluffy dev generate`; change the code instead. -->\n\n";

/// Runs one of the `dev` commands.
pub(crate) fn run(session: &Session, command: &DevCommand) -> Outcome {
    match command {
        DevCommand::Generate { check } => generate(session, *check),
    }
}

fn generate(session: &Session, check_only: bool) -> Outcome {
    let docs = session.folder()?.join("docs");
    let mut stale = Vec::new();
    for (name, text) in files() {
        let path = docs.join(name);
        if fs::read_to_string(&path).ok().as_deref() == Some(text.as_str()) {
            continue;
        }
        if check_only {
            stale.push(name);
        } else {
            fs::write(&path, text).map_err(|error| failure::unwritable(&path, &error))?;
            session
                .printer
                .note(&format!("wrote {}", Path::new("docs").join(name).display()));
        }
    }
    if stale.is_empty() {
        return Ok(ExitCode::Success);
    }
    let what = format!("generated files are not up to date: {}", stale.join(", "));
    Err(Report::new(ExitCode::Failure, what)
        .fix("run `cargo run -- dev generate` at the root of the repository")
        .into())
}

fn files() -> Vec<(&'static str, String)> {
    vec![
        (
            "api-reference.md",
            format!("{NOTICE}{}", fluffy_api::openapi::reference()),
        ),
        ("commands.md", commands()),
        (
            "configuration.md",
            format!("{NOTICE}{}", fluffy_config::reference::reference()),
        ),
        (
            "openapi.json",
            format!("{:#}\n", sorted(fluffy_api::openapi::document())),
        ),
        (
            "policy.schema.json",
            format!("{:#}\n", sorted(schema::policy_schema())),
        ),
        (
            "policy-test.schema.json",
            format!("{:#}\n", sorted(schema::test_table_schema())),
        ),
    ]
}

/// Every command's own help, as it prints it.
fn commands() -> String {
    let mut text = format!("{NOTICE}# Commands\n\nEvery command as its `--help` describes it.\n");
    let mut root = Cli::command();
    root.build();
    describe(&root, "fluffy", &mut text);
    text
}

fn describe(command: &clap::Command, path: &str, text: &mut String) {
    let help = command
        .clone()
        .term_width(100)
        .render_long_help()
        .to_string();
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    text.push_str(&format!(
        "\n## `{path}`\n\n```text\n{}\n```\n",
        help.join("\n").trim_end()
    ));
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        if sub.get_name() != "help" {
            describe(sub, &format!("{path} {}", sub.get_name()), text);
        }
    }
}
