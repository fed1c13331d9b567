//! Tool names as providers allow them, and back.
//!
//! Ours have dots (`fs.read`); providers want `[a-zA-Z0-9_-]{1,64}`. A dot
//! becomes two underscores; what would clash, or is too long, gets a number
//! instead. The table is made from one turn's tools and calls and never leaves
//! it, so that the way back is exact. Next: the wire formats beside.

use std::collections::{BTreeMap, BTreeSet};

use fluffy_contract::model::{Part, Turn};

/// The longest name every provider takes.
const MAX_NAME: usize = 64;

/// Both directions of one turn's names.
#[derive(Debug, Clone, Default)]
pub(crate) struct ToolNames {
    to_wire: BTreeMap<String, String>,
    from_wire: BTreeMap<String, String>,
}

impl ToolNames {
    /// The names of a turn's tools, and of calls to tools that are gone.
    pub(crate) fn of(turn: &Turn) -> Self {
        let offered = turn.tools.iter().map(|tool| tool.name.as_str());
        let parts = turn.messages.iter().flat_map(|message| &message.parts);
        let called = parts.filter_map(|part| match part {
            Part::ToolCall(call) => Some(call.name.as_str()),
            Part::Text { .. } | Part::Reasoning { .. } | Part::ToolResult { .. } => None,
        });
        // Sorted, so that a name does not change when tools change places.
        let names: BTreeSet<&str> = offered.chain(called).collect();
        let mut table = Self::default();
        // Whoever can keep its name keeps it, so that no other takes it.
        for name in names.iter().filter(|name| is_allowed(name)) {
            table.insert(name, (*name).to_owned());
        }
        for name in names.iter().filter(|name| !is_allowed(name)) {
            let wire = table.free_name(name);
            table.insert(name, wire);
        }
        table
    }

    /// The name a provider gets to see.
    pub(crate) fn on_wire<'a>(&'a self, name: &'a str) -> &'a str {
        self.to_wire.get(name).map_or(name, String::as_str)
    }

    /// Our name for what a provider said; unknown names stay as they are.
    pub(crate) fn ours<'a>(&'a self, wire: &'a str) -> &'a str {
        self.from_wire.get(wire).map_or(wire, String::as_str)
    }

    fn insert(&mut self, name: &str, wire: String) {
        self.from_wire.insert(wire.clone(), name.to_owned());
        self.to_wire.insert(name.to_owned(), wire);
    }

    fn free_name(&self, name: &str) -> String {
        let mut base = String::with_capacity(MAX_NAME);
        for c in name.chars() {
            match c {
                '.' => base.push_str("__"),
                c if is_allowed_char(c) => base.push(c),
                _ => base.push('_'),
            }
        }
        base.truncate(MAX_NAME);
        if !base.is_empty() && !self.from_wire.contains_key(&base) {
            return base;
        }
        let mut number = 2_u64;
        loop {
            let tail = format!("_{number}");
            let mut candidate = base.clone();
            candidate.truncate(MAX_NAME - tail.len());
            candidate.push_str(&tail);
            if !self.from_wire.contains_key(&candidate) {
                return candidate;
            }
            number += 1;
        }
    }
}

fn is_allowed_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

fn is_allowed(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len()) && name.chars().all(is_allowed_char)
}

#[cfg(test)]
mod tests {
    use fluffy_contract::tool::ToolDescription;
    use proptest::prelude::*;

    use super::*;

    fn names(tools: &[String]) -> ToolNames {
        let tools = tools.iter().map(|name| ToolDescription {
            name: name.clone(),
            summary: String::new(),
            parameters: serde_json::json!({}),
        });
        ToolNames::of(&Turn {
            model: "m".into(),
            messages: vec![],
            tools: tools.collect(),
            max_output_tokens: 1,
            effort: None,
            conversation: None,
        })
    }

    fn table(tools: &[&str]) -> ToolNames {
        names(
            &tools
                .iter()
                .map(|&name| name.to_owned())
                .collect::<Vec<_>>(),
        )
    }

    #[test]
    fn dots_become_underscores_and_come_back() {
        let table = table(&["fs.read", "plain", "git.log"]);
        assert_eq!(table.on_wire("fs.read"), "fs__read");
        assert_eq!(table.ours("fs__read"), "fs.read");
        assert_eq!(table.on_wire("plain"), "plain");
        assert_eq!(table.ours("made_up"), "made_up");
    }

    #[test]
    fn clashes_get_numbers_and_the_plain_name_wins() {
        let table = table(&["fs.read", "fs__read", "fs:_read"]);
        assert_eq!(table.on_wire("fs__read"), "fs__read");
        let others = [table.on_wire("fs.read"), table.on_wire("fs:_read")];
        assert_eq!(others, ["fs__read_2", "fs__read_3"]);
        for name in ["fs.read", "fs__read", "fs:_read"] {
            assert_eq!(table.ours(table.on_wire(name)), name);
        }
    }

    proptest! {
        #[test]
        fn every_set_of_names_goes_there_and_back(
            tools in proptest::collection::vec("[a-c._:é]{0,70}", 0..12)
        ) {
            let table = names(&tools);
            for name in &tools {
                let wire = table.on_wire(name);
                prop_assert!(is_allowed(wire), "{wire}");
                prop_assert_eq!(table.ours(wire), name);
            }
        }
    }
}
