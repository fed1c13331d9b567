//! `fluffy dev generate`: the parts of `docs/` that the code knows better.
//!
//! For contributors; run at the root of the repository. `--check` writes
//! nothing and fails when a file is not what it should be.

use std::fs;
use std::path::Path;

use clap::{Arg, CommandFactory};
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

/// What flags that many commands take are written under, once.
const EVERYWHERE: &str = "Flags of every command";
const ASKING: &str = "Flags of every command that asks a server";

/// Every command's own help, as it prints it; what many share is written once.
fn commands() -> String {
    let mut text = format!(
        "{NOTICE}# Commands\n\nEvery command as its `--help` describes it, but for flags that \
         many share.\n"
    );
    let mut root = Cli::command();
    root.build();
    let asking = root.get_subcommands().find(|noun| asks(noun));
    let is_own = |arg: &&Arg| root.get_arguments().any(|own| own.get_id() == arg.get_id());
    // Only a command with a version can print one.
    let everywhere = root.get_arguments();
    let everywhere = everywhere.filter(|arg| is_shared(arg) && arg.get_id() != "version");
    let of_servers = asking.into_iter().flat_map(clap::Command::get_arguments);
    let of_servers = of_servers.filter(|arg| is_shared(arg) && !is_own(arg));
    share(EVERYWHERE, everywhere, &mut text);
    share(ASKING, of_servers, &mut text);
    describe(&root, "fluffy", &mut text);
    text
}

/// Whether every command below takes it too.
fn is_shared(arg: &Arg) -> bool {
    arg.is_global_set() || ["help", "version"].contains(&arg.get_id().as_str())
}

/// Whether a command asks a server.
fn asks(command: &clap::Command) -> bool {
    let mut arguments = command.get_arguments();
    arguments.any(|arg| arg.get_id() == "server" && arg.is_global_set())
}

/// Writes shared flags, under a title that can be linked to.
fn share<'a>(title: &str, arguments: impl Iterator<Item = &'a Arg>, text: &mut String) {
    let alone = clap::Command::new("fluffy").disable_help_flag(true);
    let mut alone = alone.help_template("{options}").term_width(100);
    for argument in arguments {
        alone = alone.arg(argument.clone().help_heading(None));
    }
    section(title, &alone.render_long_help().to_string(), text);
}

fn section(title: &str, help: &str, text: &mut String) {
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    let help = help.join("\n");
    text.push_str(&format!(
        "\n## {title}\n\n```text\n{}\n```\n",
        help.trim_end()
    ));
}

fn describe(command: &clap::Command, path: &str, text: &mut String) {
    let mut shown = command.clone().term_width(100).mut_args(|arg| {
        let hidden = is_shared(&arg) || arg.is_hide_set();
        arg.hide(hidden)
    });
    let help = shown.render_long_help().to_string();
    section(&format!("`{path}`"), &help, text);
    let link = |title: &str| {
        let place = title.to_lowercase().replace(' ', "-");
        format!("[{}](#{place})", title.to_lowercase())
    };
    let also = match asks(command) {
        true => format!("{} and {}", link(EVERYWHERE), link(ASKING)),
        false => link(EVERYWHERE),
    };
    text.push_str(&format!("\nAnd the {also}.\n"));
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        if sub.get_name() != "help" {
            describe(sub, &format!("{path} {}", sub.get_name()), text);
        }
    }
}
