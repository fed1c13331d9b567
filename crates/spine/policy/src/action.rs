//! The one registry of actions: what exists, on what, in a line.
//!
//! An action that is not here is denied before any rule runs, so nothing can
//! be added to the product without being added here. Plugins bring their own,
//! always below `plugin.<name>.`, and rules may name those in advance.

use crate::host::Address;
use crate::path::{self, PathError};

/// What an action acts on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ResourceKind {
    /// Nothing.
    None,
    /// A path in a named root: `/…`, `@data/…`, `@host/…`.
    Path,
    /// `host:port`.
    Address,
    /// An object of the platform or a provider: `org/app/env`, `vendor/model`.
    Object,
    /// A name: a key, a template, a category.
    Name,
    /// Of plugins: nothing, a path or a name, as the plugin declares.
    Free,
}

impl ResourceKind {
    /// The kind in words, for messages.
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::None => "no resource",
            Self::Path => "a path such as /src/lib.rs",
            Self::Address => "a host and port such as example.com:443",
            Self::Object => "an object such as acme/shop/prod",
            Self::Name => "a name",
            Self::Free => "no resource, a path or a name",
        }
    }
}

/// One known action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Action {
    /// The dotted verb.
    pub name: &'static str,
    /// What it acts on.
    pub resource: ResourceKind,
    /// What it does, in a line.
    pub meaning: &'static str,
}

macro_rules! actions {
    ($($name:literal $kind:ident $meaning:literal)*) => {
        /// Every action of the product itself, sorted by name.
        pub const ACTIONS: &[Action] = &[
            $(Action { name: $name, resource: ResourceKind::$kind, meaning: $meaning },)*
        ];
    };
}

actions! {
    "app.create"        Object  "create an app in an organisation"
    "app.delete"        Object  "delete an app and what it owns"
    "app.read"          Object  "see an app"
    "app.update"        Object  "change an app's settings"
    "approval.decide"   Object  "answer a command that waits for a person"
    "audit.read"        Object  "read decisions and their verification"
    "config.read"       Name    "read a configuration value"
    "config.write"      Name    "change a configuration value"
    "env.create"        Object  "create an environment"
    "env.delete"        Object  "drain and delete an environment"
    "env.deploy"        Object  "deploy a release to an environment"
    "env.protect"       Object  "set or lift an environment's protection"
    "env.read"          Object  "see an environment and its status"
    "env.rollback"      Object  "return an environment to an earlier release"
    "env.scale"         Object  "change how many instances run"
    "env.update"        Object  "change an environment's settings"
    "events.read"       Object  "read an organisation's events"
    "exec.run"          Name    "run a program on behalf of a plugin"
    "fs.edit"           Path    "change a part of a file"
    "fs.exists"         Path    "ask whether a path exists"
    "fs.list"           Path    "list a directory"
    "fs.read"           Path    "read a file"
    "fs.remove"         Path    "remove a file"
    "fs.write"          Path    "write a whole file"
    "git.commit"        None    "commit the merged result"
    "git.diff"          None    "show differences"
    "git.log"           None    "show history"
    "git.status"        None    "show what changed"
    "grant.manage"      Object  "give and take grants"
    "instance.exec"     Object  "run a command in an instance"
    "instance.exec_root" Object "run a command in an instance as its root"
    "instance.read"     Object  "see instances"
    "instance.restart"  Object  "replace an instance"
    "ipv4.manage"       Object  "take and return public IPv4 addresses"
    "key.admin"         None    "rotate, rewrap, verify and retire platform keys"
    "kv.delete"         Name    "delete a value from a plugin's store"
    "kv.get"            Name    "read a value from a plugin's store"
    "kv.list"           Name    "list the keys of a plugin's store"
    "kv.set"            Name    "write a value to a plugin's store"
    "layer.drop"        Name    "throw a layer and all that is in it away"
    "layer.restore"     Name    "put a layer back to a snapshot of it"
    "ledger.admin"      None    "rebuild, archive and verify the platform's ledger"
    "ledger.read"       Name    "read recorded events"
    "log.write"         None    "write to the log"
    "logs.read"         Object  "read what instances printed"
    "member.manage"     Object  "invite, change and remove members"
    "merge.apply"       None    "merge a layer into the project"
    "messages.receive"  Name    "receive messages from a channel"
    "messages.send"     Name    "send a message to a channel"
    "model.generate"    Object  "ask a model of a provider"
    "net.connect"       Address "open a connection to a host"
    "node.enroll"       Name    "issue enrolment tokens for machines"
    "node.manage"       Name    "drain, disable and revoke machines"
    "node.read"         Name    "see machines"
    "org.admin"         Object  "change the organisation itself"
    "org.create"        Object  "create an organisation"
    "org.read"          Object  "see the organisation"
    "plan.complete"     None    "finish planning"
    "plugins.config"    Name    "change the settings of a plugin"
    "plugins.disable"   Name    "switch a plugin off"
    "plugins.enable"    Name    "switch a plugin on"
    "plugins.install"   Name    "install a plugin"
    "plugins.reload"    Name    "reload a plugin"
    "plugins.remove"    Name    "remove a plugin"
    "policy.manage"     Object  "change an organisation's policy"
    "policy.update"     Name    "replace an enforced policy file"
    "principal.manage"  Object  "create and remove service principals"
    "project.manage"    Object  "group apps into projects"
    "project.read"      Object  "see projects"
    "quota.set"         Object  "set an organisation's limits"
    "release.block"     Object  "block a release from being deployed"
    "release.create"    Object  "register an image as a release"
    "release.read"      Object  "see releases"
    "route.read"        Object  "see routes"
    "route.write"       Object  "change which hostname leads where"
    "sandbox.create"    Name    "start a sandbox from a template"
    "sandbox.exec"      Name    "run any command in a running sandbox"
    "search.glob"       Path    "find files by name below a path"
    "search.grep"       Path    "search text below a path"
    "secret.list"       Object  "see which secrets exist, never their values"
    "secret.use"        Name    "hand a stored secret to the worker that needs it"
    "secret.write"      Object  "set and delete secrets"
    "session.mode"      Name    "switch the session's mode"
    "sessions.read"     Name    "read a session's messages"
    "sessions.write"    Name    "add to a session's messages"
    "shell.exec"        None    "run a shell command in a sandbox"
    "test.run"          None    "run the project's tests"
    "token.manage"      Object  "issue and revoke credentials"
    "volume.delete"     Object  "delete a volume and its data"
    "volume.read"       Object  "see volumes"
    "volume.restore"    Object  "restore a volume from a snapshot"
    "volume.write"      Object  "create, attach and snapshot volumes"
    "workflow.request_exemption" Name "ask to skip test-first for a category"
    "workflow.transition"        Name "move the workflow to a state"
}

