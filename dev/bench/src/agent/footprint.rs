//! Memory while nothing happens, and disk after many sessions.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fluffy_model_server::{Fault, Reply};
use fluffy_test_kit::{campaign, wait_for};
use serde_json::json;

use super::bed::Bed;
use crate::figure::{Bar, Figure, Samples, Show};

const PATIENCE: Duration = Duration::from_secs(60);
const MIB: f64 = 1024.0 * 1024.0;

/// Resident memory while the model thinks: the command, the bootstrap, the
/// kernel, its launcher and its egress; and with every sandbox.
pub(super) fn memory() -> Result<Vec<Figure>> {
    let bed = Bed::new(&[])?;
    let read = Reply::call("fs.read", json!({"path": "src/code.txt"}));
    let hang = Reply::failing(Fault::HangAtOnce);
    let mut command = bed.start(vec![read], hang)?;
    let waited = wait_for("the model is asked twice", PATIENCE, || {
        (bed.asked() >= 2).then_some(())
    });
    let measured = waited.and_then(|()| {
        let kernel = bed.kernel()?.context("there is no kernel")?;
        let bootstrap: u32 = status(kernel, "PPid:")?.parse()?;
        let all = family(bootstrap)?;
        // What the launcher started is the sandboxes.
        let is_own = |parent: &u32| [bootstrap, kernel].contains(parent);
        let own = all.iter().filter(|(_, parent)| is_own(parent));
        let own: f64 = own.map(|(id, _)| resident(*id)).sum::<Result<_>>()?;
        let every: f64 = all.keys().map(|id| resident(*id)).sum::<Result<_>>()?;
        let outer = resident(command.id())? + resident(bootstrap)?;
        Ok((outer + own, outer + every))
    });
    // The session is over for us whatever was measured.
    command.kill()?;
    command.wait()?;
    let (idle, whole) = measured?;
    let figure = |what: &str, bytes: f64, bar| Figure {
        what: what.to_owned(),
        ours: Samples::new(vec![bytes], Show::Size),
        reference: None,
        bar,
    };
    Ok(vec![
        figure(
            "resident while the model thinks: command, kernel and its helpers",
            idle,
            Bar::BytesUnder(150.0 * MIB),
        ),
        figure(
            "the same with every sandbox and the model's worker",
            whole,
            Bar::Inform,
        ),
    ])
}

/// Disk for a thousand ordinary sessions, from fewer.
pub(super) fn disk() -> Result<Vec<Figure>> {
    let sessions = campaign(10, 50);
    let bed = Bed::new(&repository())?;
    ordinary(&bed, 0)?;
    bed.rest()?;
    let before = used(&bed.state())?;
    for number in 1..=sessions {
        ordinary(&bed, number)?;
    }
    bed.rest()?;
    let grown = used(&bed.state())?.saturating_sub(before);
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52 bytes")]
    let thousand = grown as f64 / sessions as f64 * 1000.0;
    Ok(vec![Figure {
        what: format!("disk of 1,000 ordinary sessions ({sessions} made, extrapolated)"),
        ours: Samples::new(vec![thousand], Show::Size),
        reference: None,
        bar: Bar::BytesUnder(1024.0 * MIB),
    }])
}

/// A session as they are: it looks around, writes a test and code, and ends
/// with a commit.
fn ordinary(bed: &Bed, number: u64) -> Result<()> {
    let word = format!("word{number}");
    let write = |path: String, content: String| {
        Reply::call("fs.write", json!({"path": path, "content": content}))
    };
    let mut replies: Vec<Reply> = (0..10)
        .map(|at| Reply::call("fs.read", json!({"path": format!("src/file{at}.txt")})))
        .collect();
    replies.extend([
        Reply::call("search.grep", json!({"pattern": "value_1"})),
        Reply::call("shell.exec", json!({"command": "ls -l src"})),
        Reply::call("plan.complete", json!({"summary": "one more word"})),
        write(format!("test/{word}.test.js"), test_of(&word)),
        Reply::call("test.run", json!({})),
        write("src/code.js".to_owned(), code(number)),
        Reply::call("workflow.transition", json!({"to": "validating"})),
    ]);
    let ran = bed.run(replies)?;
    let told: Vec<String> = ran
        .events
        .iter()
        .filter(|(_, event)| event.get("summary").is_some() || event.get("why").is_some())
        .map(|(_, event)| event.to_string())
        .collect();
    ensure!(ran.code == Some(0), "not done: {}", told.join("\n"));
    Ok(())
}

/// A JavaScript project, whose runner names its tests.
fn repository() -> Vec<(String, String)> {
    let text = |path: &str, text: &str| (path.to_owned(), text.to_owned());
    let mut files: Vec<(String, String)> = (0..10).map(source).collect();
    files.extend([
        text(".fluffy/config.toml", ""),
        text(
            "package.json",
            r#"{"type": "module", "scripts": {"test": "node --test"}}"#,
        ),
        text("src/code.js", "export const words = [\"first\"];\n"),
        ("test/first.test.js".to_owned(), test_of("first")),
    ]);
    files
}

fn test_of(word: &str) -> String {
    format!(
        "import assert from \"node:assert\";\nimport test from \"node:test\";\n\
         import {{ words }} from \"../src/code.js\";\n\n\
         test(\"{word} is known\", () => {{\n  assert(words.includes(\"{word}\"));\n}});\n"
    )
}

fn code(number: u64) -> String {
    let words: Vec<String> = (0..=number).map(|at| format!("\"word{at}\"")).collect();
    format!("export const words = [\"first\", {}];\n", words.join(", "))
}

/// Eight kilobytes of text.
fn source(at: usize) -> (String, String) {
    let lines = (0..200).map(|line| format!("value_{line} = compute({at}, {line}) # text\n"));
    (format!("src/file{at}.txt"), lines.collect())
}

/// All processes that descend from one, with their parents.
fn family(of: u32) -> Result<BTreeMap<u32, u32>> {
    let mut parents = BTreeMap::new();
    for entry in std::fs::read_dir("/proc")? {
        let Some(id) = entry?
            .file_name()
            .to_str()
            .and_then(|id| id.parse::<u32>().ok())
        else {
            continue;
        };
        if let Some(parent) = status(id, "PPid:").ok().and_then(|text| text.parse().ok()) {
            parents.insert(id, parent);
        }
    }
    let mut found: BTreeMap<u32, u32> = BTreeMap::new();
    loop {
        let more: Vec<(u32, u32)> = parents
            .iter()
            .filter(|(id, parent)| {
                !found.contains_key(id) && (**parent == of || found.contains_key(parent))
            })
            .map(|(id, parent)| (*id, *parent))
            .collect();
        if more.is_empty() {
            return Ok(found);
        }
        found.extend(more);
    }
}

/// Resident bytes of a process.
pub(super) fn resident(id: u32) -> Result<f64> {
    let text = status(id, "VmRSS:")?;
    let kib: f64 = text.trim_end_matches(" kB").parse()?;
    Ok(kib * 1024.0)
}

fn status(id: u32, name: &str) -> Result<String> {
    let text = std::fs::read_to_string(format!("/proc/{id}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let value = line.with_context(|| format!("process {id} has no `{name}`"))?;
    Ok(value.trim().to_owned())
}

/// Bytes that a folder takes on disk.
fn used(folder: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let data = entry.metadata()?;
        sum += data.blocks() * 512;
        if data.is_dir() {
            sum += used(&entry.path())?;
        }
    }
    Ok(sum)
}
