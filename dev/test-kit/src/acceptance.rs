//! Figures of the acceptance rows, with their bars and the machine they were
//! measured on, in `target/acceptance/eNN.json`.
//!
//! A row may be measured by several tests: each replaces its own part. What
//! this machine cannot measure is said to be not measured, never passed.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::SystemTime;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::CAMPAIGN_ENV;

/// What a figure has to be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Limit {
    /// This, or less.
    AtMost(f64),
    /// This, or more.
    AtLeast(f64),
    /// Anything; it informs.
    None,
}

impl Limit {
    /// Whether a value is within.
    #[must_use]
    pub fn holds(self, value: f64) -> bool {
        match self {
            Self::AtMost(most) => value <= most,
            Self::AtLeast(least) => value >= least,
            Self::None => true,
        }
    }
}

/// What one test measured of one row.
#[derive(Debug)]
pub struct Acceptance {
    row: &'static str,
    part: String,
    figures: Vec<Value>,
}

impl Acceptance {
    /// A part of a row, such as `drain` of `e17`.
    #[must_use]
    pub fn of(row: &'static str, part: impl Into<String>) -> Self {
        Self {
            row,
            part: part.into(),
            figures: Vec::new(),
        }
    }

    /// A figure with its unit and its bar; whether that holds is the test's to
    /// assert.
    pub fn figure(&mut self, what: &str, (value, unit): (f64, &str), limit: Limit) -> &mut Self {
        let bar = match limit {
            Limit::AtMost(most) => json!({ "at_most": most }),
            Limit::AtLeast(least) => json!({ "at_least": least }),
            Limit::None => Value::Null,
        };
        let verdict = match (limit, limit.holds(value)) {
            (Limit::None, _) => "informs",
            (_, true) => "held",
            (_, false) => "missed",
        };
        self.figures.push(json!({
            "what": what, "value": value, "unit": unit, "bar": bar, "verdict": verdict,
        }));
        self
    }

    /// A figure as a table has it: its bar in words, and whether that holds.
    pub fn said(&mut self, what: &str, value: &str, bar: Option<(String, bool)>) -> &mut Self {
        let verdict = match bar {
            None => "informs",
            Some((_, true)) => "held",
            Some((_, false)) => "missed",
        };
        let bar = bar.map(|(bar, _)| bar);
        self.figures.push(json!({
            "what": what, "value": value, "bar": bar, "verdict": verdict,
        }));
        self
    }

    /// A figure that this machine cannot have.
    pub fn not_measured(&mut self, what: &str, why: &str) -> &mut Self {
        let figure = json!({"what": what, "verdict": "not_measured", "why": why});
        self.figures.push(figure);
        self
    }

    /// Writes the part beside the others of its row.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self) -> Result<PathBuf> {
        self.write_to(&folder())
    }

    fn write_to(&self, folder: &std::path::Path) -> Result<PathBuf> {
        fs::create_dir_all(folder).context("target/acceptance cannot be made")?;
        // Tests of one row may end at the same time.
        let lock = File::create(folder.join(".lock"))?;
        lock.lock()?;
        let path = folder.join(format!("{}.json", self.row));
        let before = fs::read(&path).unwrap_or_default();
        let before: Value = serde_json::from_slice(&before).unwrap_or_default();
        let mut parts = match before.get("parts") {
            Some(Value::Object(parts)) => parts.clone(),
            _ => serde_json::Map::new(),
        };
        let length = match std::env::var(CAMPAIGN_ENV).as_deref() {
            Ok("full") => "full",
            _ => "tenth",
        };
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let part = json!({
            "length": length, "unix_time": now.as_secs(), "host": host(), "figures": self.figures,
        });
        parts.insert(self.part.clone(), part);
        let whole = json!({"format": 1, "row": self.row.to_uppercase(), "parts": parts});
        fs::write(&path, format!("{whole:#}\n"))?;
        Ok(path)
    }
}

/// Where a build of this workspace leaves everything.
fn folder() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target")),
        PathBuf::from,
    );
    target.join("acceptance")
}

/// What figures of different machines differ by.
fn host() -> Value {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = read("/proc/meminfo");
    let memory = memory.lines().find_map(|line| {
        let kib = line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?;
        kib.parse::<u64>().ok()
    });
    json!({
        "arch": std::env::consts::ARCH,
        "cores": cores,
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "memory_bytes": memory.map(|kib| kib * 1024),
        "kvm": std::path::Path::new("/dev/kvm").exists(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_row_stay_beside_each_other_and_nothing_passes_unmeasured() {
        let folder = tempfile::tempdir().unwrap();
        let mut first = Acceptance::of("e99", "first");
        first.figure("failures", (0.0, "connections"), Limit::AtMost(0.0));
        first.figure("rate", (5.0, "1/s"), Limit::AtLeast(10.0));
        first.write_to(folder.path()).unwrap();
        let mut second = Acceptance::of("e99", "second");
        second.not_measured("boot", "there is no KVM here");
        let path = second.write_to(folder.path()).unwrap();
        let mut again = Acceptance::of("e99", "first");
        again.figure("failures", (1.0, "connections"), Limit::AtMost(0.0));
        again.write_to(folder.path()).unwrap();
        let whole: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        assert_eq!(whole["row"], "E99");
        let verdicts = |part: &str| {
            let figures = whole["parts"][part]["figures"].as_array().unwrap();
            let all = figures.iter().map(|it| it["verdict"].as_str().unwrap());
            all.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(verdicts("first"), ["missed"]);
        assert_eq!(verdicts("second"), ["not_measured"]);
        let host = &whole["parts"]["second"]["host"];
        assert!(host["cores"].as_u64().unwrap() > 0 && host["kvm"].is_boolean());
    }
}
