//! Who a plugin is: its name and one digest over its manifest and all files.
//!
//! What a person reviewed is kept as a [`Pin`]; a plugin that differs from its
//! pin is another one, and [`changes`] says in what, what it could do more
//! first. Reads no file: the list of them is given in.

use std::collections::{BTreeMap, BTreeSet};

use fluffy_base::{Digest, canonical};
use fluffy_contract::isolation::Tier;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::manifest::{Manifest, ToolDeclaration};

/// One file of a plugin; directories and links are not files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileFact {
    /// Its mode, the permission bits alone.
    pub mode: u32,
    /// What is in it.
    pub digest: Digest,
}

/// The files of a plugin by their paths from its directory, `/` between names.
pub type Files = BTreeMap<String, FileFact>;

/// What was reviewed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pin {
    /// The version of this record.
    pub pin: u32,
    /// The plugin's name.
    pub name: String,
    /// Its version, for people.
    pub version: String,
    /// The digest over everything.
    pub digest: Digest,
    /// Of the manifest's text.
    pub manifest: Digest,
    /// What it declares.
    pub capabilities: BTreeSet<String>,
    /// What it denies itself.
    pub deny_capabilities: BTreeSet<String>,
    /// What stays unread of what it may read.
    pub read_deny: BTreeSet<String>,
    /// The tier that it declares.
    pub tier: Option<Tier>,
    /// Its tools, each with a digest of all that is said about it.
    pub tools: BTreeMap<String, Digest>,
    /// Its files.
    pub files: Files,
}

/// The version of pins that is written.
const VERSION: u32 = 1;

impl Pin {
    /// The pin of a plugin as it is now; `text` is what the manifest was read
    /// from.
    #[must_use]
    pub fn of(manifest: &Manifest, text: &str, files: Files) -> Self {
        let set = |patterns: &[fluffy_policy::capability::Pattern]| {
            patterns.iter().map(ToString::to_string).collect()
        };
        let execution = manifest.execution.as_ref();
        let denied = execution.into_iter().flat_map(|run| &run.sandbox.read_deny);
        let tools = manifest
            .tools
            .iter()
            .map(|tool| (tool.name.clone(), tool_digest(tool)));
        let text = Digest::of(text.as_bytes());
        Self {
            pin: VERSION,
            name: manifest.name.clone(),
            version: manifest.version.to_string(),
            digest: digest(text, &files),
            manifest: text,
            capabilities: set(&manifest.capabilities),
            deny_capabilities: set(&manifest.deny_capabilities),
            read_deny: denied.map(ToString::to_string).collect(),
            tier: execution.map(|run| run.tier),
            tools: tools.collect(),
            files,
        }
    }
}

/// The digest of a manifest and files: every part has its length before it, so
/// that no two lists read the same.
fn digest(manifest: Digest, files: &Files) -> Digest {
    let mut bytes = b"fluffy plugin 1\0".to_vec();
    bytes.extend_from_slice(manifest.as_bytes());
    for (path, file) in files {
        bytes.extend_from_slice(&(path.len() as u64).to_be_bytes());
        bytes.extend_from_slice(path.as_bytes());
        bytes.extend_from_slice(&file.mode.to_be_bytes());
        bytes.extend_from_slice(file.digest.as_bytes());
    }
    Digest::of(&bytes)
}

fn tool_digest(tool: &ToolDeclaration) -> Digest {
    let ToolDeclaration {
        name,
        summary,
        parameters,
        effect,
        timeout,
    } = tool;
    let said = serde_json::json!({
        "name": name,
        "summary": summary,
        "parameters": parameters,
        "effect": effect,
        "timeout": timeout.map(|span| span.millis),
    });
    sorted_digest(&said)
}

/// The digest of what a running plugin says about a tool: any word counts, the
/// order of names in its schema does not.
#[must_use]
pub fn told_digest(name: &str, summary: &str, parameters: &Value) -> Digest {
    sorted_digest(&serde_json::json!([name, summary, parameters]))
}

fn sorted_digest(said: &Value) -> Digest {
    let mut text = String::new();
    write_sorted(&mut text, said);
    Digest::of(text.as_bytes())
}