/// The position of an action in [`ACTIONS`]; below 128, so a set fits a word.
pub(crate) type ActionIndex = u8;

/// An action of a request, recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known<'a> {
    Listed(ActionIndex),
    Plugin { name: &'a str, plugin: &'a str },
}

impl Known<'_> {
    pub(crate) fn resource_kind(self) -> ResourceKind {
        match self {
            Self::Listed(index) => ACTIONS
                .get(usize::from(index))
                .map_or(ResourceKind::None, |action| action.resource),
            Self::Plugin { .. } => ResourceKind::Free,
        }
    }
}

/// The action of that name, if it exists.
#[must_use]
pub fn find(name: &str) -> Option<&'static Action> {
    index_of(name).and_then(|index| ACTIONS.get(usize::from(index)))
}

/// What the text names: an action of ours, or one of a plugin.
pub(crate) fn recognise(name: &str) -> Option<Known<'_>> {
    if let Some(index) = index_of(name) {
        return Some(Known::Listed(index));
    }
    let rest = name.strip_prefix("plugin.")?;
    let (plugin, verb) = rest.split_once('.')?;
    let valid = name.len() <= 256 && is_plugin_name(plugin) && verb.split('.').all(is_verb);
    valid.then_some(Known::Plugin { name, plugin })
}

fn index_of(name: &str) -> Option<ActionIndex> {
    let found = ACTIONS.binary_search_by(|action| action.name.cmp(name));
    found
        .ok()
        .and_then(|index| ActionIndex::try_from(index).ok())
}

/// Whether this is a plugin's name: `[a-z][a-z0-9-]{1,63}`.
#[must_use]
pub fn is_plugin_name(text: &str) -> bool {
    let mut bytes = text.bytes();
    (2..=64).contains(&text.len())
        && bytes.next().is_some_and(|first| first.is_ascii_lowercase())
        && bytes.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

fn is_verb(text: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| letter(byte) || byte == b'_' || byte == b'-')
}

/// The actions that a rule names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ActionSet {
    /// One bit for each listed action.
    pub(crate) listed: u128,
    /// Whole names of plugin actions.
    pub(crate) plugin_actions: Vec<String>,
    /// Plugins of which every action is meant.
    pub(crate) plugins: Vec<String>,
    /// Whether every action of every plugin is meant.
    pub(crate) all_plugins: bool,
}

impl ActionSet {
    /// Adds what one word names: an action, `group.*` or `plugin.name.*`.
    pub(crate) fn add(&mut self, word: &str) -> Result<(), UnknownAction> {
        match recognise(word) {
            Some(Known::Listed(index)) => self.listed |= 1 << index,
            Some(Known::Plugin { name, .. }) => self.plugin_actions.push(name.to_owned()),
            None => self.add_group(word)?,
        }
        Ok(())
    }

