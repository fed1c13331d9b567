//! The manifests of the tools that come with the product, one for each family.
//!
//! They have the form of every plugin's `plugin.yaml` but for `execution`:
//! there is nothing to start. Summaries, effects and the most that a tool can
//! need are said there and nowhere else. Whoever shows them, or grants by them,
//! reads them whole; here only what the registry needs.

use std::collections::BTreeMap;

use fluffy_contract::tool::Effect;
use fluffy_policy::capability::Pattern;
use fluffy_policy::diagnostic::Findings;
use fluffy_policy::yaml::{self, Bounds, Node, Value};

macro_rules! manifests {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("../manifests/", $name, ".yaml")))),*]
    };
}

/// Every manifest, by the name of its family.
pub const MANIFESTS: &[(&str, &str)] = manifests![
    "fs" "git" "plan" "sandbox" "search" "shell" "test" "workflow"
];

const BOUNDS: Bounds = Bounds {
    bytes: 64 << 10,
    depth: 8,
};

/// What a manifest says about one tool.
#[derive(Debug, Clone)]
pub struct Declared {
    /// One line about it.
    pub summary: String,
    /// What a call does to the world.
    pub effect: Effect,
    /// The most that its family can need.
    pub capabilities: Vec<Pattern>,
}

/// Every tool that a manifest declares, by its full name.
#[must_use]
pub fn declared() -> BTreeMap<String, Declared> {
    let mut tools = BTreeMap::new();
    for (family, text) in MANIFESTS {
        let mut findings = Findings::default();
        let Some(root) = yaml::read(text, BOUNDS, &mut findings) else {
            continue;
        };
        let capabilities: Vec<Pattern> = items(&root, "capabilities")
            .iter()
            .filter_map(|node| Pattern::parse(text_of(node)?).ok())
            .collect();
        for tool in items(&root, "tools") {
            let field = |name| field(tool, name).and_then(text_of);
            let (Some(name), Some(summary)) = (field("name"), field("summary")) else {
                continue;
            };
            let effect = match field("effect") {
                Some("reads") => Effect::Reads,
                // Whatever is not known to look only is taken to act.
                _ => Effect::Acts,
            };
            let declared = Declared {
                summary: summary.to_owned(),
                effect,
                capabilities: capabilities.clone(),
            };
            tools.insert(format!("{family}.{name}"), declared);
        }
    }
    tools
}

fn field<'n>(node: &'n Node<'n>, name: &str) -> Option<&'n Node<'n>> {
    let Value::Map(entries) = &node.value else {
        return None;
    };
    let mut entries = entries.iter();
    entries
        .find(|(key, _)| key.text == name)
        .map(|(_, node)| node)
}

fn items<'n>(node: &'n Node<'n>, name: &str) -> &'n [Node<'n>] {
    match field(node, name).map(|node| &node.value) {
        Some(Value::List(items)) => items,
        _ => &[],
    }
}

fn text_of<'n>(node: &'n Node<'_>) -> Option<&'n str> {
    match &node.value {
        Value::Text { text, .. } => Some(text),
        _ => None,
    }
}
