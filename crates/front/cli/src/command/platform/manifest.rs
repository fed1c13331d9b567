//! `fluffy manifest …`: validate, fmt, schema, diff.
//!
//! The rules are `fluffy-manifest`'s, which the server uses too; here is only
//! how they are shown. Only the manifest of a release needs a server.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use fluffy_api::Operation;
use fluffy_base::ByteSize;
use fluffy_manifest::{LARGEST, Manifest, Problem, format, schema};
use fluffy_report::{Cell, Column, Excerpt, ExitCode, Report, Table, Tone, sorted};
use serde_json::{Value, json};

use super::ask::{self, Asker, Call};
use super::target::Flags;
use super::view;
use crate::args::{DiffArgs, ManifestCommand};
use crate::command::Outcome;
use crate::failure::{self, Failure};
use crate::session::Session;

/// What a manifest is called.
pub(super) const NAME: &str = "fluffy.toml";

/// How many problems are shown at once.
const MOST_SHOWN: usize = 20;

/// Runs one of the `manifest` commands.
pub(crate) fn run(session: &Session, command: ManifestCommand) -> Outcome {
    match command {
        ManifestCommand::Validate { file } => validate(session, file),
        ManifestCommand::Fmt { file, check } => rewrite(session, file, check),
        ManifestCommand::Schema => print_schema(session),
        ManifestCommand::Diff(args) => diff(session, args),
    }
}

fn validate(session: &Session, file: Option<PathBuf>) -> Outcome {
    let source = Source::read(&named_or_nearest(session, file)?)?;
    let manifest = source.manifest()?;
    let (processes, volumes) = (manifest.processes.len(), manifest.volumes.len());
    let hash = manifest.hash();
    if session.json() {
        session.printer.json(&json!({
            "api_version": view::API_VERSION,
            "kind": "ManifestCheck",
            "valid": true,
            "file": source.name,
            "manifest_hash": hash.to_string(),
            "processes": manifest.processes.keys().collect::<Vec<_>>(),
            "volumes": manifest.volumes.keys().collect::<Vec<_>>(),
        }))?;
        return Ok(ExitCode::Success);
    }
    let names: Vec<&str> = manifest.processes.keys().map(String::as_str).collect();
    let volumes = match volumes {
        0 => String::new(),
        1 => ", 1 volume".to_owned(),
        count => format!(", {count} volumes"),
    };
    let word = if processes == 1 {
        "process"
    } else {
        "processes"
    };
    session.printer.data(&format!(
        "{} is valid: {processes} {word} ({}){volumes}",
        source.name,
        names.join(", ")
    ))?;
    session.printer.detail(&format!("its hash is {hash}"));
    Ok(ExitCode::Success)
}

fn rewrite(session: &Session, file: Option<PathBuf>, check_only: bool) -> Outcome {
    let source = Source::read(&named_or_nearest(session, file)?)?;
    let formatted = format(&source.text).map_err(|problems| source.refused(&problems))?;
    let changes = formatted != source.text;
    if changes && !check_only {
        let written = fs::write(&source.path, &formatted);
        written.map_err(|error| failure::unwritable(&source.path, &error))?;
    }
    if session.json() {
        session.printer.json(&json!({
            "api_version": view::API_VERSION,
            "kind": "ManifestFormat",
            "file": source.name,
            "changed": changes,
            "written": changes && !check_only,
        }))?;
    } else if changes && !check_only {
        session.printer.note(&format!("wrote {}", source.name));
    }
    if changes && check_only {
        let report = Report::new(
            ExitCode::Failure,
            format!("`{}` is not in its one form", source.name),
        );
        return Err(report.fix("run `fluffy manifest fmt`").into());
    }
    Ok(ExitCode::Success)
}

fn print_schema(session: &Session) -> Outcome {
    let schema = sorted(schema());
    // A schema is JSON either way; without --json it is laid out for reading.
    if session.json() {
        session.printer.json(&schema)?;
    } else {
        session.printer.data(&format!("{schema:#}"))?;
    }
    Ok(ExitCode::Success)
}