    fn add_group(&mut self, word: &str) -> Result<(), UnknownAction> {
        let unknown = || UnknownAction::of(word);
        let group = word.strip_suffix(".*").ok_or_else(unknown)?;
        if group == "plugin" {
            self.all_plugins = true;
            return Ok(());
        }
        if let Some(plugin) = group.strip_prefix("plugin.") {
            if !is_plugin_name(plugin) {
                return Err(unknown());
            }
            self.plugins.push(plugin.to_owned());
            return Ok(());
        }
        let before = self.listed;
        for (index, action) in ACTIONS.iter().enumerate() {
            let verb = action.name.strip_prefix(group);
            if verb.is_some_and(|verb| verb.starts_with('.')) {
                self.listed |= 1 << index;
            }
        }
        match self.listed == before && group_is_empty(group) {
            true => Err(unknown()),
            false => Ok(()),
        }
    }

    pub(crate) fn contains(&self, action: Known<'_>) -> bool {
        match action {
            Known::Listed(index) => self.listed & (1 << index) != 0,
            Known::Plugin { name, plugin } => {
                self.all_plugins
                    || self.plugins.iter().any(|each| each == plugin)
                    || self.plugin_actions.iter().any(|each| each == name)
            }
        }
    }

    /// Whether everything in `other` is in this set too.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let plugin_of = |name: &str| name.split('.').nth(1).unwrap_or_default().to_owned();
        let has_plugin = |plugin: &String| self.all_plugins || self.plugins.contains(plugin);
        let has_action =
            |name: &String| self.plugin_actions.contains(name) || has_plugin(&plugin_of(name));
        other.listed & !self.listed == 0
            && (self.all_plugins || !other.all_plugins)
            && other.plugins.iter().all(has_plugin)
            && other.plugin_actions.iter().all(has_action)
    }
}

fn group_is_empty(group: &str) -> bool {
    let inside = |name: &str| {
        name.strip_prefix(group)
            .is_some_and(|verb| verb.starts_with('.'))
    };
    !ACTIONS.iter().any(|action| inside(action.name))
}

/// A word that names no action, with the nearest one that exists.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{word}` is not a known action")]
pub struct UnknownAction {
    /// The word as written.
    pub word: String,
    /// What was probably meant.
    pub nearest: Option<&'static str>,
}

impl UnknownAction {
    pub(crate) fn of(word: &str) -> Self {
        let word: String = word.chars().take(64).collect();
        let near = |action: &&Action| distance(&word, action.name) <= 2;
        let nearest = ACTIONS
            .iter()
            .filter(near)
            .min_by_key(|action| distance(&word, action.name));
        let nearest = nearest.map(|action| action.name);
        Self { word, nearest }
    }
}

/// How many letters differ: insertions, deletions and replacements.
pub(crate) fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (line, from) in left.chars().enumerate() {
        let mut diagonal = line;
        let mut before = line + 1;
        for (cell, to) in row.iter_mut().skip(1).zip(&right) {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = *cell;
            before = replaced.min(before + 1).min(diagonal + 1);
            *cell = before;
        }
        if let Some(first) = row.first_mut() {
            *first = line + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}

/// The resource of a request, normalised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target<'a> {
    None,
    Path(std::borrow::Cow<'a, str>),
    Address(Address),
    /// An object or a name.
    Text(&'a str),
}

/// Why a resource does not fit its action.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResourceError {
    /// The action needs a resource and has none, or the other way round.
    #[error("the action takes {expected}")]
    Kind {
        /// What it takes.
        expected: &'static str,
    },
    /// The path cannot be normalised.
    #[error("the path cannot be normalised")]
    Path(#[source] PathError),
    /// The text is not a host and port.
    #[error("`{text}` is not a host and port")]
    Address {
        /// The text.
        text: String,
    },
    /// A name or object with characters that could be mistaken.
    #[error("`{text}` is not {expected}")]
    Text {
        /// The text.
        text: String,
        /// What it takes.
        expected: &'static str,
    },
}

impl ResourceKind {
    /// Reads a resource of this kind.
    pub(crate) fn read(self, text: Option<&str>) -> Result<Target<'_>, ResourceError> {
        let Some(text) = text else {
            return match self {
                Self::None | Self::Free => Ok(Target::None),
                _ => Err(ResourceError::Kind {
                    expected: self.describe(),
                }),
            };
        };
        let path = |text| {
            path::normalise(text)
                .map(Target::Path)
                .map_err(ResourceError::Path)
        };
        let shown = || text.chars().take(128).collect::<String>();
        match self {
            Self::None => Err(ResourceError::Kind {
                expected: self.describe(),
            }),
            Self::Path => path(text),
            Self::Free if text.starts_with(['/', '@']) => path(text),
            Self::Address => Address::parse(text)
                .map(Target::Address)
                .ok_or_else(|| ResourceError::Address { text: shown() }),
            Self::Object if is_object(text) => Ok(Target::Text(text)),
            Self::Name | Self::Free if is_name(text) => Ok(Target::Text(text)),
            Self::Object | Self::Name | Self::Free => Err(ResourceError::Text {
                text: shown(),
                expected: self.describe(),
            }),
        }
    }
}

fn is_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_-:+".contains(&byte);
    let segment = |segment: &str| !segment.is_empty() && segment.bytes().all(fits);
    text.len() <= 256 && text.split('.').all(segment)
}

