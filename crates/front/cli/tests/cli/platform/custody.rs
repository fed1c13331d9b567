//! Master keys that several people keep, with the real `age`.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use fluffy_test_kit::wait_for;
use fluffy_vault::Keyring;
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
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
        // The same person under two remarks.
        (
            vec![
                "--shares",
                "2",
                "--threshold",
                "2",
                "--custodian",
                "ssh-ed25519 AAAA ada@home",
                "--custodian",
                "ssh-ed25519 AAAA ada@work",
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

#[test]
fn custodians_get_no_key_beside_which_another_is_in_use() {
    let round = Round::of_three();
    let (keys, out) = (round.path("keys"), round.path("shares"));
    let mut ring = Keyring::open(Path::new(&keys)).unwrap();
    let first = ring.active().unwrap().id();
    ring.rotate().unwrap();
    let refused = round.site.ends(5, &round.init(&out, &["--keys", &keys]));
    for said in [&first.to_string(), "keys rewrap", "keys retire"] {
        assert!(refused.stderr.contains(said), "{}", refused.stderr);
    }
    assert!(!Path::new(&out).exists());
    // The control: put away, as `keys retire` does.
    ring.put_away(first).unwrap();
    let (key, _) = round.made(&out, &["--keys", &keys]);
    assert_eq!(key, ring.active().unwrap().id().to_string());
}

/// What `age` sees of us: an environment of its own, and a process that leaves
/// no dump.
#[test]
fn age_knows_of_the_environment_only_what_it_needs() {
    let round = Round::of_three();
    let home = round.site.context.home();
    let bin = home.join("bin");
    fs::create_dir(&bin).unwrap();
    let age = bin.join("age");
    let script = "#!/bin/sh\n\
         env > \"$HOME/seen\"\n\
         cat /proc/$PPID/limits > \"$HOME/limits\"\n\
         PATH=${PATH#*:} exec age \"$@\"\n";
    fs::write(&age, script).unwrap();
    fs::set_permissions(&age, fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap();
    let mut command = round.site.context.command();
    let made = command
        .args(round.init(&round.path("shares"), &[]))
        .env("PATH", format!("{}:{path}", bin.display()))
        .env("AGEDEBUG", "plugin")
        .env("FLUFFY_TOKEN", "waffle-marked")
        .env("TERM", "xterm-marked")
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let seen = fs::read_to_string(home.join("seen")).unwrap();
    assert!(!seen.contains("AGEDEBUG"), "{seen}");
    assert!(!seen.contains("waffle-marked"), "{seen}");
    assert!(seen.contains("TERM=xterm-marked"), "{seen}");
    let limits = fs::read_to_string(home.join("limits")).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core"));
    let core: Vec<&str> = core.unwrap().split_whitespace().collect();
    assert_eq!(core[4..6], ["0", "0"], "{limits}");
}

/// A terminal with nobody at it: what is typed is written to one end.
struct Terminal {
    ours: fs::File,
    theirs: fs::File,
}

impl Terminal {
    fn open() -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
        let ours = openpt(flags).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let theirs = ioctl_tiocgptpeer(&ours, flags).unwrap().into();
        let ours = ours.into();
        Self { ours, theirs }
    }

    /// How much waits for whoever reads next, such as a shell, when all that
    /// was typed has come, and two bytes more.
    fn waits(&mut self) -> u64 {
        self.ours.write_all(b"x\n").unwrap();
        let waits = || {
            let waits = rustix::io::ioctl_fionread(&self.theirs).unwrap();
            (waits > 0).then_some(waits)
        };
        wait_for("what was typed", LONG, waits).unwrap()
    }

    /// What it shows.
    fn shown(mut self) -> String {
        drop(self.theirs);
        let mut shown = Vec::new();
        // Its end is an error when nobody has the other side.
        let _ = self.ours.read_to_end(&mut shown);
        String::from_utf8_lossy(&shown).into_owned()
    }
}

/// The attack is a custodian's own: what `age -d` shows is pasted whole.
#[test]
fn a_share_that_is_pasted_with_its_remark_is_read_and_never_left_to_a_shell() {
    let round = Round::of_three();
    let (_, files) = round.made(&round.path("shares"), &[]);
    let share = String::from_utf8(decrypted(&round.custodians[0], &files[0])).unwrap();
    assert!(share.starts_with('#') && share.lines().count() == 2);
    let data = share.split_whitespace().rev().nth(1).unwrap();
    let nowhere = round.path("nowhere");
    for pasted in [
        share.clone(),
        format!("\n\n{share}\n$ \n"),
        format!("$ age -d -i me.key mk.age\n{share}echo {data}\n"),
    ] {
        let mut terminal = Terminal::open();
        let mut command = round.site.context.command();
        command
            .args(["server", "unseal", "--data", &nowhere])
            .stdin(terminal.theirs.try_clone().unwrap())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // It holds the other end of the terminal, too.
        drop(command);
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        while !said.contains("Your share") {
            assert!(lines.read_line(&mut said).unwrap() > 0, "{said}");
        }
        terminal.ours.write_all(pasted.as_bytes()).unwrap();
        lines.read_to_string(&mut said).unwrap();
        // It was read: there is only no server to bring it to.
        assert_eq!(child.wait().unwrap().code(), Some(6), "{said}");
        assert_eq!(terminal.waits(), 2, "a shell would run it: {pasted}");
        let shown = terminal.shown();
        assert!(!shown.contains(data) && !said.contains(data), "{shown}");
    }
    // The control: what nobody reads waits for whoever comes next, and is seen.
    let mut terminal = Terminal::open();
    terminal.ours.write_all(share.as_bytes()).unwrap();
    assert!(terminal.waits() > data.len() as u64);
    assert!(terminal.shown().contains(data));
}

#[test]
fn a_server_that_waits_for_custodians_says_so_to_systemd() {
    let round = Round::of_three();
    let site = &round.site;
    let (_, files) = round.made(&round.path("shares"), &[]);
    let data: PathBuf = round.path("server").into();
    let socket = round.path("notify");
    let heard = UnixDatagram::bind(&socket).unwrap();
    heard.set_read_timeout(Some(LONG)).unwrap();
    let hear = || {
        let mut text = [0; 256];
        let length = heard.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..length]).into_owned()
    };
    let mut command = command(site, &data);
    command.env("NOTIFY_SOCKET", &socket);
    let started = std::thread::scope(|scope| {
        let running = scope.spawn(|| Running::start(command, "\n").0);
        let waits = hear();
        assert!(waits.starts_with("READY=1\n"), "{waits}");
        assert!(waits.contains("STATUS=waiting for custodians"), "{waits}");
        assert!(!data.join("ca.pem").exists(), "nothing is open yet");
        let at = data.display().to_string();
        let base = ["server", "unseal", "--data", &at];
        for one in [0, 1] {
            site.succeeds(&round.with(&base, &files, &[one]));
        }
        running.join().unwrap()
    });
    let runs = hear();
    assert!(runs.contains("READY=1") && runs.contains("STATUS=running"));
    started.end();
}

