//! The demo's last act: what the agent wrote, packed, deployed and asked.
//!
//! The image is the repository's code with the four programs of this machine
//! that it needs, and nothing else, so that nothing has to be fetched. The
//! platform is the one of `fluffy up`, in the demo's own folder; it is ended
//! with everything that it runs, whatever happens. Where instances cannot run,
//! the act is left out and says why.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout};
use std::time::{Duration, Instant};

use fluffy_report::{ExitCode, Report, Tone};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::stage::{Ran, Stage};
use super::{act, block, command, odd, say};
use crate::failure::Failure;

/// What the repository's code runs with.
const PROGRAMS: [&str; 4] = ["perl", "sed", "sh", "tr"];

/// What of the repository is served.
const CODE: [&str; 2] = ["serve.pl", "slug.sh"];

/// What is asked of it.
const TITLE: &str = "Hello,%20World!";

/// How long it may take until an answer comes, or the platform has ended.
const PATIENCE: Duration = Duration::from_secs(120);

/// Act 5: the code serves; what that came to, for programs.
pub(super) fn play(stage: &Stage<'_>) -> Result<Value, Failure> {
    act(stage, 5, "What was merged, deployed on this machine")?;
    let programs = match find(stage) {
        Ok(programs) => programs,
        Err(why) => return skip(stage, &why),
    };
    let up = match Up::start(stage)? {
        Ok(up) => up,
        Err(why) => return skip(stage, &why),
    };
    let played = serve(stage, &programs, &up);
    up.end();
    played
}

/// Says that the act is left out, and why.
fn skip(stage: &Stage<'_>, why: &str) -> Result<Value, Failure> {
    block(stage.session, Tone::Caution, &format!("Left out: {why}."))?;
    Ok(json!({"skipped": why}))
}

fn serve(stage: &Stage<'_>, programs: &Programs, up: &Up) -> Result<Value, Failure> {
    let session = stage.session;
    lay_out(stage, programs).map_err(|error| no_room(&error))?;
    let words = ["image", "pack", "../root", "../image"];
    command(session, &format!("fluffy {}", words.join(" ")))?;
    let packed = stage.fluffy(&words)?;
    block(session, Tone::Plain, packed.stdout.trim_end())?;

    command(session, "fluffy up &")?;
    block(session, Tone::Plain, &up.said)?;
    command(session, "fluffy launch")?;
    let launched = stage.fluffy(&["launch", "--no-input", "--json"])?;
    let last = launched.stdout.lines().last().unwrap_or_default();
    let deploy: Value = serde_json::from_str(last).unwrap_or_default();
    let of = |place: &str| deploy.pointer(place).and_then(Value::as_str);
    let (Some(id), Some(address)) = (of("/data/id"), of("/routes/0/address")) else {
        return Err(odd("what was deployed has no way in"));
    };
    let deployed = format!("{id} succeeded: web is at http://{address}");
    block(session, Tone::Plain, &deployed)?;
    let address: SocketAddr = (address.parse()).map_err(|_| odd("its way in is no address"))?;
    command(session, &format!("curl http://{address}/{TITLE}"))?;
    let answer = ask(address).ok_or_else(|| odd("what was deployed does not answer"))?;
    block(session, Tone::Good, answer.trim_end())?;
    if answer.trim_end() != "hello-world" {
        return Err(odd("what was deployed answers something else"));
    }

    say(
        session,
        "\n  The deploy rests on the agent's merge, in two ledgers:\n\n",
    )?;
    command(session, "fluffy audit verify --ledger up/ledger")?;
    let (words, link) = follow(stage)?;
    block(session, Tone::Good, &words)?;
    Ok(json!({
        "answer": answer.trim_end(), "isolation": up.isolation,
        "deploy_seq": link.0, "merge_seq": link.1,
    }))
}

/// Asks until there is an answer; what it says.
fn ask(address: SocketAddr) -> Option<String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match answer(address) {
            Ok(text) => return Some(text),
            Err(_) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(_) => return None,
        }
    }
}