fn is_object(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_-:.".contains(&byte);
    let segment = |segment: &str| {
        !segment.is_empty() && segment != "." && segment != ".." && segment.bytes().all(fits)
    };
    // A dot in the first part would make a segment of its own of what is before it.
    let first_is_plain = text
        .split('/')
        .next()
        .is_some_and(|first| !first.contains('.'));
    text.len() <= 256
        && text.split('/').count() <= 4
        && first_is_plain
        && text.split('/').all(segment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_registry_is_sorted_small_and_unambiguous() {
        assert!(ACTIONS.is_sorted_by(|a, b| a.name < b.name));
        assert!(ACTIONS.len() <= 128, "ActionSet holds a bit for each");
        for action in ACTIONS {
            assert!(action.name.split('.').all(is_verb), "{}", action.name);
            assert!(!action.name.starts_with("plugin."), "{}", action.name);
            assert!(!action.meaning.ends_with('.') && action.meaning.len() <= 60);
            // Otherwise `a.b` on `c` and `a.b.c` would be one capability.
            let below = format!("{}.", action.name);
            assert!(ACTIONS.iter().all(|other| !other.name.starts_with(&below)));
        }
    }

    #[test]
    fn plugin_actions_are_recognised_by_their_shape() {
        assert!(matches!(
            recognise("plugin.issue-tracker.create"),
            Some(Known::Plugin {
                plugin: "issue-tracker",
                ..
            })
        ));
        for bad in [
            "plugin.x.y",
            "plugin.ab",
            "plugin..y",
            "plugin.ab.",
            "plugin.Ab.y",
            "plugin.ab.y/z",
            "fs",
            "fs.wr",
            "",
            "plugin.ab.*",
        ] {
            assert_eq!(recognise(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_set_holds_words_groups_and_plugins() {
        let mut set = ActionSet::default();
        for word in ["fs.*", "plugin.jira.*", "plugin.mail.send"] {
            set.add(word).unwrap();
        }
        let has = |name| set.contains(recognise(name).unwrap());
        assert!(has("fs.write") && has("plugin.jira.create") && has("plugin.mail.send"));
        assert!(!has("net.connect") && !has("plugin.mail.read"));
        let error = set.add("fs.wirte").unwrap_err();
        assert_eq!(error.nearest, Some("fs.write"));
        for bad in ["nope.*", "plugin.X.*", "*", "fs.", ""] {
            assert!(set.add(bad).is_err(), "{bad}");
        }
        let mut part = ActionSet::default();
        part.add("fs.read").unwrap();
        part.add("plugin.jira.close").unwrap();
        assert!(set.covers(&part) && !part.covers(&set));
    }

    #[test]
    fn a_resource_must_be_of_its_action_s_kind() {
        let read = |action: &str, text| {
            recognise(action)
                .unwrap()
                .resource_kind()
                .read(text)
                .is_ok()
        };
        assert!(
            read("fs.read", Some("/a")) && !read("fs.read", None) && !read("fs.read", Some("a"))
        );
        assert!(read("git.log", None) && !read("git.log", Some("x")));
        assert!(read("net.connect", Some("a.b:1")) && !read("net.connect", Some("a.b")));
        assert!(
            read("env.deploy", Some("acme/shop/prod")) && !read("env.deploy", Some("acme/../x"))
        );
        assert!(
            !read("env.deploy", Some("a.b/c"))
                && !read("env.deploy", Some("/acme"))
                && !read("env.deploy", Some("a/*"))
        );
        assert!(
            read("kv.get", Some("a.b"))
                && !read("kv.get", Some("a/b"))
                && !read("kv.get", Some("a..b"))
        );
        assert!(
            read("plugin.ab.c", None)
                && read("plugin.ab.c", Some("/x"))
                && read("plugin.ab.c", Some("x"))
        );
        assert!(!read("plugin.ab.c", Some("x/y")) && !read("plugin.ab.c", Some("/x/..")));
    }

    #[test]
    fn distance_counts_letters() {
        for (left, right, expected) in [
            ("", "", 0),
            ("abc", "abc", 0),
            ("fs.wirte", "fs.write", 2),
            ("a", "", 1),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(left, right), expected, "{left} {right}");
            assert_eq!(distance(right, left), expected, "{right} {left}");
        }
    }
}
