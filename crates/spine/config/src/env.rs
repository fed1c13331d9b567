//! The environment: every variable we read, in one registry.
//!
//! Variables of configuration keys are derived from [`crate::keys`] and are not
//! repeated here. No other code of the product reads the environment for
//! settings. Values are never shown by `Debug`: a variable may hold a secret.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;

/// What every variable of ours starts with.
pub const PREFIX: &str = "FLUFFY_";

/// The app that commands of the platform are about.
pub const FLUFFY_APP: &str = "FLUFFY_APP";
/// The context that commands of the platform use.
pub const FLUFFY_CONTEXT: &str = "FLUFFY_CONTEXT";
/// The database of `fluffy server`.
pub const FLUFFY_DATABASE: &str = "FLUFFY_DATABASE";
/// The same database, past the pooler that the other address is of.
pub const FLUFFY_DATABASE_DIRECT: &str = "FLUFFY_DATABASE_DIRECT";
/// The env that commands of the platform are about.
pub const FLUFFY_ENV: &str = "FLUFFY_ENV";
/// How many seconds a kernel stays when nobody needs it.
pub const FLUFFY_KERNEL_LINGER: &str = "FLUFFY_KERNEL_LINGER";
/// The org that commands of the platform are about.
pub const FLUFFY_ORG: &str = "FLUFFY_ORG";
/// The server that commands of the platform ask.
pub const FLUFFY_SERVER: &str = "FLUFFY_SERVER";
/// Where our own files live, instead of the XDG state directory.
pub const FLUFFY_STATE_DIR: &str = "FLUFFY_STATE_DIR";
/// The token that commands of the platform log in with.
pub const FLUFFY_TOKEN: &str = "FLUFFY_TOKEN";
/// The user's home directory.
pub const HOME: &str = "HOME";
/// Any value switches colour off.
pub const NO_COLOR: &str = "NO_COLOR";
/// The user's home directory on Windows.
pub const USERPROFILE: &str = "USERPROFILE";
/// The base directory of the user's configuration files.
pub const XDG_CONFIG_HOME: &str = "XDG_CONFIG_HOME";
/// The base directory of state that should survive restarts.
pub const XDG_STATE_HOME: &str = "XDG_STATE_HOME";

/// Every variable that is not a configuration key, and what it does.
pub const VARIABLES: &[(&str, &str)] = &[
    (
        FLUFFY_APP,
        "the app that commands of the platform are about",
    ),
    (
        FLUFFY_CONTEXT,
        "the context that commands of the platform use, instead of the current one",
    ),
    (
        FLUFFY_DATABASE,
        "the database of `fluffy server`, `postgres://…`, instead of `--database`",
    ),
    (
        FLUFFY_DATABASE_DIRECT,
        "the same database past its pooler, instead of `--database-direct`",
    ),
    (
        FLUFFY_ENV,
        "the env that commands of the platform are about",
    ),
    (
        FLUFFY_KERNEL_LINGER,
        "how many seconds the kernel stays after the last session and client; default 60",
    ),
    (
        FLUFFY_ORG,
        "the org that commands of the platform are about",
    ),
    (
        FLUFFY_SERVER,
        "the server that commands of the platform ask: `https://…` or `unix:PATH`",
    ),
    (
        FLUFFY_STATE_DIR,
        "where fluffy keeps its own files; default `$XDG_STATE_HOME/fluffy`",
    ),
    (
        FLUFFY_TOKEN,
        "the token that commands of the platform log in with",
    ),
    (HOME, "the user's home directory"),
    (NO_COLOR, "any value that is not empty switches colour off"),
    (USERPROFILE, "the user's home directory on Windows"),
    (
        XDG_CONFIG_HOME,
        "the base of the user's configuration; default `~/.config`",
    ),
    (
        XDG_STATE_HOME,
        "the base of the state directory; default `~/.local/state`",
    ),
];

/// The variables that matter to us, as they were at one moment.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Environment(BTreeMap<OsString, OsString>);

impl Environment {
    /// The environment of this process; what is not ours is left out.
    #[must_use]
    pub fn of_process() -> Self {
        std::env::vars_os().collect()
    }

    /// The value of a variable; an empty one counts as not set.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        let value = self.0.get(OsStr::new(name))?;
        (!value.is_empty()).then_some(value.as_os_str())
    }

    /// The names that start with [`PREFIX`], readable ones only.
    pub(crate) fn own_names(&self) -> impl Iterator<Item = &str> {
        let names = self.0.keys().filter_map(|name| name.to_str());
        names.filter(|name| name.starts_with(PREFIX))
    }
}

impl<N: Into<OsString>, V: Into<OsString>> FromIterator<(N, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        let ours = |name: &OsString| {
            let name = name.to_string_lossy();
            name.starts_with(PREFIX) || VARIABLES.iter().any(|(known, _)| *known == name)
        };
        let pairs = pairs.into_iter().map(|(n, v)| (n.into(), v.into()));
        Self(pairs.filter(|(name, _)| ours(name)).collect())
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_variables_are_kept_and_no_value_is_shown() {
        let environment: Environment = [
            ("FLUFFY_MODEL", "openai/x"),
            ("AWS_SECRET_ACCESS_KEY", "hunter2"),
            ("HOME", ""),
        ]
        .into_iter()
        .collect();
        assert_eq!(
            environment.get("FLUFFY_MODEL"),
            Some(OsStr::new("openai/x"))
        );
        assert_eq!(environment.get("AWS_SECRET_ACCESS_KEY"), None);
        assert_eq!(environment.get(HOME), None);
        assert_eq!(format!("{environment:?}"), r#"{"FLUFFY_MODEL", "HOME"}"#);
    }

    #[test]
    fn the_registry_is_in_order() {
        assert!(VARIABLES.is_sorted());
    }
}
