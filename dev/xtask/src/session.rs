//! Runs the command blocks of one document as a reader would type them.
//!
//! A fresh home and an empty project for each document; the folder and the
//! exported variables carry over from block to block. Never touches the home
//! of the person who runs the tests. What a document leaves running is ended.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use fluffy_test_kit::wait_for;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tempfile::TempDir;

use crate::markdown::Block;

/// How long one command of a document may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(300);

/// Goes on where the last command stopped, runs `$1`, and remembers.
const WRAPPER: &str = r#"
if [ -f "$XTASK_DOCS_STATE/exports" ]; then . "$XTASK_DOCS_STATE/exports"; fi
cd "$(cat "$XTASK_DOCS_STATE/folder")" || exit 1
trap 'code=$?; export -p > "$XTASK_DOCS_STATE/exports"; pwd > "$XTASK_DOCS_STATE/folder"; exit $code' EXIT
eval "$1"
"#;

/// What came of the blocks of a document.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// How many commands were run.
    pub(crate) commands: usize,
    /// Blocks that say why they are not run: line and reason.
    pub(crate) skipped: Vec<(usize, String)>,
    /// What did not hold: line and what happened.
    pub(crate) problems: Vec<(usize, String)>,
}

/// Runs all `console` and `sh` blocks of a document, in order.
///
/// `programs` is put in front of PATH.
pub(crate) fn run_blocks(blocks: &[Block], programs: &Path) -> Result<Tally> {
    let mut session = Session::open(programs)?;
    let mut tally = Tally::default();
    for block in blocks {
        let steps = match block.language.as_str() {
            "console" => steps_of(block),
            "sh" | "bash" => Ok(vec![Step {
                command: format!("set -e\n{}", block.text),
                expected: None,
            }]),
            _ => continue,
        };
        if let Some(reason) = block.attribute("norun") {
            if reason.trim().is_empty() {
                let problem = "norun needs a reason".to_owned();
                tally.problems.push((block.line, problem));
            }
            tally.skipped.push((block.line, reason.to_owned()));
            continue;
        }
        match (steps, wanted_code(block)) {
            (Ok(steps), Ok(code)) => {
                tally.commands += steps.len();
                let problem = session.run(&steps, code)?;
                tally
                    .problems
                    .extend(problem.map(|problem| (block.line, problem)));
            }
            (Err(problem), _) | (_, Err(problem)) => tally.problems.push((block.line, problem)),
        }
    }
    Ok(tally)
}

/// One command and what it must print.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    command: String,
    /// None: whatever it likes.
    expected: Option<Vec<String>>,
}

fn wanted_code(block: &Block) -> Result<i32, String> {
    let Some(text) = block.attribute("exit") else {
        return Ok(0);
    };
    text.parse()
        .map_err(|_| format!("`exit={text}` is not an exit code"))
}

/// Takes a `console` block apart: `$ ` starts a command, `> ` continues it.
fn steps_of(block: &Block) -> Result<Vec<Step>, String> {
    let mut steps: Vec<Step> = Vec::new();
    for line in block.text.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step {
                command: command.to_owned(),
                expected: Some(Vec::new()),
            });
            continue;
        }
        let Some(step) = steps.last_mut() else {
            return Err("a console block starts with a `$ ` line".to_owned());
        };
        let output = step.expected.get_or_insert_default();
        match line.strip_prefix("> ") {
            Some(more) if output.is_empty() => {
                step.command.push('\n');
                step.command.push_str(more);
            }
            _ => output.push(line.to_owned()),
        }
    }
    Ok(steps)
}

struct Session {
    root: TempDir,
    search_path: std::ffi::OsString,
    /// Process groups that still had somebody when their command was done.
    lingering: Vec<Pid>,
}

impl Session {
    fn open(programs: &Path) -> Result<Self> {
        let root = TempDir::with_prefix("fluffy-docs-").context("cannot make a folder")?;
        for name in ["home", "project", "state", "tmp"] {
            fs::create_dir(root.path().join(name)).context("cannot make a folder")?;
        }
        let project = root.path().join("project");
        fs::write(
            root.path().join("state/folder"),
            project.as_os_str().as_encoded_bytes(),
        )
        .context("cannot write the state")?;
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(programs.to_owned()).chain(std::env::split_paths(&inherited));
        let search_path = std::env::join_paths(folders).context("PATH cannot be extended")?;
        Ok(Self {
            root,
            search_path,
            lingering: Vec::new(),
        })
    }

