//! Master keys that several people keep, with the real `age`.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use fluffy_test_kit::wait_for;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::real::Running;
use crate::site::Site;

const LONG: Duration = Duration::from_secs(60);

/// Somebody with an identity of their own.
struct Custodian {
    identity: String,
    recipient: String,
}

impl Custodian {
    fn new(folder: &Path, name: &str) -> Self {
        let identity = folder.join(format!("{name}.key"));
        let made = Command::new("age-keygen").arg("-o").arg(&identity).output();
        let made = made.unwrap();
        assert!(made.status.success(), "{made:?}");
        let text = fs::read_to_string(&identity).unwrap();
        let recipient = text
            .lines()
            .find_map(|line| line.strip_prefix("# public key: "));
        Self {
            recipient: recipient.unwrap().to_owned(),
            identity: identity.display().to_string(),
        }
    }
}

/// Three custodians, and where they are.
struct Round {
    site: Site,
    custodians: Vec<Custodian>,
}

impl Round {
    fn of_three() -> Self {
        let site = Site::empty();
        let home = site.context.home();
        let custodians = ["ada", "grace", "lin"].map(|name| Custodian::new(&home, name));
        Self {
            custodians: custodians.into(),
            site,
        }
    }

    fn path(&self, name: &str) -> String {
        self.site.context.home().join(name).display().to_string()
    }

    /// The words that make two of three shares, and more.
    fn init<'a>(&'a self, out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        let mut words = vec!["keys", "init", "--shares", "3", "--threshold", "2"];
        words.extend(["--out", out]);
        for custodian in &self.custodians {
            words.extend(["--custodian", custodian.recipient.as_str()]);
        }
        words.extend(more);
        words
    }

    /// The key that was made, and the files of its shares.
    fn made(&self, out: &str, more: &[&str]) -> (String, Vec<String>) {
        let made = self.site.json(0, &self.init(out, more));
        let files = made["data"]["files"].as_array().unwrap().iter();
        let files = files.map(|name| format!("{out}/{}", name.as_str().unwrap()));
        (
            made["data"]["key"].as_str().unwrap().to_owned(),
            files.collect(),
        )
    }

    /// Words about the shares of these custodians.
    fn with<'a>(&'a self, words: &[&'a str], files: &'a [String], whose: &[usize]) -> Vec<&'a str> {
        let mut words = words.to_vec();
        for one in whose {
            words.extend([files[*one].as_str(), "--identity"]);
            words.push(&self.custodians[*one].identity);
        }
        words
    }
}

