//! The commands that ask a server, made of the table of operations.
//!
//! An operation says which words it is called by; its path, request and query
//! say what those words take. What is more than one call is in `EXTRA`, with
//! its own arguments. Each noun is built only when it is typed. What happens
//! is in `command/platform`.

use std::ffi::OsStr;

use clap::builder::PossibleValuesParser;
use clap::{
    Arg, ArgAction, ArgMatches, Args as _, Command, FromArgMatches, Subcommand, value_parser,
};
use clap_complete::ArgValueCompleter;
use fluffy_api::Operation;
use fluffy_api::operation::{Kind, Method, ParamKind, Spec};
use fluffy_base::{ByteSize, Span};

use crate::command::platform::complete;

use super::custody::{InitKeysArgs, RecoverKeysArgs, VerifySharesArgs};
use super::fields::{Field, FieldKind, fields, first_sentence};

/// What was typed below one of the nouns.
#[derive(Debug)]
pub(crate) struct PlatformCommand {
    /// The words, such as `apps`, `create`.
    pub(crate) words: Vec<String>,
    /// Their arguments.
    pub(crate) matches: ArgMatches,
}

/// Every word at the top, with what it is about.
const NOUNS: &[(&str, &str)] = &[
    (
        "launch",
        "Bring what is here to run: manifest, app, env and first deploy",
    ),
    ("deploy", "Make a release and roll it out, and watch it"),
    (
        "rollback",
        "Return an env to an earlier release, and watch it",
    ),
    ("scale", "Show or set how many instances each process has"),
    (
        "status",
        "Show how an env is: wanted and seen, routes, the last error",
    ),
    ("wait", "Wait until something that takes a while is done"),
    (
        "describe",
        "Show one thing of any kind, with all that is known",
    ),
    ("apps", "Look after apps"),
    ("envs", "Look after envs of an app"),
    ("projects", "Group apps"),
    (
        "releases",
        "Look after releases: an image and a manifest, for good",
    ),
    ("deploys", "Look at deploys; pause, resume or cancel one"),
    (
        "instances",
        "Look at instances; restart one, run a command in one",
    ),
    (
        "exec",
        "Run a command in an instance; short for `instances exec`",
    ),
    ("logs", "Show what instances print"),
    (
        "routes",
        "Look after routes: from a public port to a process",
    ),
    ("ipv4", "Give an env an IPv4 address, or take it back"),
    ("secrets", "Set secrets of an env; values are never shown"),
    ("volumes", "Look after volumes"),
    ("attachments", "Mount volumes into processes"),
    ("snapshots", "Back volumes up, and restore them"),
    ("restores", "Look at restores of volumes"),
    (
        "events",
        "Read what happened on the platform; rebuild, archive and verify it",
    ),
    ("login", "Log in to a server"),
    ("logout", "Log out, and end the token"),
    ("whoami", "Show who you are, and what you may do"),
    ("orgs", "Look after orgs"),
    ("members", "Ask people in, and change their roles"),
    ("principals", "Look after service principals"),
    ("tokens", "Issue and revoke API tokens"),
    ("grants", "Give capabilities, and take them away"),
    ("approvals", "Decide about commands that wait for a person"),
    ("quotas", "Show and set limits of an org"),
    ("nodes", "Look after the machines that run instances"),
    ("keys", "Look after the keys that secrets are sealed with"),
    ("capabilities", "Show what a server can do"),
];

/// The last word of a command, and another one for the same.
const ALIASES: &[(&str, &str)] = &[("keys status", "list")];

/// Words, what they are about, and what gives them their arguments.
type Extra = (&'static str, &'static str, fn(Command) -> Command);