/// JSON with sorted names, whatever order a plugin gave them in. Numbers may be
/// fractions here, so this is not the ledger's canonical form.
fn write_sorted(out: &mut String, value: &Value) {
    match value {
        Value::Object(fields) => {
            out.push('{');
            for (name, value) in fields.iter().collect::<BTreeMap<_, _>>() {
                canonical::write_text(out, name);
                out.push(':');
                write_sorted(out, value);
                out.push(',');
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for item in items {
                write_sorted(out, item);
                out.push(',');
            }
            out.push(']');
        }
        Value::String(text) => canonical::write_text(out, text),
        Value::Null | Value::Bool(_) | Value::Number(_) => out.push_str(&value.to_string()),
    }
}

/// One difference between what was reviewed and what is there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum Change {
    /// It could do more: a capability is new.
    CapabilityAdded {
        /// Which.
        capability: String,
    },
    /// It could do more: it denied itself this.
    DenialRemoved {
        /// Which capability.
        capability: String,
    },
    /// It could do more: this stayed unread.
    UnreadRemoved {
        /// Which path.
        path: String,
    },
    /// It was only text, and would run now.
    Runs {
        /// Where.
        tier: Tier,
    },
    /// It would be less isolated.
    TierLowered {
        /// What it declared.
        from: Tier,
        /// What it declares.
        to: Tier,
    },
    /// A tool is new.
    ToolAdded {
        /// Which.
        tool: String,
    },
    /// A tool is described in other words, or does something else.
    ToolChanged {
        /// Which.
        tool: String,
    },
    /// A tool is gone.
    ToolRemoved {
        /// Which.
        tool: String,
    },
    /// It could do less: a capability is gone.
    CapabilityRemoved {
        /// Which.
        capability: String,
    },
    /// The manifest says something else.
    ManifestChanged,
    /// A file is new.
    FileAdded {
        /// Which.
        path: String,
    },
    /// A file has another content or mode.
    FileChanged {
        /// Which.
        path: String,
    },
    /// A file is gone.
    FileRemoved {
        /// Which.
        path: String,
    },
}

/// What differs, what it could do more first; nothing if it is the same.
#[must_use]
pub fn changes(reviewed: &Pin, found: &Pin) -> Vec<Change> {
    let mut changes = Vec::new();
    let more = |old: &BTreeSet<String>, new: &BTreeSet<String>| -> Vec<String> {
        new.difference(old).cloned().collect()
    };
    for capability in more(&reviewed.capabilities, &found.capabilities) {
        changes.push(Change::CapabilityAdded { capability });
    }
    for capability in more(&found.deny_capabilities, &reviewed.deny_capabilities) {
        changes.push(Change::DenialRemoved { capability });
    }
    for path in more(&found.read_deny, &reviewed.read_deny) {
        changes.push(Change::UnreadRemoved { path });
    }
    match (reviewed.tier, found.tier) {
        (None, Some(tier)) => changes.push(Change::Runs { tier }),
        (Some(from), Some(to)) if to < from => changes.push(Change::TierLowered { from, to }),
        (Some(_), Some(_)) | (_, None) => {}
    }
    compare(&reviewed.tools, &found.tools, |tool, difference| {
        changes.push(match difference {
            Difference::Added => Change::ToolAdded { tool },
            Difference::Changed => Change::ToolChanged { tool },
            Difference::Removed => Change::ToolRemoved { tool },
        });
    });
    for capability in more(&found.capabilities, &reviewed.capabilities) {
        changes.push(Change::CapabilityRemoved { capability });
    }
    if reviewed.manifest != found.manifest {
        changes.push(Change::ManifestChanged);
    }
    compare(&reviewed.files, &found.files, |path, difference| {
        changes.push(match difference {
            Difference::Added => Change::FileAdded { path },
            Difference::Changed => Change::FileChanged { path },
            Difference::Removed => Change::FileRemoved { path },
        });
    });
    changes.sort();
    changes
}

enum Difference {
    Added,
    Changed,
    Removed,
}

fn compare<T: PartialEq>(
    old: &BTreeMap<String, T>,
    new: &BTreeMap<String, T>,
    mut tell: impl FnMut(String, Difference),
) {
    for (name, value) in new {
        match old.get(name) {
            None => tell(name.clone(), Difference::Added),
            Some(before) if before != value => tell(name.clone(), Difference::Changed),
            Some(_) => {}
        }
    }
    for name in old.keys().filter(|name| !new.contains_key(*name)) {
        tell(name.clone(), Difference::Removed);
    }
}

#[cfg(test)]
mod tests;