    /// Runs the steps; only the last one may and must end with `code`.
    fn run(&mut self, steps: &[Step], code: i32) -> Result<Option<String>> {
        for (index, step) in steps.iter().enumerate() {
            let wanted = if index + 1 == steps.len() { code } else { 0 };
            let (ended, printed) = self.command(&step.command)?;
            let command = step.command.trim_start_matches("set -e\n").trim();
            if ended != Some(wanted) {
                let ended = ended.map_or("no exit code".to_owned(), |code| format!("exit {code}"));
                return Ok(Some(format!(
                    "`{command}` ended with {ended} instead of {wanted}:\n{printed}"
                )));
            }
            let lines: Vec<&str> = printed.lines().collect();
            if let Some(expected) = &step.expected
                && !matches_lines(expected, &lines)
            {
                return Ok(Some(format!(
                    "`{command}` printed:\n{printed}\ninstead of:\n{}",
                    expected.join("\n")
                )));
            }
        }
        Ok(None)
    }

    fn command(&mut self, text: &str) -> Result<(Option<i32>, String)> {
        let path = |name: &str| self.root.path().join(name);
        let output = path("state/output");
        let file = File::create(&output).context("cannot write the output")?;
        let copy = file.try_clone().context("cannot share the output")?;
        let mut child = Command::new("bash")
            .args(["--noprofile", "--norc", "-c", WRAPPER, "docs", text])
            .env_clear()
            .env("PATH", &self.search_path)
            .env("HOME", path("home"))
            .env("TMPDIR", path("tmp"))
            .env("XTASK_DOCS_STATE", path("state"))
            .envs([("LANG", "C.UTF-8"), ("TZ", "UTC"), ("NO_COLOR", "1")])
            .envs([("COLUMNS", "80"), ("USER", "reader"), ("TERM", "dumb")])
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(copy)
            .spawn()
            .context("cannot run bash")?;
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let ended = wait_for("the command has ended", COMMAND_LIMIT, || {
            child.try_wait().ok().flatten()
        });
        if let (Err(_), Some(group)) = (&ended, group) {
            let _ = kill_process_group(group, Signal::KILL);
            child.wait().context("cannot wait for bash")?;
        } else if let Some(group) = group.filter(|id| test_kill_process_group(*id).is_ok()) {
            self.lingering.push(group);
        }
        let printed = fs::read(&output).context("cannot read the output")?;
        let printed = String::from_utf8_lossy(&printed).into_owned();
        Ok((ended.ok().and_then(|status| status.code()), printed))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for group in &self.lingering {
            let _ = kill_process_group(*group, Signal::KILL);
        }
    }
}

/// Whether the printed lines are the expected ones.
///
/// A line that is only `…` or `[..]` stands for any number of lines.
fn matches_lines(expected: &[String], printed: &[&str]) -> bool {
    // reachable[n]: the expected lines so far can stand for n printed ones.
    let mut reachable = vec![false; printed.len() + 1];
    if let Some(first) = reachable.first_mut() {
        *first = true;
    }
    for pattern in expected {
        let mut next = vec![false; reachable.len()];
        let any = matches!(pattern.trim(), "…" | "[..]" | "...");
        let mut seen = false;
        for (index, slot) in next.iter_mut().enumerate() {
            let here = reachable.get(index).copied().unwrap_or(false);
            seen |= here;
            let before = index.checked_sub(1);
            let stepped = before.is_some_and(|before| {
                reachable.get(before).copied().unwrap_or(false)
                    && printed
                        .get(before)
                        .is_some_and(|line| matches_line(pattern, line))
            });
            *slot = if any { seen } else { stepped };
        }
        reachable = next;
    }
    reachable.last().copied().unwrap_or(false)
}