/// Commands that are more, or other, than one call.
const EXTRA: &[Extra] = &[
    (
        "approvals approve",
        "Allow a command that waits, and run it",
        decide,
    ),
    ("approvals deny", "Refuse a command that waits", decide),
    (
        "deploy",
        "Make a release and roll it out, and watch it",
        deploy,
    ),
    (
        "deploys create",
        "Make a release and roll it out; the same as `deploy`",
        deploy,
    ),
    (
        "describe",
        "Show one thing of any kind, with all that is known",
        describe,
    ),
    ("events tail", "Follow events as they happen", tail),
    (
        "exec",
        "Run a command in an instance; short for `instances exec`",
        exec,
    ),
    ("instances exec", "Run a command in an instance", exec),
    (
        "keys init",
        "Make a master key that several people keep, a share each",
        InitKeysArgs::augment_args,
    ),
    (
        "keys recover",
        "Put a master key back from shares of its custodians",
        RecoverKeysArgs::augment_args,
    ),
    (
        "keys shares verify",
        "Prove that shares are their master key, and keep nothing",
        VerifySharesArgs::augment_args,
    ),
    (
        "launch",
        "Bring what is here to run: manifest, app, env and first deploy",
        launch,
    ),
    ("login", "Log in to a server", login),
    ("logout", "Log out, and end the token", |command| command),
    (
        "logs export",
        "Write every line of a window as JSON, one entry a line",
        export,
    ),
    (
        "orgs export",
        "Write the events of an org with proofs, as a file that verifies by itself",
        export_org,
    ),
    (
        "secrets import",
        "Replace all secrets by those in a file",
        import,
    ),
    (
        "secrets render",
        "Show the file that instances get, with every value redacted",
        |command| command,
    ),
    (
        "secrets set",
        "Set secrets; each is typed unseen, or one is piped in",
        keys,
    ),
    (
        "secrets status",
        "Show versions of the secrets, and who runs them",
        |command| command,
    ),
    ("secrets unset", "Remove secrets", keys),
    (
        "wait",
        "Wait until something that takes a while is done",
        wait,
    ),
];

