//! Pictures for README.md and the book, of real runs of the built `fluffy`.
//!
//! A terminal multiplexer runs the program and says what is on its screen;
//! `svg` draws that. Nothing is staged: a picture shows what the program
//! printed, cut at whole lines.

mod svg;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::process::{capture, find_program, run};
use crate::step::Outcome;
use crate::workspace::Workspace;

const FOLDER: &str = "docs/pictures";

/// Where the demo keeps its repository and what the model said.
const DEMO: &str = "crates/front/cli/src/command/demo";

const TASK: &str = "Titles with punctuation must give clean slugs";

const COLUMNS: usize = 80;

const PATIENCE: Duration = Duration::from_secs(120);

/// Part of a screen: from the first line with these words to the next with those.
struct Part {
    name: &'static str,
    title: &'static str,
    from: &'static str,
    to: &'static str,
}

const OF_DEMO: [Part; 2] = [
    Part {
        name: "demo.svg",
        title: "fluffy demo: what a model tries, and what it gets",
        from: "I look at the code first",
        to: "no network",
    },
    Part {
        name: "evidence.svg",
        title: "fluffy demo: the evidence",
        from: "Done, verified",
        to: "BROKEN at event",
    },
];

const OF_SESSION: Part = Part {
    name: "session.svg",
    title: "fluffy",
    from: "So I write it myself",
    to: "strict · ",
};

/// Makes all pictures anew.
pub(crate) fn make(workspace: &Workspace) -> Result<Outcome> {
    if find_program("tmux").is_none() {
        bail!("pictures need tmux: apt-get install tmux");
    }
    let mut build = workspace.cargo(&["build", "--package", "fluffy-cli"]);
    if let Outcome::Failed(why) = run(&mut build, "")? {
        return Ok(Outcome::Failed(why));
    }
    let program = workspace.target.join("debug/fluffy");
    let home = TempDir::new().context("cannot make a folder")?;
    let folder = workspace.root.join(FOLDER);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;

    let demo = Screen::open(
        home.path(),
        home.path(),
        &[&program.to_string_lossy(), "demo"],
    )?;
    let shown = demo.wait_for("nobody touched the record")?;
    for part in &OF_DEMO {
        part.write(&folder, &shown)?;
    }
    drop(demo);

    let project = repository(workspace, home.path())?;
    let recording = workspace.root.join(DEMO).join("session.jsonl");
    let model = format!("replay/{}", recording.display());
    let words = [&*program.to_string_lossy(), "--model", &model];
    let session = Screen::open(home.path(), &project, &words)?;
    session.wait_for(">")?;
    session.type_line(TASK)?;
    let shown = session.wait_for("ledger ")?;
    OF_SESSION.write(&folder, &shown)?;
    Ok(Outcome::Passed(format!("made 3 pictures in {FOLDER}")))
}

impl Part {
    fn write(&self, folder: &Path, shown: &str) -> Result<()> {
        let lines: Vec<&str> = shown.lines().collect();
        let has = |line: &str, words: &str| svg::letters(line).contains(words);
        let first = lines.iter().position(|line| has(line, self.from));
        let part = lines
            .get(first.unwrap_or(lines.len())..)
            .unwrap_or_default();
        let last = part.iter().position(|line| has(line, self.to));
        let Some(last) = last else {
            bail!(
                "`{}` or `{}` is not on the screen:\n{shown}",
                self.from,
                self.to
            );
        };
        let part = part.get(..=last).unwrap_or_default();
        let path = folder.join(self.name);
        let picture = svg::picture(self.title, part, COLUMNS);
        fs::write(&path, picture).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// The demo's repository, with a secret.
fn repository(workspace: &Workspace, home: &Path) -> Result<std::path::PathBuf> {
    let from = workspace.root.join(DEMO).join("project");
    let project = home.join("slugs");
    let steps = format!(
        "mkdir -p {to}/.fluffy && cp -r {from}/slug.sh {from}/tests {to} && \
         cp {from}/config.toml {to}/.fluffy && cd {to} && echo .env > .gitignore && \
         echo TOKEN=x > .env && git init -q -b main && git config user.name Demo && \
         git config user.email demo@localhost && git add -A && git commit -qm 'Slugs of titles'",
        to = project.display(),
        from = from.display(),
    );
    let done = capture(Command::new("sh").args(["-c", &steps]));
    ensure!(done.is_some(), "cannot make the demo's repository");
    Ok(project)
}

/// A screen with a program on it; ends with it.
struct Screen {
    server: String,
}

impl Screen {
    fn open(home: &Path, folder: &Path, words: &[&str]) -> Result<Self> {
        let server = format!("fluffy-pictures-{}", std::process::id());
        let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
        // The screen stays when the program has ended.
        let line = format!("{}; sleep 600", quoted.join(" "));
        let state = home.join("state");
        let mut tmux = Command::new("tmux");
        tmux.args(["-L", &server, "-f", "/dev/null", "new-session", "-d"])
            .args(["-x", &COLUMNS.to_string(), "-y", "48", &line])
            .current_dir(folder)
            .env("HOME", home)
            .env("FLUFFY_STATE_DIR", state)
            .env("FLUFFY_KERNEL_LINGER", "1")
            .env_remove("NO_COLOR")
            .env_remove("TMUX");
        ensure!(capture(&mut tmux).is_some(), "tmux cannot be started");
        Ok(Self { server })
    }

    /// All that was on the screen once these words are, colours included.
    fn wait_for(&self, words: &str) -> Result<String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let shown = self.tmux(&["capture-pane", "-e", "-p", "-S", "-2000"]);
            let shown = shown.unwrap_or_default();
            if shown.contains(words) {
                return Ok(shown);
            }
            ensure!(Instant::now() < deadline, "no `{words}` on:\n{shown}");
            sleep(Duration::from_millis(100));
        }
    }

    fn type_line(&self, text: &str) -> Result<()> {
        let typed = self.tmux(&["send-keys", text, "Enter"]);
        typed.map(drop).context("nothing can be typed")
    }

    fn tmux(&self, words: &[&str]) -> Option<String> {
        capture(Command::new("tmux").args(["-L", &self.server]).args(words))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}
