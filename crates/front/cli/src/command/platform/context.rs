//! `fluffy context …`: list, show, use, set, remove.

use fluffy_report::{Column, ExitCode, Table};
use serde_json::{Map, Value, json};

use super::contexts::{Context, Contexts, Login, check_name};
use crate::args::{ContextCommand, ContextSetArgs};
use crate::command::Outcome;
use crate::failure::Failure;
use crate::session::Session;

/// Runs one of the `context` commands.
pub(crate) fn run(session: &Session, command: ContextCommand) -> Outcome {
    let paths = &session.here()?.paths;
    let mut all = Contexts::read(paths)?;
    match command {
        ContextCommand::List => list(session, &all)?,
        ContextCommand::Show { name } => show(session, &all, name)?,
        ContextCommand::Use { name } => {
            all.get(&name)?;
            all.current = Some(name);
            all.write(paths)?;
            show(session, &all, None)?;
        }
        ContextCommand::Set(args) => {
            let name = args.name.clone();
            set(&mut all, args)?;
            all.write(paths)?;
            show(session, &all, Some(name))?;
        }
        ContextCommand::Remove { name } => {
            all.get(&name)?;
            all.contexts.remove(&name);
            all.current = all.current.take().filter(|current| *current != name);
            Login::remove(paths, &name)?;
            all.write(paths)?;
            session.printer.note(&format!("removed context `{name}`"));
        }
    }
    Ok(ExitCode::Success)
}

fn set(all: &mut Contexts, args: ContextSetArgs) -> Result<(), Failure> {
    check_name(&args.name)?;
    if let Some(server) = args.server.as_deref().filter(|server| !server.is_empty()) {
        super::target::Server::parse(server, None)?;
    }
    let context = all.contexts.entry(args.name.clone()).or_default();
    for (place, value) in [
        (&mut context.server, args.server),
        (&mut context.ca, args.ca),
        (&mut context.org, args.org),
        (&mut context.app, args.app),
        (&mut context.env, args.env),
    ] {
        if let Some(value) = value {
            *place = Some(value).filter(|value| !value.is_empty());
        }
    }
    all.current.get_or_insert(args.name);
    Ok(())
}

fn fields(context: &Context) -> [(&'static str, Option<&str>); 5] {
    [
        ("server", context.server.as_deref()),
        ("ca", context.ca.as_deref()),
        ("org", context.org.as_deref()),
        ("app", context.app.as_deref()),
        ("env", context.env.as_deref()),
    ]
}

fn to_json(all: &Contexts, name: &str, context: &Context) -> Value {
    let mut object: Map<String, Value> = fields(context)
        .into_iter()
        .map(|(field, value)| (field.to_owned(), json!(value)))
        .collect();
    object.insert("name".to_owned(), name.into());
    let is_current = all.current.as_deref() == Some(name);
    object.insert("current".to_owned(), is_current.into());
    Value::Object(object)
}

fn list(session: &Session, all: &Contexts) -> Result<(), Failure> {
    if session.json() {
        let items: Vec<Value> = (all.contexts.iter())
            .map(|(name, context)| to_json(all, name, context))
            .collect();
        let document = json!({"api_version": "v1", "kind": "ContextList", "items": items});
        return Ok(session.printer.json(&document)?);
    }
    if all.contexts.is_empty() {
        let text = "There are no contexts: commands ask the server of `fluffy up` on this machine.";
        return Ok(session.printer.data(text)?);
    }
    let titles = ["", "NAME", "SERVER", "ORG", "APP", "ENV"];
    let mut table = Table::new(titles.map(Column::new));
    for (name, context) in &all.contexts {
        let mark = if all.current.as_ref() == Some(name) {
            "*"
        } else {
            ""
        };
        let mut row = vec![
            mark,
            name.as_str(),
            context.server.as_deref().unwrap_or("(local)"),
        ];
        let named = [&context.org, &context.app, &context.env];
        row.extend(named.map(|value| value.as_deref().unwrap_or_default()));
        table.row(row);
    }
    Ok(session.printer.table(&table)?)
}

/// One context, or what would be used without one.
fn show(session: &Session, all: &Contexts, name: Option<String>) -> Result<(), Failure> {
    let Some(name) = name.or_else(|| all.current.clone()) else {
        return list(session, all);
    };
    let context = all.get(&name)?;
    if session.json() {
        let data = to_json(all, &name, context);
        let document = json!({"api_version": "v1", "kind": "Context", "data": data});
        return Ok(session.printer.json(&document)?);
    }
    let mut table = Table::new([Column::new("CONTEXT"), Column::new(name)]);
    for (field, value) in fields(context) {
        if let Some(value) = value {
            table.row([field, value]);
        }
    }
    Ok(session.printer.table(&table)?)
}