fn diff(session: &Session, args: DiffArgs) -> Outcome {
    let (before, after) = match &args.release {
        Some(release) => (released(session, release, &args)?, args.old),
        None => (
            Source::read(&args.old.unwrap_or_default())?.fields()?,
            args.new,
        ),
    };
    let after = Source::read(&named_or_nearest(session, after)?)?.fields()?;
    show_changes(session, &changes(&before, &after))?;
    Ok(ExitCode::Success)
}

/// The manifest that a server made a release of.
fn released(
    session: &Session,
    release: &str,
    args: &DiffArgs,
) -> Result<BTreeMap<String, Value>, Failure> {
    let flags = Flags {
        context: args.context.clone(),
        server: args.server.clone(),
        org: args.org.clone(),
        app: args.app.clone(),
        env: None,
        manifest: args.old.clone(),
    };
    let mut asker = Asker::new(session, &flags)?;
    let named = ["org", "app"].map(|part| asker.target.part(part).map(|it| it.name.clone()));
    let mut path = named.into_iter().collect::<Result<Vec<_>, Failure>>()?;
    path.push(release.to_owned());
    let call = Call {
        path,
        ..Call::default()
    };
    let answer = ask::block(asker.call(Operation::GetRelease, call))?;
    let manifest = answer.value.get("manifest").cloned().unwrap_or_default();
    if manifest.is_null() {
        let what = format!("release `{release}` is retired, and its manifest is kept no more");
        let fix = "look for its `release.created` in `fluffy events list`";
        return Err(Report::new(ExitCode::NotFound, what).fix(fix).into());
    }
    let mut fields = BTreeMap::new();
    flatten("", manifest, &mut fields);
    Ok(fields)
}

/// A field that differs, with its value before and after.
type Change<'a> = (&'a str, Option<&'a Value>, Option<&'a Value>);

fn changes<'a>(
    before: &'a BTreeMap<String, Value>,
    after: &'a BTreeMap<String, Value>,
) -> Vec<Change<'a>> {
    let mut names: Vec<&str> = before
        .keys()
        .chain(after.keys())
        .map(String::as_str)
        .collect();
    names.sort_unstable();
    names.dedup();
    names
        .into_iter()
        .map(|name| (name, before.get(name), after.get(name)))
        .filter(|(_, before, after)| before != after)
        .collect()
}

fn show_changes(session: &Session, changes: &[Change<'_>]) -> Result<(), Failure> {
    if session.json() {
        let list: Vec<Value> = changes
            .iter()
            .map(|(field, before, after)| json!({"field": field, "before": before, "after": after}))
            .collect();
        return Ok(session.printer.json(&json!({
            "api_version": view::API_VERSION,
            "kind": "ManifestDiff",
            "changes": list,
        }))?);
    }
    if changes.is_empty() {
        return Ok(session.printer.data("They say the same.")?);
    }
    let mut table = Table::new(["FIELD", "BEFORE", "AFTER"].map(Column::new));
    for (field, before, after) in changes {
        table.row([
            Cell::new(*field),
            Cell::new(plain(field, *before)).tone(Tone::Bad),
            Cell::new(plain(field, *after)).tone(Tone::Good),
        ]);
    }
    Ok(session.printer.table(&table)?)
}

/// A value as one would write it in a line.
fn plain(field: &str, value: Option<&Value>) -> String {
    let is_size = ["memory", "disk", "size"]
        .iter()
        .any(|end| field.ends_with(end));
    match value {
        None => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) if is_size => {
            let size = number.as_u64().map(ByteSize);
            size.map_or_else(|| number.to_string(), |size| size.to_string())
        }
        Some(other) => other.to_string(),
    }
}

/// The file that was named, or the nearest manifest from here upwards.
pub(crate) fn named_or_nearest(
    session: &Session,
    file: Option<PathBuf>,
) -> Result<PathBuf, Failure> {
    if let Some(file) = file {
        return Ok(file);
    }
    let folder = session.folder()?;
    nearest(&folder).ok_or_else(|| {
        Report::new(ExitCode::NotFound, "there is no manifest here")
            .why(format!(
                "neither `{}` nor a folder above it has a `{NAME}`",
                folder.display()
            ))
            .fix("name the file, or write one: `fluffy manifest schema` says what it can hold")
            .into()
    })
}

