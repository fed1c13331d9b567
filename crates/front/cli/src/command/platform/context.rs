//! `fluffy context …`: list, show, use, set, remove. Shows no token.

use fluffy_report::{Column, ExitCode, Table};
use serde_json::{Map, Value, json};

use super::contexts::{Context, Contexts, Login, LoginLock, PATIENCE, check_name};
use super::target::{Flags, Origin, Target};
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
            Login::remove_all(&LoginLock::wait(paths, &name, PATIENCE)?)?;
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

/// One context: what it says, and what commands go by with it, each value
/// with the place that it comes from.
fn show(session: &Session, all: &Contexts, name: Option<String>) -> Result<(), Failure> {
    let name = name.or_else(|| all.current.clone());
    let flags = Flags {
        context: name.clone(),
        ..Flags::default()
    };
    let context = match &name {
        Some(name) => all.get(name)?.clone(),
        None => Context::default(),
    };
    let target = Target::find(session, &flags)?;
    let values = in_force(session, &target, &context)?;
    if session.json() {
        let mut data = to_json(all, &target.context, &context);
        if let Some(fields) = data.as_object_mut() {
            let each = values.iter().map(|(field, value, from)| {
                let value = json!({"value": value, "from": from});
                ((*field).to_owned(), value)
            });
            let each: Map<String, Value> = each.collect();
            fields.insert("in_force".to_owned(), Value::Object(each));
        }
        let document = json!({"api_version": "v1", "kind": "Context", "data": data});
        return Ok(session.printer.json(&document)?);
    }
    let title = name.unwrap_or_else(|| "(none)".to_owned());
    let titles = [
        Column::new("CONTEXT"),
        Column::new(title),
        Column::new("FROM"),
    ];
    let mut table = Table::new(titles);
    for (field, value, from) in values {
        table.row([field.to_owned(), value, from]);
    }
    Ok(session.printer.table(&table)?)
}

/// What commands go by, and where each value comes from.
fn in_force(
    session: &Session,
    target: &Target,
    context: &Context,
) -> Result<Vec<(&'static str, String, String)>, Failure> {
    let place = |field: &str, from: Origin| from.told(field, &target.context);
    let mut values = vec![(
        "server",
        target.server.to_string(),
        place("server", target.server_from),
    )];
    if let Some(ca) = &context.ca {
        values.push(("ca", ca.clone(), place("ca", Origin::Context)));
    }
    for (field, named) in [
        ("org", &target.org),
        ("app", &target.app),
        ("env", &target.env),
    ] {
        if let Some(named) = named {
            values.push((field, named.name.clone(), place(field, named.from)));
        }
    }
    // Never the token itself.
    let held = target.login(&session.here()?.paths).access_token();
    let login = match (&target.token, held) {
        (Some(_), _) => Some(("a token", place("token", Origin::Variable))),
        (None, Some(_)) => Some(("a token", "`fluffy login`".to_owned())),
        (None, None) => None,
    };
    values.extend(login.map(|(value, from)| ("login", value.to_owned(), from)));
    Ok(values)
}
