//! The plugin: each tool is a function, its arguments a struct.
//!
//! The documentation of both is what a model reads. What the plugin asks its
//! host for (`host::kv`, `fs`, `egress`, …) is decided by policy; what it may
//! at most be granted is in `plugin/plugin.yaml`.

use fluffy_plugin_sdk::host::kv;
use fluffy_plugin_sdk::{Answer, Arguments, Plugin, Tool, tool, tools};

struct This;

impl Plugin for This {
    const TOOLS: &'static [Tool] = tools![count, note];
}

fluffy_plugin_sdk::export!(This);

#[derive(Arguments)]
struct Count {
    /// What to count the words of.
    text: String,
}

/// Counts the words of a text.
#[tool]
fn count(arguments: Count) -> Answer {
    Ok(arguments.text.split_whitespace().count().to_string())
}

#[derive(Arguments)]
struct Note {
    /// What to keep.
    text: String,
}

/// Keeps a note for later, and gives back the one before.
#[tool]
fn note(arguments: Note) -> Answer {
    let before = kv::get("note")?.unwrap_or_default();
    kv::set("note", arguments.text.as_bytes())?;
    Ok(String::from_utf8(before)?)
}

#[cfg(test)]
mod tests {
    use fluffy_plugin_sdk::host::double;
    use fluffy_plugin_sdk::{Outcome, Plugin as _};

    use super::This;

    #[test]
    fn words_are_counted() {
        let output = This::call("count", r#"{"text":"one  two\nthree"}"#).unwrap();
        assert_eq!(output.content, "3");
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let refused = This::call("count", r#"{"text":7}"#).unwrap_err();
        assert_eq!(refused, "`text`: a string was expected, not 7");
    }

    #[test]
    fn a_note_is_kept() {
        let keep = |text: &str| This::call("note", &format!(r#"{{"text":"{text}"}}"#)).unwrap();
        keep("one");
        assert_eq!(keep("two").content, "one");
        double::deny("kv.set.*");
        assert_eq!(keep("three").outcome, Outcome::Failed);
    }
}
