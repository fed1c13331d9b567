//! The capabilities that a manifest declares and denies itself.
//!
//! Each must be able to match something: an action of the registry with the
//! resource it takes, or one of the plugin's own. A capability that nothing
//! matches would read like a permission and be none.

use fluffy_policy::action::{ACTIONS, Action, ResourceKind, find};
use fluffy_policy::capability::Pattern;
use fluffy_policy::reader::{Placed, Reader, nearest};
use fluffy_policy::yaml::Node;

/// The most capabilities one list may have.
const MAX: usize = 256;

/// A capability and where it stands.
pub(super) type PlacedPattern<'n> = (Pattern, Placed<'n>);

/// Reads one of the two lists; what is malformed is left out and reported.
pub(super) fn read<'n>(
    reader: &mut Reader,
    node: &'n Node<'n>,
    field: &str,
    plugin: Option<&str>,
) -> Vec<PlacedPattern<'n>> {
    let texts = reader.texts(node, field).unwrap_or_default();
    if texts.len() > MAX {
        reader.findings.error(
            node.place,
            format!("{field} has more than {MAX} entries"),
            "a person has to read them all",
            "combine them, for example `kv.*`",
        );
    }
    let mut patterns: Vec<PlacedPattern<'n>> = Vec::new();
    for placed in texts.into_iter().take(MAX) {
        let pattern = match Pattern::parse(placed.text) {
            Ok(pattern) => pattern,
            Err(error) => {
                let why = "a malformed capability is matched by nothing";
                let help = "write for example `net.connect.example.com:443`";
                reader
                    .findings
                    .error(placed.place, error.to_string(), why, help);
                continue;
            }
        };
        if let Err(problem) = names_something(placed.text, plugin) {
            reader
                .findings
                .error(placed.place, problem.what, problem.why, problem.help);
            continue;
        }
        if patterns.iter().any(|(other, _)| *other == pattern) {
            let what = format!("`{}` is listed twice", placed.text);
            let why = "one of them has no effect";
            reader.findings.warn(placed.place, what, why, "remove one");
            continue;
        }
        patterns.push((pattern, placed));
    }
    patterns
}

/// Reports every declared capability that a denied one covers.
pub(super) fn check_denied(
    reader: &mut Reader,
    declared: &[PlacedPattern<'_>],
    denied: &[PlacedPattern<'_>],
) {
    for (pattern, placed) in declared {
        let deny = denied.iter().find(|(deny, _)| deny.covers(pattern));
        if let Some((deny, _)) = deny {
            reader.findings.error(
                placed.place,
                format!("`{pattern}` is covered by `{deny}` in `deny_capabilities`"),
                "a denial wins, so this would never be granted",
                "remove one of the two",
            );
        }
    }
}

struct Problem {
    what: String,
    why: &'static str,
    help: String,
}

fn names_something(text: &str, plugin: Option<&str>) -> Result<(), Problem> {
    let mut parts = text.splitn(3, '.');
    let (group, verb) = (parts.next().unwrap_or_default(), parts.next());
    let resource = parts.next();
    if group.contains('*') {
        return Err(Problem {
            what: format!("`{text}` does not say which actions it is about"),
            why: "what a person cannot name in words cannot be reviewed",
            help: "name the group: `kv.*`, `fs.read.*`".to_owned(),
        });
    }
    if group == "plugin" {
        return own_action(text, verb, resource, plugin);
    }
    let action = match verb {
        Some("*") if ACTIONS.iter().any(|each| group_of(each) == group) => return Ok(()),
        Some(verb) => find(&format!("{group}.{verb}")),
        None => None,
    };
    match action {
        Some(action) => takes(text, action, resource),
        None => Err(unknown(text, group, verb)),
    }
}

fn group_of(action: &Action) -> &str {
    action.name.split('.').next().unwrap_or_default()
}

fn own_action(
    text: &str,
    name: Option<&str>,
    verb: Option<&str>,
    plugin: Option<&str>,
) -> Result<(), Problem> {
    // Without a valid name of its own, that is the error to mend first.
    match (plugin, name, verb) {
        (None, _, _) => Ok(()),
        (Some(plugin), Some(name), Some(_)) if plugin == name => Ok(()),
        (Some(plugin), _, _) => Err(Problem {
            what: format!("`{text}` is not an action of this plugin"),
            why: "plugins do not call each other",
            help: format!("its own actions begin with `plugin.{plugin}.`"),
        }),
    }
}

fn unknown(text: &str, group: &str, verb: Option<&str>) -> Problem {
    let action = format!("{group}.{}", verb.unwrap_or_default());
    let names: Vec<&str> = ACTIONS.iter().map(|each| each.name).collect();
    let group_exists = ACTIONS.iter().any(|each| group_of(each) == group);
    Problem {
        what: format!("`{text}` names no action"),
        why: "an action that does not exist is never granted",
        help: match (nearest(&action, &names), verb) {
            (_, None) if group_exists => format!("write `{group}.*` for all of them"),
            (Some(name), _) => format!("did you mean `{name}`?"),
            (None, _) => "use a known one, such as `fs.read` or `net.connect`".to_owned(),
        },
    }
}

/// Whether a capability of this action can look like this.
fn takes(text: &str, action: &Action, resource: Option<&str>) -> Result<(), Problem> {
    let port = |text: &str| text.rsplit_once(':').is_some_and(|(_, port)| is_port(port));
    let path = |text: &str| text.starts_with('/') || text.starts_with('@');
    let fits = match (action.resource, resource) {
        (ResourceKind::Free, _) | (ResourceKind::None, None) => true,
        (ResourceKind::None, Some(_)) | (_, None) => false,
        (_, Some("*")) => true,
        (ResourceKind::Address, Some(text)) => text.ends_with(".*") || port(text),
        (ResourceKind::Path, Some(text)) => path(text),
        (ResourceKind::Object | ResourceKind::Name, Some(_)) => true,
    };
    match fits {
        true => Ok(()),
        false => Err(Problem {
            what: format!("`{text}` can match nothing"),
            why: "a capability is an action together with its resource",
            help: match action.resource {
                ResourceKind::None => format!("write `{}`", action.name),
                ResourceKind::Address => {
                    format!(
                        "`{}` takes a host with its port, such as `{}.example.com:443`",
                        action.name, action.name
                    )
                }
                kind => format!(
                    "`{0}` takes {1}; `{0}.*` means all",
                    action.name,
                    kind.describe()
                ),
            },
        }),
    }
}

fn is_port(text: &str) -> bool {
    text == "*" || (text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok())
}