#[test]
fn a_server_for_custodians_does_not_start_beside_keys_where_somebody_says() {
    let site = Site::empty();
    let home = site.context.home();
    let (data, keys) = (home.join("server"), home.join("etc/keys"));
    let key = Keyring::open(&keys).unwrap().active().unwrap().id();
    let ended = |folder: &Path| {
        let mut command = command(&site, &data);
        command.arg("--keys").arg(folder);
        let ended = command.output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(5), "{said}");
        said
    };
    let said = ended(&keys);
    for name in [format!("{key}.key"), "fingerprints".to_owned()] {
        assert!(said.contains(&name), "{said}");
    }
    // Where they would be if nobody had said where counts as well.
    fs::rename(&keys, data.join("keys")).unwrap();
    assert!(ended(&keys).contains("fingerprints"));
    // The control: without any it waits for custodians.
    fs::remove_dir_all(data.join("keys")).unwrap();
    let mut command = command(&site, &data);
    command.arg("--keys").arg(&keys);
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let socket = data.join("custody/unseal.sock");
    wait_for("the desk", LONG, || socket.exists().then_some(())).unwrap();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
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
    // Who comes late hears that it is done.
    let said = site.succeeds(&round.with(&base, &files, &[1]));
    assert!(
        said.contains(&format!("the server has {key} already")),
        "{said}"
    );
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