/// Whether a line is the expected one; `…` and `[..]` stand for anything.
fn matches_line(pattern: &str, line: &str) -> bool {
    let pattern = pattern.trim_end().replace("[..]", "…");
    let line = line.trim_end();
    let Some((first, rest)) = pattern.split_once('…') else {
        return pattern == line;
    };
    let Some(mut line) = line.strip_prefix(first) else {
        return false;
    };
    let mut pieces: Vec<&str> = rest.split('…').collect();
    let last = pieces.pop().unwrap_or_default();
    for piece in pieces {
        match line.split_once(piece) {
            Some((_, after)) => line = after,
            None => return false,
        }
    }
    line.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::markdown::Document;

    fn run(text: &str) -> Tally {
        let blocks = Document::parse(text).unwrap().blocks;
        run_blocks(&blocks, Path::new("/usr/bin")).unwrap()
    }

    fn problem_of(text: &str) -> String {
        let tally = run(text);
        assert_eq!(tally.problems.len(), 1, "{tally:?}");
        tally.problems[0].1.clone()
    }

    #[test]
    fn a_session_goes_on_from_block_to_block() {
        let tally = run("```sh\nmkdir sub && cd sub\nexport NAME=waffle\n```\n\
             ```console\n$ basename \"$PWD\"\nsub\n$ echo \"$NAME\" \\\n> again\nwaffle again\n\
             $ true\n```\n```text\nnot run\n```\n");
        assert_eq!(tally.problems, []);
        assert_eq!(tally.commands, 4);
    }

    #[test]
    fn the_home_is_fresh_and_empty() {
        assert_eq!(run("```console\n$ ls -A ~\n$ ls -A\n```").problems, []);
    }

    #[test]
    fn a_wrong_exit_code_is_found() {
        assert!(problem_of("```sh\nfalse\ntrue\n```").contains("exit 1"));
        assert!(problem_of("```console\n$ false\n$ true\n```").contains("exit 1"));
        assert!(problem_of("```console exit=3\n$ true\n```").contains("exit 0"));
        assert!(problem_of("```console exit=x\n$ true\n```").contains("exit=x"));
        let good = run("```console exit=7\n$ echo no; exit 7\nno\n```");
        assert_eq!(good.problems, []);
    }

    #[test]
    fn wrong_output_is_shown_beside_what_was_promised() {
        let problem = problem_of("```console\n$ echo one; echo two >&2\none\n```");
        assert!(problem.contains("two") && problem.contains("instead of"));
        problem_of("```console\n$ echo undocumented\n```");
        problem_of("```console\n$ true\nnothing came\n```");
        problem_of("```console\nno command\n```");
    }

    #[test]
    fn a_block_that_is_not_run_says_why() {
        let tally = run("```sh norun=\"needs a cloud\"\nfalse\n```");
        assert_eq!(tally.skipped, [(1, "needs a cloud".to_owned())]);
        assert_eq!(tally.problems, []);
        assert!(problem_of("```sh norun=\"\"\nfalse\n```").contains("reason"));
    }

    #[test]
    fn what_is_left_running_is_ended() {
        let text = "```sh\nsleep 1000 &\necho $! > \"$XTASK_DOCS_STATE/../../sleeper-$PPID\"\n```";
        let blocks = Document::parse(text).unwrap().blocks;
        assert_eq!(
            run_blocks(&blocks, Path::new("/usr/bin")).unwrap().problems,
            []
        );
        let note = std::env::temp_dir().join(format!("sleeper-{}", std::process::id()));
        let sleeper = fs::read_to_string(&note).unwrap();
        fs::remove_file(&note).unwrap();
        let line = format!("/proc/{}/cmdline", sleeper.trim());
        wait_for("the sleeper is gone", Duration::from_secs(60), || {
            fs::read(&line)
                .map_or(true, |line| line.is_empty())
                .then_some(())
        })
        .unwrap();
    }

    #[test]
    fn patterns_stand_for_anything_and_nothing_else() {
        for (pattern, line, fits) in [
            ("a", "a", true),
            ("a", "b", false),
            ("a…c", "abbc", true),
            ("a…c", "abbd", false),
            ("seq [..] of …", "seq 7 of 9", true),
            ("…x…", "yy", false),
            ("a…a", "a", false),
            ("end   ", "end", true),
        ] {
            assert_eq!(matches_line(pattern, line), fits, "{pattern} / {line}");
        }
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        for (expected, printed, fits) in [
            ("a\n…\nz", "a\nb\nc\nz", true),
            ("a\n…\nz", "a\nz", true),
            ("a\n…\nz", "a\nb", false),
            ("…", "", true),
            ("", "a", false),
            ("…\nb\n…", "a\nc", false),
            ("a\nb", "a", false),
        ] {
            let printed: Vec<&str> = printed.lines().collect();
            assert_eq!(
                matches_lines(&lines(expected), &printed),
                fits,
                "{expected}"
            );
        }
    }
}