fn answer(address: SocketAddr) -> io::Result<String> {
    let within = Duration::from_secs(10);
    let mut stream = TcpStream::connect_timeout(&address, within)?;
    stream.set_read_timeout(Some(within))?;
    write!(stream, "GET /{TITLE} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut text = String::new();
    stream.take(64 << 10).read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_default();
    match head.starts_with("HTTP/1.0 200 ") {
        true => Ok(body.to_owned()),
        false => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Follows the deploy into the ledger of the agent; both positions.
fn follow(stage: &Stage<'_>) -> Result<(String, (u64, u64)), Failure> {
    let ledger = stage.path("state").join("up").join("ledger");
    let ledger = ledger.to_string_lossy();
    let Ran { stdout, .. } = stage.fluffy(&["audit", "verify", "--json", "--ledger", &ledger])?;
    let said: Value = serde_json::from_str(&stdout).unwrap_or_default();
    let number = |name: &str| said.pointer(name).and_then(Value::as_u64);
    let link = (
        number("/links/followed/0/seq"),
        number("/links/followed/0/source_seq"),
    );
    let (Some(events), (Some(deploy), Some(merge))) = (number("/events"), link) else {
        return Err(odd("the deploy does not rest on the agent's merge"));
    };
    let words = format!(
        "sound: {events} events; event {deploy}, the deploy, rests on event {merge} of the\n\
         agent's ledger, the merge, which is sound as well"
    );
    Ok((words, (deploy, merge)))
}

/// Programs of this machine and everything that they load.
struct Programs {
    /// Each by its name in the image's `/bin`.
    programs: Vec<(&'static str, PathBuf)>,
    /// Libraries and their loader, where they are in the image too.
    libraries: BTreeSet<PathBuf>,
}

/// Finds what the code needs; why it is not there, if it is not.
fn find(stage: &Stage<'_>) -> Result<Programs, String> {
    if let Some(why) = &stage.reduced {
        return Err(format!("instances need namespaces: {why}"));
    }
    let places = std::env::var_os("PATH").unwrap_or_default();
    let mut programs = Vec::new();
    for name in PROGRAMS {
        let mut places = std::env::split_paths(&places).map(|place| place.join(name));
        let found = places.find(|path| path.is_file());
        let found = found.ok_or_else(|| format!("there is no `{name}` on this machine"))?;
        programs.push((name, found));
    }
    let mut libraries = BTreeSet::new();
    for (name, path) in &programs {
        let listed = stage.run(Path::new("ldd"), &[&path.to_string_lossy()]);
        let listed = listed.map_err(|_| format!("`ldd` does not say what `{name}` loads"))?;
        libraries.extend(listed.lines().filter_map(library));
    }
    Ok(Programs {
        programs,
        libraries,
    })
}

/// The file in a line such as `libc.so.6 => /lib/libc.so.6 (0x0…)`.
fn library(line: &str) -> Option<PathBuf> {
    let file = line.split_once("=>").map_or(line, |(_, file)| file);
    let file = file.split_once(" (").map_or(file, |(file, _)| file).trim();
    file.starts_with('/').then(|| PathBuf::from(file))
}

/// Puts the root of the image together.
fn lay_out(stage: &Stage<'_>, programs: &Programs) -> io::Result<()> {
    let root = stage.path("root");
    let put = |from: &Path, to: PathBuf| -> io::Result<()> {
        fs::create_dir_all(to.parent().unwrap_or(&root))?;
        fs::copy(from, to).map(|_| ())
    };
    for (name, path) in &programs.programs {
        put(path, root.join("bin").join(name))?;
    }
    for path in &programs.libraries {
        put(path, root.join(path.strip_prefix("/").unwrap_or(path)))?;
    }
    for name in CODE {
        put(
            &stage.path("project").join(name),
            root.join("app").join(name),
        )?;
    }
    Ok(())
}

/// `fluffy up` in the demo's folder; it ends with this.
struct Up {
    child: Child,
    /// What it said about itself.
    said: String,
    isolation: Value,
}

impl Up {
    /// Starts it; why no instances run here, if none do.
    fn start(stage: &Stage<'_>) -> Result<Result<Self, String>, Failure> {
        let words = ["up", "--listen", "none", "--json"];
        let complaints = stage.path("up.err");
        let file = fs::File::create(&complaints).map_err(|error| no_room(&error))?;
        let mut child = stage.start(&words, file)?;
        let started = child.stdout.take().map(read_line).unwrap_or_default();
        let mut up = Self {
            child,
            said: String::new(),
            isolation: Value::Null,
        };
        let started: Value = serde_json::from_str(&started).unwrap_or_default();
        let complaints = || fs::read_to_string(&complaints).unwrap_or_default();
        if started.get("kind").is_none() {
            up.end();
            return Err(Report::new(ExitCode::Failure, "`fluffy up` did not start")
                .why(complaints().trim_end().to_owned())
                .fix("please report this with the output above")
                .into());
        }
        let node = started.pointer("/node/id").and_then(Value::as_str);
        let Some(node) = node else {
            up.end();
            return Ok(Err(reason(&complaints())));
        };
        up.isolation = started
            .pointer("/node/isolation/0")
            .cloned()
            .unwrap_or_default();
        let level = up.isolation.as_str().unwrap_or_default();
        up.said = format!("this machine runs instances as {node}: {level}");
        Ok(Ok(up))
    }

    /// Ends it with everything that it runs.
    fn end(self) {
        drop(self);
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(10)),
                Ok(Some(_)) | Err(_) => return,
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_line(stdout: ChildStdout) -> String {
    let mut line = String::new();
    // What is not a line is not what is waited for.
    let _ = BufReader::new(stdout.take(64 << 10)).read_line(&mut line);
    line
}

/// Why there is no node, as it was complained about.
fn reason(complaints: &str) -> String {
    const START: &str = "no instances run on this machine: ";
    let mut lines = complaints.lines();
    let found = lines.find_map(|line| line.split_once(START));
    found.map_or_else(
        || "no instances run on this machine".to_owned(),
        |(_, why)| why.to_owned(),
    )
}

fn no_room(error: &io::Error) -> Failure {
    super::stage::no_room(error).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_as_ldd_writes_them() {
        for (line, file) in [
            ("\tlinux-vdso.so.1 (0x00007fe5d56dd000)", None),
            (
                "\tlibm.so.6 => /lib/libm.so.6 (0x00007fe5d55eb000)",
                Some("/lib/libm.so.6"),
            ),
            (
                "\t/lib64/ld-linux.so.2 (0x00007fe5d56df000)",
                Some("/lib64/ld-linux.so.2"),
            ),
            ("\tlibgone.so => not found", None),
            ("\tstatically linked", None),
        ] {
            assert_eq!(library(line), file.map(PathBuf::from), "{line}");
        }
    }
}