/// The commands that one call does: its words, and its operations.
///
/// Where two share their words the second changes what the first shows.
pub(crate) fn derived() -> Vec<(&'static str, Vec<Operation>)> {
    let mut commands: Vec<(&'static str, Vec<Operation>)> = Vec::new();
    for operation in Operation::ALL {
        let words = operation.spec().cli;
        if words.starts_with("no:") || is_extra(words) {
            continue;
        }
        match commands.iter_mut().find(|(known, _)| *known == words) {
            Some((_, operations)) => operations.push(*operation),
            None => commands.push((words, vec![*operation])),
        }
    }
    commands
}

/// Whether these words are more than one call.
pub(crate) fn is_extra(words: &str) -> bool {
    EXTRA.iter().any(|(extra, _, _)| *extra == words)
}

impl Subcommand for PlatformCommand {
    fn augment_subcommands(command: Command) -> Command {
        let nouns = NOUNS.iter();
        command.subcommands(nouns.map(|(name, about)| {
            let about = Command::new(*name).about(*about);
            about.defer(noun)
        }))
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        NOUNS.iter().any(|(known, _)| *known == name)
    }
}

impl FromArgMatches for PlatformCommand {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Self::from_arg_matches_mut(&mut matches.clone())
    }

    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<Self, clap::Error> {
        let missing = || clap::Error::new(clap::error::ErrorKind::MissingSubcommand);
        let (name, mut matches) = matches.remove_subcommand().ok_or_else(missing)?;
        let mut words = vec![name];
        while let Some((name, below)) = matches.remove_subcommand() {
            words.push(name);
            matches = below;
        }
        Ok(Self { words, matches })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// One noun with everything below it.
fn noun(command: Command) -> Command {
    let name = command.get_name().to_owned();
    let mut command = command.args(target());
    for (words, operations) in derived() {
        let mut words = words.split(' ');
        if words.next() == Some(name.as_str()) {
            command = place(command, &words.collect::<Vec<_>>(), &|leaf| {
                call(leaf, &operations)
            });
        }
    }
    for (words, about, arguments) in EXTRA {
        let mut words = words.split(' ');
        if words.next() == Some(name.as_str()) {
            let rest: Vec<&str> = words.collect();
            command = place(command, &rest, &|leaf| arguments(leaf).about(*about));
        }
    }
    // What is a command by itself, as `logs` is, needs no further word.
    let is_whole = derived().iter().any(|(words, _)| *words == name);
    match is_whole {
        true => command
            .subcommand_required(false)
            .arg_required_else_help(false),
        false => command,
    }
}

/// Finishes the command of these words below `command`.
fn place(command: Command, words: &[&str], finish: &dyn Fn(Command) -> Command) -> Command {
    let [word, rest @ ..] = words else {
        return finish(command);
    };
    let command = command
        .subcommand_required(true)
        .arg_required_else_help(true);
    if command.find_subcommand(word).is_none() {
        let below = Command::new((*word).to_owned());
        return command.subcommand(place(below, rest, finish));
    }
    command.mut_subcommand(*word, |below| place(below, rest, finish))
}

/// The arguments of one call; of two that share their words, of both.
fn call(command: Command, operations: &[Operation]) -> Command {
    let Some(first) = operations.first().map(|operation| operation.spec()) else {
        return command;
    };
    let noun_alone = NOUNS.iter().any(|(name, _)| *name == first.cli);
    let mut command = match noun_alone {
        true => command,
        false => command.about(first_sentence(first.summary)),
    };
    if let Some((_, other)) = ALIASES.iter().find(|(words, _)| *words == first.cli) {
        command = command.visible_alias(*other);
    }
    let reads = operations.len() == 1;
    for operation in operations {
        command = arguments(command, operation.spec(), reads);
    }
    command
}

fn arguments(command: Command, spec: &'static Spec, alone: bool) -> Command {
    let mut command = command;
    let own: Vec<&str> = own_params(spec).collect();
    for name in &own {
        command = command.arg(
            Arg::new(format!("path.{name}"))
                .value_name(name.to_ascii_uppercase())
                .help("Its id or name")
                .required(true)
                .add(live(spec.path, name)),
        );
    }
    let mut positional = own.is_empty();
    for field in fields(spec) {
        if is_of_target(&field) {
            continue;
        }
        command = command.arg(argument(&field, &mut positional, alone));
    }
    for param in spec.params() {
        // What a target says, and what is done by itself, needs no flag.
        if ["app", "env", "min_seq"].contains(&param.name) || param.kind == ParamKind::Place {
            continue;
        }
        let name = match param.name {
            "project" => "in-project".to_owned(),
            name => name.replace('_', "-"),
        };
        let mut arg = Arg::new(format!("query.{}", param.name))
            .long(name)
            .help(first_sentence(param.meaning));
        if param.name == "process" {
            arg = arg.add(ArgValueCompleter::new(complete::processes));
        }
        command = command.arg(match param.kind {
            ParamKind::Flag => arg.action(ArgAction::SetTrue),
            ParamKind::Word(words) => arg.value_parser(PossibleValuesParser::new(words)),
            ParamKind::Number(..) => arg.value_parser(value_parser!(u64)).value_name("N"),
            ParamKind::Text | ParamKind::Place | ParamKind::Time => arg.value_name("VALUE"),
        });
    }
    control(command, spec)
}

/// What a path names that no target says.
pub(crate) fn own_params(spec: &'static Spec) -> impl Iterator<Item = &'static str> {
    let noun = spec.cli.split(' ').next().unwrap_or_default();
    // `orgs policy` is about an org that is meant, `orgs update` about one that is named.
    let is_deep = spec.cli.split(' ').count() > 2;
    spec.path_params().filter(move |name| match *name {
        "org" | "app" | "env" => !is_deep && noun.strip_suffix('s') == Some(*name),
        _ => true,
    })
}

fn argument(field: &Field, positional: &mut bool, alone: bool) -> Arg {
    let mut arg = Arg::new(body_id(field)).help(field.help.clone());
    let takes_place = match field.kind {
        FieldKind::Numbers => true,
        // An address has its place though a principal can stand for it.
        FieldKind::Text => (field.required && *positional) || field.name == "email",
        FieldKind::File => field.name != "manifest",
        FieldKind::Words(_) => field.name == "signal",
        _ => false,
    };
    let upper = field.flag().replace('-', "_").to_ascii_uppercase();
    arg = arg.value_name(upper);
    if let Some(completer) = known(field) {
        arg = arg.add(completer);
    }
    if !takes_place {
        arg = arg.long(field.flag());
    }
    // Only the first thing that is needed has a place of its own.
    *positional &= !field.required;
    let needed = field.required && field.name != "manifest" && alone;
    let arg = arg.required(needed);
    match &field.kind {
        FieldKind::Flag => arg
            .value_parser(value_parser!(bool))
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .value_name("true|false"),
        FieldKind::Words(words) => arg.value_parser(PossibleValuesParser::new(words.clone())),
        FieldKind::Number => arg.value_parser(value_parser!(u64)).value_name("N"),
        FieldKind::Size => arg
            .value_parser(|text: &str| text.parse::<ByteSize>())
            .value_name("SIZE"),
        FieldKind::Duration => arg
            .value_parser(|text: &str| text.parse::<Span>())
            .value_name("TIME"),
        FieldKind::Texts => arg.action(ArgAction::Append),
        FieldKind::Pairs => arg.action(ArgAction::Append).value_name("NAME=VALUE"),
        FieldKind::Numbers => arg
            .value_name("NAME=N")
            .num_args(if needed { 1.. } else { 0.. }),
        FieldKind::File => arg.value_name("FILE"),
        FieldKind::Text => arg,
    }
}

/// Completes what a path names by what there is.
fn live(path: &'static str, param: &'static str) -> ArgValueCompleter {
    ArgValueCompleter::new(move |current: &OsStr| complete::names(path, param, current))
}

/// Completes what a field names, where there is a list of that.
fn known(field: &Field) -> Option<ArgValueCompleter> {
    Some(match field.name.as_str() {
        "to_release" => releases(),
        "process_types" | "process" | "backend_process" => {
            ArgValueCompleter::new(complete::processes)
        }
        "processes" => ArgValueCompleter::new(complete::scales),
        _ => return None,
    })
}

fn releases() -> ArgValueCompleter {
    listed(Operation::ListReleases)
}

fn listed(list: Operation) -> ArgValueCompleter {
    ArgValueCompleter::new(move |current: &OsStr| complete::listed(list, current))
}

/// Whether a field is named by a flag of every command: what a role is bound to
/// is `--app` and `--env`, where they are typed.
fn is_of_target(field: &Field) -> bool {
    field.within.is_none()
        && field.kind == FieldKind::Text
        && ["app", "env"].contains(&field.name.as_str())
}

/// The id of a field's argument.
pub(crate) fn body_id(field: &Field) -> String {
    match &field.within {
        None if is_of_target(field) => field.name.clone(),
        Some(within) => format!("body.{within}.{}", field.name),
        None => format!("body.{}", field.name),
    }
}

/// What a call can be told beside what it is about.
fn control(command: Command, spec: &Spec) -> Command {
    if spec.kind == Kind::List || spec.cli == "status" {
        let help = "Show it again whenever it changes; with --json a line for each change";
        return command.arg(flag("watch", help).short('w'));
    }
    if spec.cli == "logs" {
        let help = "Go on with what is printed from now on, until Ctrl-C";
        return command.arg(flag("follow", help).short('f'));
    }
    if !spec.is_write() {
        return command;
    }
    let mut command = command;
    if spec.method == Method::Delete {
        command = command.arg(flag("yes", "Do not ask"));
    }
    if waits(spec) == Waits::Never {
        return command;
    }
    let help = match waits(spec) {
        Waits::ByDefault => "Return at once, with the receipt",
        _ => "Wait until it is done",
    };
    let name = match waits(spec) {
        Waits::ByDefault => "no-wait",
        _ => "wait",
    };
    command.arg(flag(name, help)).arg(timeout())
}

/// Whether a command waits for what it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    /// There is nothing to wait for.
    Never,
    /// If it is told to.
    OnDemand,
    /// Unless it is told not to.
    ByDefault,
}

/// Whether the command of an operation waits.
pub(crate) fn waits(spec: &Spec) -> Waits {
    match spec.id {
        "createDeploy" | "createRollback" | "drainNode" => Waits::ByDefault,
        "createSnapshot" | "restoreSnapshot" | "resumeDeploy" | "deleteEnv" => Waits::OnDemand,
        // These have no record of their own to wait for; their state tells.
        "setScale" | "restartInstance" | "updateSecrets" | "replaceSecrets" | "createRoute"
        | "deleteRoute" | "createVolume" | "disableNode" | "uncordonNode" => Waits::OnDemand,
        _ if spec.success == 202 => Waits::OnDemand,
        _ => Waits::Never,
    }
}

/// What every command of the platform takes.
fn target() -> [Arg; 6] {
    let named = |name: &'static str, help: &'static str| {
        let value = name.to_ascii_uppercase();
        let arg = Arg::new(name).long(name).value_name(value).help(help);
        let arg = match name {
            "server" => arg,
            "context" => arg.add(ArgValueCompleter::new(complete::contexts)),
            _ => arg.add(live(Operation::GetEnv.spec().path, name)),
        };
        arg.global(true).help_heading("Target")
    };
    [
        named("context", "Use this context"),
        named(
            "server",
            "Ask this server: `https://HOST:PORT` or `unix:PATH`",
        ),
        named("org", "The org"),
        named("app", "The app"),
        named("env", "The env"),
        flag("no-input", "Never ask anything").global(true),
    ]
}

fn flag(name: &'static str, help: &'static str) -> Arg {
    let arg = Arg::new(name).long(name).help(help);
    arg.action(ArgAction::SetTrue)
}

fn timeout() -> Arg {
    Arg::new("timeout")
        .long("timeout")
        .value_name("TIME")
        .help("How long to wait at most")
        .value_parser(|text: &str| text.parse::<Span>())
        .default_value("10m")
}

fn decide(command: Command) -> Command {
    let id = Arg::new("path.approval")
        .value_name("APPROVAL")
        .required(true);
    let note = Arg::new("note").long("note").value_name("TEXT").help("Why");
    let id = id.help("Its id").add(listed(Operation::ListApprovals));
    command.arg(id).arg(note)
}

fn deploy(command: Command) -> Command {
    let release = Arg::new("release").long("release").value_name("RELEASE");
    let release = release.help("Deploy this release instead of making one");
    let release = release.add(releases());
    roll_out(command).arg(release.conflicts_with_all(["image", "manifest"]))
}

fn launch(command: Command) -> Command {
    let name = Arg::new("name").long("name").value_name("NAME");
    let port = Arg::new("port").long("port").value_name("PORT");
    let memory = Arg::new("memory").long("memory").value_name("SIZE");
    roll_out(command)
        .arg(name.help("The name of a new app; without it, what files here say, or this folder"))
        .arg(
            port.help("The port that a new app listens at; without it, what a Dockerfile exposes")
                .value_parser(value_parser!(u16).range(1..)),
        )
        .arg(
            memory
                .help("How much memory a new app gets")
                .value_parser(|text: &str| text.parse::<ByteSize>())
                .default_value("256MiB"),
        )
        .after_help(
            "What is missing is made: `fluffy.toml` from flags or answers, the app, the env \
             (`dev`, if none is named). What is there stays as it is. For example:\n  \
             fluffy launch --image ghcr.io/acme/web:1 --port 8080",
        )
}

/// What a command takes that makes a release and rolls it out.
fn roll_out(command: Command) -> Command {
    let image = Arg::new("image").long("image").value_name("IMAGE");
    let manifest = Arg::new("manifest").long("manifest").value_name("FILE");
    let mut command = command
        .arg(image.help("The image; without it, the manifest's"))
        .arg(manifest.help("The manifest; without it, the nearest `fluffy.toml`"));
    let spec = Operation::CreateDeploy.spec();
    // What it rests on is found, not typed.
    let typed =
        |field: &&Field| field.name != "release_id" && field.within.as_deref() != Some("source");
    for field in fields(spec).iter().filter(typed) {
        command = command.arg(argument(field, &mut false, true));
    }
    control(command, spec)
}

fn describe(command: Command) -> Command {
    let kinds = derived().into_iter().filter_map(|(words, _)| {
        let noun = words.strip_suffix(" describe")?;
        noun.strip_suffix('s')
    });
    let kind = Arg::new("kind").value_name("KIND").required(true);
    let kind = kind.value_parser(PossibleValuesParser::new(kinds.collect::<Vec<_>>()));
    let id = Arg::new("id").value_name("ID").required(true);
    command.arg(kind.help("What kind")).arg(
        id.help("Its id or name")
            .add(ArgValueCompleter::new(complete::described)),
    )
}

fn tail(command: Command) -> Command {
    let after = Arg::new("after")
        .long("after")
        .value_name("SEQ")
        .help("Start after this event");
    let count = Arg::new("count")
        .long("count")
        .value_name("N")
        .help("Stop after this many events");
    let types = Arg::new("types").long("types").value_name("TYPES");
    command
        .arg(after.value_parser(value_parser!(u64)))
        .arg(count.value_parser(value_parser!(u64)))
        .arg(types.help("Only these event types, with commas between"))
}

fn export(command: Command) -> Command {
    let named = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    let process = named("process", "VALUE", "Only those of this process type");
    let stream = named("stream", "VALUE", "Only those of this stream");
    let streams = ["stdout", "stderr", "platform"];
    let resume = "Go on with the file where it was interrupted";
    command
        .arg(named(
            "since",
            "TIME",
            "From then on, or from so long ago; an hour before the end",
        ))
        .arg(named("until", "TIME", "Until then; now if absent"))
        .arg(process.add(ArgValueCompleter::new(complete::processes)))
        .arg(named("instance", "VALUE", "Only those of this instance"))
        .arg(stream.value_parser(PossibleValuesParser::new(streams)))
        .arg(
            named(
                "output",
                "FILE",
                "Write here; the file must be new, unless --resume",
            )
            .short('o'),
        )
        .arg(flag("resume", resume).requires("output"))
        .arg(
            named(
                "cursor",
                "CURSOR",
                "Go on behind this, as the last `LogCursor` said",
            )
            .conflicts_with("output"),
        )
        .after_help(
            "Entries are lines (`LogLine`), lines that were lost (`LogGap`), and where the export \
             is (`LogCursor`). Lines come hour by hour, in the order in which they came. For \
             example:\n  \
             fluffy logs export --since 24h -o logs.ndjson\n  \
             fluffy logs export --since 24h -o logs.ndjson --resume",
        )
}

fn export_org(command: Command) -> Command {
    let org = Arg::new("path.org").value_name("ORG").required(true);
    let output = Arg::new("output").long("output").short('o').required(true);
    let after = Arg::new("after").long("after").value_name("SEQ");
    command
        .arg(
            org.help("Its id or name")
                .add(live(Operation::ExportOrg.spec().path, "org")),
        )
        .arg(
            output
                .value_name("FILE")
                .help("Write here; the file must be new"),
        )
        .arg(
            after
                .value_parser(value_parser!(u64).range(..1 << 53))
                .help("Only what comes after this event"),
        )
        .after_help(
            "Lines of JSON: what it is of with one signed checkpoint, each event with its proof, \
             and their count. For example:\n  \
             fluffy orgs export acme -o acme.ndjson\n  \
             fluffy audit verify --export acme.ndjson --key ed25519:…",
        )
}

fn login(command: Command) -> Command {
    let help = "Read a one-time code, from the terminal or standard input";
    let client = Arg::new("client-id").long("client-id").value_name("ID");
    command
        .arg(flag("invite", help).conflicts_with("client-id"))
        .arg(client.help("Log in as this service principal; its secret is read"))
        .after_help("Without a flag an API token is read and kept. For example:\n  fluffy context set work --server https://fluffy.example.com:7443\n  fluffy login --invite")
}

fn exec(command: Command) -> Command {
    let instance = Arg::new("path.instance").value_name("INSTANCE");
    let instance = instance.required(true).help("Its id");
    let line = Arg::new("command").value_name("COMMAND").required(true);
    let variable = Arg::new("variable").long("variable");
    let reason = Arg::new("reason").long("reason").value_name("TEXT");
    let longest = Arg::new("max-time").long("max-time").value_name("TIME");
    command
        .arg(instance.add(live(Operation::CreateExec.spec().path, "instance")))
        .arg(
            flag(
                "tty",
                "Give it a terminal; without a flag, if there is one here",
            )
            .short('t'),
        )
        .arg(flag("no-tty", "Give it no terminal").conflicts_with("tty"))
        .arg(flag("no-stdin", "Do not read standard input").short('n'))
        .arg(flag(
            "root",
            "Run it as the instance's root and not as its workload's user",
        ))
        .arg(
            variable
                .value_name("NAME=VALUE")
                .action(ArgAction::Append)
                .help("Another variable for it; its value is not recorded"),
        )
        .arg(
            longest
                .value_parser(|text: &str| text.parse::<Span>())
                .help("How long it may last, from 1m to 24h; an hour without it"),
        )
        .arg(reason.help("Why, for the record"))
        .arg(
            line.num_args(1..)
                .last(true)
                .help("The command and its arguments"),
        )
        .after_help(
            "Ends with the code of the command, with 128 and the number of the signal that ended \
             it, with 125 if it never started, with 255 if nobody knows. For example:\n  \
             fluffy exec INSTANCE -- sh\n  fluffy exec INSTANCE -- cat /etc/hosts > hosts",
        )
}

fn import(command: Command) -> Command {
    let file = Arg::new("file").value_name("FILE").required(true);
    let file = file.help("A file that starts with `# FLUFFY_SECRETS_V1`; `-` is standard input");
    control(command.arg(file), Operation::ReplaceSecrets.spec())
}

fn keys(command: Command) -> Command {
    let keys = Arg::new("keys").value_name("KEY").required(true);
    let command = command.arg(keys.num_args(1..).help("Its name"));
    control(command, Operation::UpdateSecrets.spec())
}

fn wait(command: Command) -> Command {
    let id = Arg::new("id").value_name("ID").required(true);
    command
        .arg(
            id.help("The id of a deploy, snapshot, restore, drain, …")
                .add(listed(Operation::ListDeploys)),
        )
        .arg(timeout())
}

#[cfg(test)]
mod tests;
