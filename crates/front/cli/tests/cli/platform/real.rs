//! `fluffy up` as a person starts it, and commands that find it by themselves.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use fluffy_ledger::{Ledger, LedgerOptions};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::site::Site;

/// A server that ends with the test.
pub(super) struct Running(Child);

impl Running {
    /// Starts it and reads what it says, up to the line that begins so.
    pub(super) fn start(mut command: Command, last: &str) -> (Self, String) {
        command.stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap();
        let mut said = String::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        while !said.contains(last) {
            let mut line = String::new();
            assert!(lines.read_line(&mut line).unwrap() > 0, "it ended: {said}");
            said.push_str(&line);
        }
        // What it says later must not stop it.
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        (Self(child), said)
    }

    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Ends it without a word.
    pub(super) fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Asks it to end, and waits; for who may be failing already.
    pub(super) fn leave(&mut self) {
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }

    /// Ends it as systemd does; it must end well.
    pub(super) fn end(mut self) {
        let pid = Pid::from_child(&self.0);
        kill_process(pid, Signal::TERM).unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(super) fn up(site: &Site) -> Running {
    let mut command = site.context.command();
    command.args(["up", "--listen", "none"]);
    Running::start(command, "listening on unix:").0
}

#[test]
fn the_platform_of_one_person_is_found_used_and_kept() {
    let site = Site::empty();
    let running = up(&site);
    let who = site.json(0, &["whoami"]);
    assert_eq!(who["kind"], "Whoami");
    assert_eq!(site.json(0, &["orgs", "list"])["items"][0]["slug"], "local");
    let made = site.json(0, &["apps", "create", "shop", "--display-name", "The shop"]);
    assert!(made["receipt"]["seq"].as_u64().unwrap() > 0, "{made}");
    site.ends(5, &["apps", "create", "shop"]);
    site.succeeds(&["envs", "create", "staging", "--app", "shop"]);
    assert!(
        site.succeeds(&["envs", "list", "--app", "shop"])
            .contains("staging")
    );
    site.ends(4, &["apps", "describe", "missing"]);
    site.ends(2, &["apps", "create", "No Name"]);
    let events = site.json(0, &["events", "list", "--types", "app.*"]);
    assert_eq!(events["items"][0]["event_type"], "app.created");
    // A second one does not take the first one's place.
    site.ends(5, &["up", "--listen", "none"]);
    running.end();
    site.ends(6, &["apps", "list"]);
    // What was answered is there after a restart.
    let running = up(&site);
    let again: Value = site.json(0, &["apps", "describe", "shop"]);
    assert_eq!(again["data"]["display_name"], "The shop");
    running.end();
}

/// A server with data of its own, where nodes find it at an address.
fn server(site: &Site, nodes: &str) -> Command {
    let mut command = site.context.command();
    command.args(["server", "--json", "--listen", "127.0.0.1:0"]);
    command.args(["--listen-nodes", nodes]);
    command
        .arg("--data")
        .arg(site.context.home().join("server"));
    command
}

#[test]
fn a_server_gives_itself_to_who_has_its_code() {
    let site = Site::empty();
    let (running, said) = Running::start(server(&site, "127.0.0.1:0"), "\n");
    let started: Value = serde_json::from_str(&said).unwrap();
    let address = started["listening"][0].as_str().unwrap();
    assert!(address.starts_with("https://127.0.0.1:"), "{started}");
    let code = started["invite"].as_str().unwrap();
    let ca = started["ca"].as_str().unwrap();
    site.succeeds(&["context", "set", "work", "--server", address, "--ca", ca]);
    site.ends(3, &["orgs", "list"]);
    super::logins::piped(&site, &["login", "--invite"], &format!("{code}\n"));
    site.succeeds(&["orgs", "create", "acme"]);
    // The code is good once, and nobody else's certificate is believed.
    let mut second = site.context.command();
    second
        .args(["login", "--invite"])
        .stdin(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = second.spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), code.as_bytes()).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(3));
    site.succeeds(&["context", "set", "bare", "--server", address]);
    assert_ne!(site.run(&["whoami", "--context", "bare"]).code, Some(0));
    site.succeeds(&["capabilities", "--context", "work"]);
    running.end();
}

#[test]
fn a_server_that_could_not_open_its_doors_still_gives_itself_away() {
    let site = Site::empty();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let ended = server(&site, &address).output().unwrap();
    assert_eq!(ended.status.code(), Some(5), "{ended:?}");
    // Nobody saw the code of that start; the next one has another.
    let (running, said) = Running::start(server(&site, "127.0.0.1:0"), "\n");
    let started: Value = serde_json::from_str(&said).unwrap();
    let address = started["listening"][0].as_str().unwrap();
    let code = started["invite"].as_str().unwrap();
    let ca = started["ca"].as_str().unwrap();
    site.succeeds(&["context", "set", "work", "--server", address, "--ca", ca]);
    super::logins::piped(&site, &["login", "--invite"], &format!("{code}\n"));
    site.succeeds(&["orgs", "create", "acme"]);
    running.end();
    // The control: who has come in is the last.
    let (running, said) = Running::start(server(&site, "127.0.0.1:0"), "\n");
    let started: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(started["invite"], Value::Null, "{started}");
    running.end();
}

/// Whoever put the folder back says so once, and a new epoch begins.
#[test]
fn who_put_the_folder_of_a_platform_back_says_so() {
    let site = Site::empty();
    let data = site.context.home().join("own");
    let epoch = |more: &[&str]| {
        let mut command = site.context.command();
        command.args(["up", "--listen", "none", "--no-node", "--data"]);
        command.arg(&data).args(more);
        Running::start(command, "listening on unix:").0.end();
        let ledger = Ledger::open(&data.join("ledger"), LedgerOptions::default()).unwrap();
        let head = ledger.head().unwrap();
        ledger.close().unwrap();
        head.epoch
    };
    assert_eq!(epoch(&[]), 1);
    assert_eq!(epoch(&["--restored"]), 2);
    assert_eq!(epoch(&[]), 2, "it was said once");
}