/// The nearest manifest from a folder upwards.
pub(super) fn nearest(folder: &Path) -> Option<PathBuf> {
    let files = folder.ancestors().map(|folder| folder.join(NAME));
    let mut found = files.filter(|file| file.is_file());
    found.next()
}

/// The text of a file that was named.
pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    Ok(Source::read(path)?.text)
}

/// The text of the nearest manifest.
pub(crate) fn read_nearest(session: &Session) -> Result<String, Failure> {
    read(&named_or_nearest(session, None)?)
}

/// The text of a manifest that is valid: what is wrong is shown here, with its
/// place, before anything is sent.
pub(crate) fn read_valid(path: &Path) -> Result<String, Failure> {
    let source = Source::read(path)?;
    source.manifest()?;
    Ok(source.text)
}

/// The text of a manifest and where it is from.
struct Source {
    path: PathBuf,
    name: String,
    text: String,
}

impl Source {
    fn read(path: &Path) -> Result<Self, Failure> {
        let mut bytes = Vec::new();
        // One byte more than is allowed, so that too large is told apart.
        let read =
            File::open(path).and_then(|file| file.take(LARGEST as u64 + 1).read_to_end(&mut bytes));
        read.map_err(|error| failure::unreadable(path, &error))?;
        let name = path.file_name().filter(|_| path.is_absolute());
        let name = name.map_or(path.as_os_str(), |name| name).to_string_lossy();
        let text = String::from_utf8(bytes).map_err(|error| {
            Report::new(ExitCode::Usage, format!("`{name}` is not text"))
                .why(error.to_string())
                .fix("write it as UTF-8")
        })?;
        Ok(Self {
            path: path.to_owned(),
            name: name.into_owned(),
            text,
        })
    }

    fn manifest(&self) -> Result<Manifest, Failure> {
        Manifest::parse(&self.text).map_err(|problems| self.refused(&problems).into())
    }

    /// Every field of the canonical form, by its dotted name.
    fn fields(&self) -> Result<BTreeMap<String, Value>, Failure> {
        let canonical = self.manifest()?.canonical();
        let value: Value = serde_json::from_str(&canonical).unwrap_or_default();
        let mut fields = BTreeMap::new();
        flatten("", value, &mut fields);
        Ok(fields)
    }

    fn refused(&self, problems: &[Problem]) -> Report {
        let what = match problems.len() {
            1 => format!("`{}` has an error", self.name),
            count => format!("`{}` has {count} errors", self.name),
        };
        let errors: Vec<Value> = problems.iter().map(problem_json).collect();
        let mut report = Report::new(ExitCode::Usage, what)
            .code("manifest_invalid")
            .with("errors", errors.into());
        for problem in problems.iter().take(MOST_SHOWN) {
            let at = (problem.line, problem.column);
            let place = Excerpt::at(&self.name, &self.text, at);
            report = report
                .at(place.label(problem.code.as_str()))
                .why(format!("line {}: {}", problem.line, problem.message));
            if let Some(fix) = &problem.fix {
                report = report.fix(format!("line {}: {fix}", problem.line));
            }
        }
        match problems.len().checked_sub(MOST_SHOWN) {
            Some(left @ 1..) => report.why(format!("and {left} more")),
            _ => report,
        }
    }
}

fn problem_json(problem: &Problem) -> Value {
    json!({
        "code": problem.code.as_str(),
        "field": problem.field,
        "message": problem.message,
        "fix": problem.fix,
        "line": problem.line,
        "column": problem.column,
    })
}

/// Objects by dotted names; what is not there says nothing.
fn flatten(name: &str, value: Value, fields: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                let dot = if name.is_empty() { "" } else { "." };
                flatten(&format!("{name}{dot}{key}"), value, fields);
            }
        }
        Value::Null => {}
        value => {
            fields.insert(name.to_owned(), value);
        }
    }
}
