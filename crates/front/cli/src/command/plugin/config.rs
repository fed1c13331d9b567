//! `fluffy plugin config`: the settings of an installed plugin.
//!
//! A secret is typed unseen or piped in; it is never an argument, never shown
//! again, and leaves this process only sealed.

use fluffy_plugin_core::manifest::settings::{Need, Setting, SettingProblem, Sight};
use fluffy_plugin_host::settings::{Change, ConfigureError, Set, SettingsError, how_to_set};
use fluffy_plugin_host::shelf::{Placed, Shelf};
use fluffy_policy::Context;
use fluffy_report::{Cell, Column, ExitCode, Report, Table, Tone};
use serde_json::{Value, json};

use super::{changed, examined, shelf};
use crate::command::gate::{Desk, Yes};
use crate::command::{Outcome, ledger, person};
use crate::failure::Failure;
use crate::session::Session;

/// What a person wants of a plugin's settings.
pub(super) struct Wanted {
    /// `KEY=VALUE`.
    pub(super) set: Vec<String>,
    /// A secret to read.
    pub(super) secret: Option<String>,
    /// What goes back to its default.
    pub(super) unset: Vec<String>,
    /// Whether policy's question is answered.
    pub(super) yes: Yes,
}

/// Shows the settings of a plugin, or changes them first.
pub(super) fn run(session: &Session, name: &str, wanted: Wanted) -> Outcome {
    let here = session.here()?;
    let shelf = shelf(here)?;
    let placed = shelf.find(name).map_err(|error| examined(&error))?;
    let yes = wanted.yes;
    let changes = changes(session, &placed, wanted)?;
    if !changes.is_empty() {
        let opened = ledger::open(session, here)?;
        let made = Desk::open(here, &opened).and_then(|desk| {
            let request = desk.request("plugins.config", Some(name), &Context::default());
            let granted = desk.permit(&request, yes)?;
            let configured = shelf.configure(granted.permit, name, changes);
            configured.map_err(|error| not_configured(&error, name))
        });
        ledger::close(session, opened)?;
        made?;
    }
    show(session, &shelf, &placed)
}

fn changes(session: &Session, placed: &Placed, wanted: Wanted) -> Result<Vec<Change>, Failure> {
    let mut changes = Vec::new();
    for text in &wanted.set {
        let Some((key, value)) = text.split_once('=') else {
            let report = Report::new(ExitCode::Usage, "a setting has no value")
                .why("settings are typed as KEY=VALUE")
                .fix(format!(
                    "`fluffy plugin config {} KEY=VALUE`",
                    placed.manifest.name
                ));
            return Err(report.into());
        };
        let setting = setting(placed, key)?;
        if setting.sight == Sight::Secret {
            let how = how_to_set(&placed.manifest.name, key, Sight::Secret);
            let report = Report::new(ExitCode::Usage, format!("`{key}` is a secret"))
                .why("a command line is seen by others and kept by shells")
                .fix(format!("`{how}` reads it unseen"));
            return Err(report.into());
        }
        let value = setting
            .read(value)
            .map_err(|problem| no_value(key, setting, &problem))?;
        changes.push(Change::Open {
            name: key.to_owned(),
            value,
        });
    }
    for key in wanted.unset {
        setting(placed, &key)?;
        changes.push(Change::Unset { name: key });
    }
    if let Some(key) = wanted.secret {
        let setting = setting(placed, &key)?;
        if setting.sight == Sight::Open {
            let how = how_to_set(&placed.manifest.name, &key, Sight::Open);
            let report = Report::new(ExitCode::Usage, format!("`{key}` is no secret"))
                .why("only what the manifest calls a secret is stored as one")
                .fix(format!("`{how}`"));
            return Err(report.into());
        }
        let words = how_to_set(&placed.manifest.name, &key, setting.sight);
        let asks = person::Asks::Allowed { words: &words };
        let secret = person::secret(session, &format!("{key}: "), asks)?;
        let value = Value::String(secret.expose().clone());
        setting
            .check(&value)
            .map_err(|problem| no_value(&key, setting, &problem))?;
        changes.push(Change::Secret {
            name: key,
            value: secret,
        });
    }
    Ok(changes)
}

fn setting<'p>(placed: &'p Placed, key: &str) -> Result<&'p Setting, Failure> {
    let settings = &placed.manifest.settings.all;
    settings.get(key).ok_or_else(|| {
        let names: Vec<&str> = settings.keys().map(String::as_str).collect();
        let fix = match names.as_slice() {
            [] => "this plugin takes no settings".to_owned(),
            names => format!("it has {}", names.join(", ")),
        };
        let shown: String = key.chars().take(64).collect();
        Report::new(ExitCode::Usage, format!("there is no setting `{shown}`"))
            .why("a plugin's manifest names its settings")
            .fix(fix)
            .into()
    })
}