#[test]
fn a_key_is_made_for_three_and_any_two_have_it() {
    let round = Round::of_three();
    let (out, keys) = (round.path("shares"), round.path("keys"));
    let site = &round.site;
    let (key, files) = round.made(&out, &[]);
    assert_eq!(files.len(), 3);
    for file in &files {
        let mode = fs::metadata(file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(!String::from_utf8_lossy(&fs::read(file).unwrap()).contains("fluffy-share"));
    }
    let record = fs::read_dir(&out).unwrap().map(|it| it.unwrap().path());
    let record = record
        .into_iter()
        .find(|it| it.extension().is_some_and(|it| it == "txt"));
    let record = fs::read_to_string(record.unwrap()).unwrap();
    for custodian in &round.custodians {
        assert!(record.contains(&custodian.recipient), "{record}");
    }
    let program = fs::read(env!("CARGO_BIN_EXE_fluffy")).unwrap();
    assert!(
        record.contains(&fluffy_base::Digest::of(&program).to_string()),
        "{record}"
    );
    assert!(record.contains(&key), "{record}");

    let verify = ["keys", "shares", "verify"];
    for pair in [[0, 1], [0, 2], [2, 1]] {
        let verified = site.json(0, &round.with(&verify, &files, &pair));
        assert_eq!(verified["data"]["key"], key.as_str());
    }
    // One is not enough, the identity of another opens nothing, none at all
    // is said, and a file that was altered is found out by age.
    let few = site.ends(2, &round.with(&verify, &files, &[1]));
    assert!(few.stderr.contains("1 of the 2 shares"), "{}", few.stderr);
    let mine = round.custodians[0].identity.as_str();
    let refused = site.ends(
        2,
        &["keys", "shares", "verify", &files[1], "--identity", mine],
    );
    assert!(
        refused.stderr.contains("no identity matched"),
        "{}",
        refused.stderr
    );
    let bare = site.ends(2, &["keys", "shares", "verify", &files[1]]);
    assert!(bare.stderr.contains("--identity"), "{}", bare.stderr);

    let recovered = site.json(
        0,
        &round.with(&["keys", "recover", "--keys", &keys], &files, &[1, 2]),
    );
    assert_eq!(recovered["data"]["key"], key.as_str());
    assert!(Path::new(&keys).join(format!("{key}.key")).exists());
    // A second set of the same key is another; what is mixed is refused.
    let again = round.path("again");
    let renewed = round.with(&[], &files, &[0, 1]);
    let mut more = Vec::new();
    for pair in renewed.chunks(3) {
        more.extend(["--renew", pair[0], "--identity", pair[2]]);
    }
    let (same, fresh) = round.made(&again, &more);
    assert_eq!(same, key);
    let mixed = [files[0].clone(), fresh[1].clone(), fresh[2].clone()];
    let refused = site.ends(2, &round.with(&verify, &mixed, &[0, 1]));
    assert!(
        refused.stderr.contains("different sets"),
        "{}",
        refused.stderr
    );
    site.succeeds(&round.with(&verify, &fresh, &[1, 2]));
    // The folder of another platform does not take it.
    let other = round.path("other");
    let (_, theirs) = round.made(&round.path("theirs"), &[]);
    site.succeeds(&round.with(&["keys", "recover", "--keys", &other], &theirs, &[0, 1]));
    let refused = site.ends(
        5,
        &round.with(&["keys", "recover", "--keys", &other], &files, &[0, 1]),
    );
    assert!(
        refused.stderr.contains("another platform"),
        "{}",
        refused.stderr
    );
}

#[test]
fn what_makes_no_shares_is_refused_and_leaves_no_file() {
    let round = Round::of_three();
    let out = round.path("shares");
    let site = &round.site;
    let custodian = round.custodians[0].recipient.as_str();
    for (words, said) in [
        (
            vec![
                "--shares",
                "2",
                "--threshold",
                "2",
                "--custodian",
                custodian,
            ],
            "2 shares for 1",
        ),
        (
            vec![
                "--shares",
                "2",
                "--threshold",
                "2",
                "--custodian",
                custodian,
                "--custodian",
                custodian,
            ],
            "two shares",
        ),
        (
            vec![
                "--shares",
                "1",
                "--threshold",
                "1",
                "--custodian",
                custodian,
            ],
            "at least 2",
        ),
        (
            vec![
                "--shares",
                "2",
                "--threshold",
                "2",
                "--custodian",
                custodian,
                "--custodian",
                "nobody",
            ],
            "nobody",
        ),
    ] {
        let words = [&["keys", "init", "--out", &out][..], &words].concat();
        let refused = site.ends(2, &words);
        assert!(refused.stderr.contains(said), "{}", refused.stderr);
        assert!(!Path::new(&out).exists(), "{words:?}");
    }
    let none = round.path("none");
    site.ends(4, &round.init(&out, &["--keys", &none]));
    // Without age nothing is made, and it is said how to get it.
    let mut command = site.context.command();
    let ended = command
        .args(round.init(&out, &[]))
        .env("PATH", "/nowhere")
        .output()
        .unwrap();
    assert_eq!(ended.status.code(), Some(4), "{ended:?}");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(said.contains("install age"), "{said}");
    assert!(!Path::new(&out).exists());
    // What is there already is not written over, and nothing new stays.
    fs::create_dir_all(&out).unwrap();
    fs::set_permissions(&out, fs::Permissions::from_mode(0o500)).unwrap();
    if rustix::process::geteuid().is_root() {
        return;
    }
    site.ends(5, &round.init(&out, &[]));
    assert_eq!(fs::read_dir(&out).unwrap().count(), 0);
}

/// A server that waits, as its operator sees it.
struct Waiting {
    running: Running,
    address: String,
}

fn command(site: &Site, data: &Path) -> Command {
    let mut command = site.context.command();
    command.args(["server", "--unseal", "--json", "--listen", "127.0.0.1:0"]);
    command
        .args(["--listen-nodes", "127.0.0.1:0", "--data"])
        .arg(data);
    command
}

fn waiting(site: &Site, data: &Path, unseal: impl FnOnce() + Send) -> Waiting {
    std::thread::scope(|scope| {
        scope.spawn(unseal);
        let (running, said) = Running::start(command(site, data), "\n");
        let started: Value = serde_json::from_str(&said).unwrap();
        let address = started["listening"][0].as_str().unwrap().to_owned();
        Waiting { running, address }
    })
}

/// The share of a custodian, in the clear.
fn decrypted(custodian: &Custodian, file: &str) -> Vec<u8> {
    let mut age = Command::new("age");
    let age = age
        .args(["-d", "-i", &custodian.identity, file])
        .output()
        .unwrap();
    assert!(age.status.success(), "{age:?}");
    age.stdout
}

#[test]
fn a_server_goes_on_when_its_custodians_have_come() {
    let round = Round::of_three();
    let site = &round.site;
    let (key, files) = round.made(&round.path("shares"), &[]);
    let data: PathBuf = round.path("server").into();
    let socket = data.join("custody/unseal.sock");
    let at = data.display().to_string();
    let base = ["server", "unseal", "--data", &at];
    // Nobody is there yet.
    site.ends(6, &round.with(&base, &files, &[0]));

    // One brings the file, the other pipes the share in.
    let waiting = waiting(site, &data, || {
        let is_there = || socket.exists().then_some(());
        wait_for("the desk", LONG, is_there).unwrap();
        let first = site.json(0, &round.with(&base, &files, &[0]));
        assert_eq!(first["data"]["unsealed"], false, "{first}");
        let mut command = site.context.command();
        command
            .args(base)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let share = decrypted(&round.custodians[2], &files[2]);
        child.stdin.take().unwrap().write_all(&share).unwrap();
        let done = child.wait_with_output().unwrap();
        assert!(done.status.success(), "{done:?}");
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(said.contains(&format!("the server has {key}")), "{said}");
    });
    assert!(waiting.address.starts_with("https://127.0.0.1:"));
    assert!(!data.join("keys").exists(), "nothing of it is on the disk");
    waiting.running.end();

    // Who gives up while it waits ends it well.
    let other = round.path("other");
    let mut child = command(site, Path::new(&other));
    let mut child = child
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    while !said.contains("fluffy server unseal") {
        assert!(lines.read_line(&mut said).unwrap() > 0, "{said}");
    }
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
}
