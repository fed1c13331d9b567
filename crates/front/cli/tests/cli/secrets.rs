//! A secret in the environment reaches no file and no output of ours.

use std::fs;
use std::path::Path;

use crate::site::{Site, files};

const SECRET: &str = "waffle-7f3a-marked-secret";

/// Makes the worker process take part, and deny if it can see its environment.
const GUARD: &str = r#"
export function evaluate() {
  const text = JSON.stringify(Object.getOwnPropertyNames(globalThis));
  return text.includes("process") ? { verdict: "deny", reason: text } : "pass";
}
"#;

#[test]
fn a_marked_secret_in_the_environment_is_nowhere_afterwards() {
    let mut site = Site::empty();
    for name in [
        "OPENAI_API_KEY",
        "DATABASE_PASSWORD",
        "FLUFFY_NONSENSE",
        "AWS_SECRET_ACCESS_KEY",
    ] {
        site.context.set(name, SECRET);
    }
    site.context
        .write(".fluffy/policy.d/guard.ts", GUARD)
        .unwrap();
    let mut shown = String::new();
    for words in [
        ["init"].as_slice(),
        &["policy", "decide", "fs.read", "/src/lib.rs"],
        &["policy", "apply", "--yes"],
        &["policy", "decide", "fs.read", "/src/lib.rs"],
        &["policy", "decide", "fs.read", "/.env"],
        &[
            "policy",
            "explain",
            "fs.read",
            "/.env",
            "--verbose",
            "--json",
        ],
        &["config", "show", "--origin"],
        &["audit", "log", "--json"],
        &["audit", "export"],
        &["audit", "prove", "1"],
        &["audit", "verify", "--verbose"],
        &["demo"],
        &["no-such-command"],
    ] {
        shown.push_str(&site.run(words).transcript());
    }
    assert!(
        shown.contains("policy.update"),
        "the run did what it should\n{shown}"
    );
    assert!(!shown.contains(SECRET), "{shown}");
    let places = [site.context.home(), site.context.project()];
    let found: Vec<_> = places.iter().flat_map(|place| files(place)).collect();
    assert!(found.len() > 8, "{found:?}");
    for file in &found {
        assert!(!holds_secret(file), "{}", file.display());
    }
    // The control: the search finds what is there.
    let planted = site
        .context
        .write("planted", &format!("x{SECRET}y"))
        .unwrap();
    assert!(holds_secret(&planted));
}

fn holds_secret(file: &Path) -> bool {
    let bytes = fs::read(file).unwrap();
    bytes
        .windows(SECRET.len())
        .any(|window| window == SECRET.as_bytes())
}