fn no_value(key: &str, setting: &Setting, problem: &SettingProblem) -> Failure {
    Report::new(ExitCode::Usage, format!("this is no value for `{key}`"))
        .why(problem.to_string())
        .fix(format!("give {}", setting.in_words()))
        .into()
}

fn not_configured(error: &ConfigureError, name: &str) -> Failure {
    match error {
        ConfigureError::Settings(error) => unusable(error, name),
        ConfigureError::Shelf(error) => changed(error),
    }
}

/// Settings that cannot be used, in words for people.
pub(super) fn unusable(error: &SettingsError, name: &str) -> Failure {
    let code = match error {
        SettingsError::Missing { .. }
        | SettingsError::Value { .. }
        | SettingsError::NoSecret { .. } => ExitCode::Usage,
        SettingsError::File { .. } | SettingsError::Sealed(_) => ExitCode::Failure,
    };
    Failure::of(code, error, &error.fix(name))
}

/// Those that the plugin does not start without, each with what to type.
pub(super) fn missing(placed: &Placed, set: &Set) -> Vec<String> {
    let settings = placed.manifest.settings.missing(&set.whole());
    let name = &placed.manifest.name;
    let each = settings.into_iter();
    each.map(|(key, sight)| how_to_set(name, key, sight))
        .collect()
}

fn show(session: &Session, shelf: &Shelf, placed: &Placed) -> Outcome {
    let name = &placed.manifest.name;
    let set = shelf
        .settings(name)
        .map_err(|error| unusable(&error, name))?;
    let rows: Vec<Row> = (placed.manifest.settings.all.iter())
        .map(|(key, setting)| Row::new(key, setting, &set))
        .collect();
    if session.json() {
        let rows: Vec<Value> = rows.iter().map(Row::json).collect();
        session
            .printer
            .json(&json!({"plugin": name, "settings": rows}))?;
        return Ok(ExitCode::Success);
    }
    if rows.is_empty() {
        session.printer.note("This plugin takes no settings.");
        return Ok(ExitCode::Success);
    }
    let names = ["SETTING", "VALUE", "STATE", "WHAT IT IS"];
    let mut table = Table::new(names.map(Column::new));
    for row in &rows {
        let tone = match row.state {
            "missing" => Tone::Caution,
            _ => Tone::Plain,
        };
        table.row([
            Cell::new(row.key),
            Cell::new(row.text()),
            Cell::new(row.state).tone(tone),
            Cell::new(row.about.as_str()),
        ]);
    }
    session.printer.table(&table)?;
    for how in missing(placed, &set) {
        session.printer.note(&format!("It needs: {how}"));
    }
    if let Some(why) = &placed.record.disabled {
        session.printer.note(&format!("It is switched off: {why}"));
    }
    Ok(ExitCode::Success)
}

/// A setting as it is listed; a secret has no value here.
struct Row<'a> {
    key: &'a str,
    value: Option<&'a Value>,
    state: &'static str,
    sight: Sight,
    about: String,
}

impl<'a> Row<'a> {
    fn new(key: &'a str, setting: &'a Setting, set: &'a Set) -> Self {
        let own = set.open.get(key);
        let is_set = own.is_some() || set.secret.contains_key(key);
        let state = match (is_set, &setting.default, setting.need) {
            (true, ..) => "set",
            (false, Some(_), _) => "default",
            (false, None, Need::Required) => "missing",
            (false, None, Need::Optional) => "not set",
        };
        let about = setting.description.clone();
        Self {
            key,
            value: match setting.sight {
                Sight::Open => own.or(setting.default.as_ref()),
                Sight::Secret => None,
            },
            state,
            sight: setting.sight,
            about: about.unwrap_or_else(|| setting.in_words()),
        }
    }

    fn text(&self) -> String {
        match (self.value, self.sight) {
            (Some(Value::String(text)), _) => text.clone(),
            (Some(value), _) => value.to_string(),
            (None, Sight::Secret) => "(secret)".to_owned(),
            (None, Sight::Open) => String::new(),
        }
    }

    fn json(&self) -> Value {
        json!({
            "name": self.key,
            "value": self.value,
            "state": self.state,
            "secret": self.sight == Sight::Secret,
            "about": self.about,
        })
    }
}
