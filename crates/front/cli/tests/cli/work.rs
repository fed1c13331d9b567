//! Real work inside: what people would run, with the tools they have.
//!
//! The tools are those of whoever runs the tests, so their home is seen; all
//! of `fluffy`'s own files are in the test's folder all the same.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use crate::site::Site;

/// A site whose tools are those of this machine.
fn site() -> Site {
    let mut site = Site::empty();
    let home = std::env::var("HOME").unwrap();
    site.context.set("HOME", &home);
    site
}

#[test]
fn cargo_builds_and_tests() {
    let site = site();
    site.context
        .write(
            "Cargo.toml",
            "[package]\nname = \"tiny\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[workspace]\n",
        )
        .unwrap();
    site.context
        .write(
            "src/lib.rs",
            "pub fn two() -> u32 { 2 }\n#[test]\nfn holds() { assert_eq!(two(), 2) }\n",
        )
        .unwrap();
    let finished = site.ends(
        0,
        &[
            "sandbox",
            "run",
            "--discard",
            "--",
            "cargo",
            "test",
            "--offline",
        ],
    );
    assert!(
        finished.stdout.contains("test holds ... ok"),
        "{}",
        finished.stdout
    );
    assert!(!site.context.project().join("target").exists());
}

#[test]
fn pytest_runs() {
    let site = site();
    site.context
        .write(
            "test_tiny.py",
            "def test_holds(tmp_path):\n    (tmp_path / 'x').write_text('y')\n",
        )
        .unwrap();
    let finished = site.ends(0, &["sandbox", "run", "--discard", "--", "pytest", "-q"]);
    assert!(finished.stdout.contains("1 passed"), "{}", finished.stdout);
}

#[test]
fn npm_runs() {
    let site = site();
    site.context
        .write(
            "package.json",
            "{\"name\": \"tiny\", \"scripts\": {\"test\": \"node --test\"}}\n",
        )
        .unwrap();
    site.context
        .write(
            "tiny.test.js",
            "const test = require('node:test');\ntest('holds', () => {});\n",
        )
        .unwrap();
    let finished = site.ends(0, &["sandbox", "run", "--discard", "--", "npm", "test"]);
    assert!(finished.stdout.contains("pass 1"), "{}", finished.stdout);
}

/// A server process that ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn git(arguments: &[&str], folder: &std::path::Path) {
    let output = Command::new("git")
        .args(["-c", "user.name=t", "-c", "user.email=t@example.org"])
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn git_clones_through_the_proxy() {
    let site = site();
    let folder = site.context.project().parent().unwrap().join("served");
    std::fs::create_dir(&folder).unwrap();
    git(&["init", "-q", "origin"], &folder);
    std::fs::write(folder.join("origin/file.txt"), "cloned\n").unwrap();
    git(&["add", "."], &folder.join("origin"));
    git(&["commit", "-q", "-m", "first"], &folder.join("origin"));
    git(&["clone", "-q", "--bare", "origin", "bare.git"], &folder);
    git(&["update-server-info"], &folder.join("bare.git"));
    let mut server = Command::new("python3")
        .args(["-u", "-m", "http.server", "--bind", "127.0.0.1", "0"])
        .current_dir(&folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // "Serving HTTP on 127.0.0.1 port 40123 (…"
    let mut line = String::new();
    let output = server.stdout.take().unwrap();
    let _server = Server(server);
    BufReader::new(output).read_line(&mut line).unwrap();
    let port = line.split_whitespace().nth(5).unwrap();
    let allow = format!("code.test:{port}=127.0.0.1");
    let address = format!("http://code.test:{port}/bare.git");
    let script = "git clone -q \"$0\" copy && cat copy/file.txt";
    let words = ["sandbox", "run", "--discard", "--allow", &allow];
    let words = [&words[..], &["--", "sh", "-c", script, &address]].concat();
    let finished = site.ends(0, &words);
    assert_eq!(finished.stdout, "cloned\n");
}

#[test]
fn a_database_server_runs_inside() {
    let site = site();
    let folder = std::fs::read_dir("/usr/lib/postgresql")
        .expect("PostgreSQL is installed by `cargo xtask test`")
        .flatten()
        .map(|entry| entry.path().join("bin"))
        .find(|folder| folder.join("initdb").exists())
        .unwrap();
    let script = "set -e; export PATH=\"$0:$PATH\"\n\
         initdb -D /tmp/data --no-sync > /tmp/log 2>&1 || { cat /tmp/log; exit 1; }\n\
         pg_ctl -D /tmp/data -o '-k /tmp' -l /tmp/log -w start > /dev/null || { cat /tmp/log; exit 1; }\n\
         psql -h 127.0.0.1 -At -c 'select 41 + 1' postgres\n\
         pg_ctl -D /tmp/data -m fast stop > /dev/null\n";
    let finished = site.ends(
        0,
        &[
            "sandbox",
            "run",
            "--template",
            "integration-test",
            "--",
            "sh",
            "-c",
            script,
            folder.to_str().unwrap(),
        ],
    );
    assert_eq!(finished.stdout, "42\n");
    assert_eq!(finished.stderr, "");
}
