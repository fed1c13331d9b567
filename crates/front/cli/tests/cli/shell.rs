//! What every command has in common: help, flags, pipes, colours, exit codes.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::site::Site;

const COMMANDS: &[&[&str]] = &[
    &["run"],
    &["session"],
    &["session", "list"],
    &["session", "show"],
    &["session", "resume"],
    &["session", "fork"],
    &["session", "diff"],
    &["session", "undo"],
    &["session", "export"],
    &["acp"],
    &["demo"],
    &["init"],
    &["policy"],
    &["policy", "check"],
    &["policy", "explain"],
    &["policy", "decide"],
    &["policy", "test"],
    &["policy", "diff"],
    &["policy", "apply"],
    &["policy", "schema"],
    &["plugin"],
    &["plugin", "install"],
    &["plugin", "list"],
    &["plugin", "inspect"],
    &["plugin", "logs"],
    &["plugin", "enable"],
    &["plugin", "disable"],
    &["plugin", "reload"],
    &["plugin", "remove"],
    &["plugin", "schema"],
    &["audit"],
    &["audit", "log"],
    &["audit", "verify"],
    &["audit", "prove"],
    &["audit", "check-proof"],
    &["audit", "export"],
    &["audit", "tail"],
    &["config"],
    &["config", "show"],
    &["version"],
    &["completions"],
];

#[test]
fn the_first_screen_of_help_says_where_to_start() {
    let mut site = Site::empty();
    site.context.set("COLUMNS", "100");
    let help = site.succeeds(&["--help"]);
    insta::assert_snapshot!(help, @"
    Write, run and ship code nobody has to trust

    Usage: fluffy [OPTIONS] <COMMAND>
           fluffy [OPTIONS] \"TASK\"
           fluffy

    Commands:
      run           Work on a task while nobody watches; exits by how it ended
      replay        Play a recorded session: the model's side from the file, the rest for real
      session       Look at sessions of the agent; go on with one, or take it back
      acp           Serve an editor through the Agent Client Protocol, over standard input and output
      demo          Watch a recorded model work on a real repository, under real rules
      init          Write a starter policy for this project and open its ledger
      policy        Check, explain, test, try and apply policies
      sandbox       Run commands in isolation, and test the isolation
      layer         Look at what sandboxes wrote; merge it or drop it
      plugin        Install plugins and look after them
      channel       Let people give work and hear of it through an installed channel
      up            Run the platform on this machine, for yourself
      server        Run a server of the platform, for many
      node          Run instances on this machine for a cluster
      image         Make an image without an engine or a builder
      ledger        Look after the platform's ledger where it is stored
      manifest      Check and format `fluffy.toml`, which says what an app needs to run
      context       Choose which server, org, app and env commands of the platform are about
      doctor        Say how strongly this machine can isolate, and how to get more
      audit         Read the ledger, verify it, prove what it says
      config        Show the configuration and where each value comes from
      version       Print the version and what this build was made of
      completions   Print a completion script for your shell
      launch        Bring what is here to run: manifest, app, env and first deploy
      deploy        Make a release and roll it out, and watch it
      rollback      Return an env to an earlier release, and watch it
      scale         Show or set how many instances each process has
      status        Show how an env is: wanted and seen, routes, the last error
      wait          Wait until something that takes a while is done
      describe      Show one thing of any kind, with all that is known
      apps          Look after apps
      envs          Look after envs of an app
      projects      Group apps
      releases      Look after releases: an image and a manifest, for good
      deploys       Look at deploys; pause, resume or cancel one
      instances     Look at instances; restart one, run a command in one
      exec          Run a command in an instance; short for `instances exec`
      logs          Show what instances print
      routes        Look after routes: from a public port to a process
      ipv4          Give an env an IPv4 address, or take it back
      secrets       Set secrets of an env; values are never shown
      volumes       Look after volumes
      attachments   Mount volumes into processes
      snapshots     Back volumes up, and restore them
      restores      Look at restores of volumes
      events        Read what happened on the platform; rebuild, archive and verify it
      login         Log in to a server
      logout        Log out, and end the token
      whoami        Show who you are, and what you may do
      orgs          Look after orgs
      members       Ask people in, and change their roles
      principals    Look after service principals
      tokens        Issue and revoke API tokens
      grants        Give capabilities, and take them away
      approvals     Decide about commands that wait for a person
      quotas        Show and set limits of an org
      nodes         Look after the machines that run instances
      keys          Look after the keys that secrets are sealed with
      capabilities  Show what a server can do
      help          Print this message or the help of the given subcommand(s)

    Options:
          --json           Print stable JSON on standard output
      -q, --quiet          Say nothing but the result
      -v, --verbose        Say more about what happens
          --project <DIR>  Act as if started in this folder
      -h, --help           Print help
      -V, --version        Print version

    Start here:
      fluffy demo                                    watch an agent under rules, nothing to set up
      fluffy init                                    write a starter policy for this project
      fluffy \"add a test for parse_config\"           work on a task, test first; flags: run --help
      fluffy policy explain fs.write /src/lib.rs     ask what an agent may do, and why
      fluffy sandbox run -- make test                run a command that can harm nothing
      fluffy doctor                                  see how strongly this machine isolates
      fluffy audit verify                            prove that nobody touched the record

    Exit codes are the same everywhere: 0 success, 1 a check did not hold, 2 usage or an
    invalid file, 3 denied by policy, 4 not found, 5 conflict, 6 transient, 7 integrity
    failure, 8 waiting for a person, 9 done but unverified, 10 a budget ran out.
    ");
    // Without any word it is the same text, as an error of usage.
    let finished = site.ends(2, &[]);
    assert!(
        finished.stderr.contains("Start here:"),
        "{}",
        finished.stderr
    );
    assert_eq!(finished.stdout, "");
}

#[test]
fn every_command_has_help() {
    let site = Site::empty();
    for command in COMMANDS {
        let help = site.succeeds(&[*command, &["--help"]].concat());
        let usage = format!("Usage: fluffy {}", command.join(" "));
        assert!(help.contains(&usage), "{help}");
        assert!(help.contains("--json"), "{help}");
    }
    assert!(!site.state().exists());
}

#[test]
fn the_version_needs_nothing() {
    let site = Site::empty();
    let version = env!("CARGO_PKG_VERSION");
    let shown = site.succeeds(&["version"]);
    assert!(shown.starts_with(&format!("fluffy {version} (")), "{shown}");
    assert_eq!(site.succeeds(&["--version"]), format!("fluffy {version}\n"));
    assert_eq!(site.json(0, &["version"])["version"], version);
    let mut command = site.context.command();
    let bare = command.env_clear().arg("version").output().unwrap();
    assert!(bare.status.success(), "{bare:?}");
}

#[test]
fn what_does_not_exist_is_a_usage_error() {
    let site = Site::empty();
    for words in [
        ["nonsense"].as_slice(),
        &["policy", "nonsense"],
        &["version", "--nonsense"],
        &["audit", "prove"],
        &["audit", "prove", "minus one"],
        &["audit", "log", "--last", "-1"],
        &["policy", "decide", "fs.read", "/a", "--kind", "nobody"],
        &["policy", "decide", "fs.read", "/a", "--sandbox", "sbx_1"],
        &["policy", "decide", "fs.write", "/a", "--size", "1kb"],
        &["--quiet", "--verbose", "version"],
        &["completions", "nonsense"],
    ] {
        let finished = site.ends(2, words);
        assert_eq!(finished.stdout, "", "{words:?}");
        assert!(
            finished.stderr.starts_with("error: "),
            "{}",
            finished.stderr
        );
    }
    assert!(!site.state().exists());
}

#[test]
fn completions_are_what_the_shells_read() {
    let site = Site::empty();
    for shell in ["bash", "zsh", "fish"] {
        let script = site.succeeds(&["completions", shell]);
        assert!(script.contains("_FLUFFY_COMPLETE"), "{shell}\n{script}");
    }
    let script = site.succeeds(&["completions", "bash"]);
    assert!(is_bash(&script));
    // The control: bash does look at it.
    assert!(!is_bash(&format!("{script}\nif then fi (")));
    for (words, offered) in [
        (&["po"][..], "policy"),
        (&["audit", "check"], "check-proof"),
        (&["apps", "cre"], "create"),
        (&["members", "add", "a@b", "--role", "dev"], "developer"),
    ] {
        let shown = completed(&site, words);
        assert!(
            shown.lines().any(|line| line == offered),
            "{words:?}: {shown}"
        );
    }
    assert_eq!(completed(&site, &["nonsense", "x"]), "");
    assert!(!site.state().exists());
}

/// What bash is told when tab is pressed after these words.
pub(crate) fn completed(site: &Site, words: &[&str]) -> String {
    let mut command = site.context.command();
    command.args(["--", "fluffy"]).args(words);
    command.env("_FLUFFY_COMPLETE", "bash");
    command.env("_CLAP_COMPLETE_INDEX", words.len().to_string());
    command.env("_CLAP_IFS", "\n");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    String::from_utf8(output.stdout).unwrap()
}

fn is_bash(script: &str) -> bool {
    let mut bash = Command::new("bash");
    bash.arg("-n").stdin(Stdio::piped()).stderr(Stdio::null());
    let mut child = bash.spawn().unwrap();
    let written = child.stdin.take().unwrap().write_all(script.as_bytes());
    let status = child.wait().unwrap();
    written.is_ok() && status.success()
}

#[test]
fn every_result_is_json_when_asked() {
    let site = Site::prepared();
    site.context.write("a.yaml", "version: 1\n").unwrap();
    let table = "rules: []\ncases:\n  - { name: a, as: { name: x }, action: fs.read, resource: /a, expect: deny }\n";
    site.context.write("table.yaml", table).unwrap();
    site.succeeds(&["audit", "prove", "3", "-o", "proof.txt"]);
    for (code, words) in [
        (0, ["version"].as_slice()),
        (0, &["init"]),
        (0, &["policy", "check"]),
        (0, &["policy", "check", "a.yaml"]),
        (0, &["policy", "explain", "fs.read", "/a"]),
        (0, &["policy", "decide", "fs.read", "/a"]),
        (0, &["policy", "test", "table.yaml"]),
        (0, &["policy", "diff", "a.yaml", "a.yaml"]),
        (0, &["policy", "schema"]),
        (0, &["policy", "apply", "--yes"]),
        (0, &["policy", "apply", "--yes"]),
        (0, &["audit", "log", "--last", "1"]),
        (0, &["audit", "tail", "--from", "1", "--count", "1"]),
        (0, &["audit", "verify"]),
        (0, &["audit", "prove", "3"]),
        (0, &["audit", "prove", "3", "-o", "again.txt"]),
        (0, &["audit", "check-proof", "proof.txt"]),
        (0, &["audit", "export", "-o", "export.jsonl"]),
        (0, &["config", "show"]),
    ] {
        let value = site.json(code, words);
        assert!(value.is_object(), "{words:?}: {value}");
    }
    for words in [&["audit", "export", "--json"][..], &["demo", "--json"]] {
        for line in site.succeeds(words).lines() {
            serde_json::from_str::<serde_json::Value>(line).unwrap();
        }
    }
}

#[test]
fn every_error_is_json_when_asked() {
    let site = Site::initialised();
    site.context.write("bad.yaml", "version: 2\n").unwrap();
    for (code, words) in [
        (4, ["--project", "missing", "policy", "check"].as_slice()),
        (2, &["policy", "check", "bad.yaml"]),
        (
            4,
            &[
                "policy",
                "explain",
                "fs.read",
                "/a",
                "--policy",
                "missing.yaml",
            ],
        ),
        (4, &["policy", "test", "missing.yaml"]),
        (4, &["policy", "diff", "missing.yaml", "bad.yaml"]),
        (8, &["policy", "apply"]),
        (4, &["audit", "prove", "99"]),
        (4, &["audit", "check-proof", "missing.txt"]),
        (4, &["audit", "verify", "--ledger", "missing"]),
        (4, &["audit", "log", "--ledger", "missing"]),
        (1, &["audit", "export", "-o", "missing/export.jsonl"]),
    ] {
        let error = site.json_error(code, words);
        for field in ["code", "what", "why", "fix"] {
            assert!(!error[field].is_null(), "{words:?}: {error}");
        }
        assert!(
            !error["fix"].as_array().unwrap().is_empty(),
            "{words:?}: {error}"
        );
    }
}

#[test]
fn a_project_that_is_not_there_is_not_found() {
    let site = Site::empty();
    for command in [
        ["policy", "check"].as_slice(),
        &["init"],
        &["audit", "verify"],
    ] {
        let finished = site.ends(4, &[&["--project", "missing"], command].concat());
        assert!(
            finished.stderr.contains("cannot enter `missing`"),
            "{}",
            finished.stderr
        );
    }
    assert!(!site.project_file("missing").exists());
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let site = Site::prepared();
    for words in [
        ["--help"].as_slice(),
        &["completions", "bash"],
        &["policy", "schema"],
        &["audit", "log"],
        &["audit", "log", "--json"],
        &["audit", "export"],
        &["audit", "tail", "--from", "1", "--count", "7"],
        &["config", "show"],
        &["demo"],
    ] {
        // Nobody has the other end: every write fails, from the first on.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = site.context.command();
        let output = command.args(words).stdout(writer).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!stderr.contains("panicked"), "{words:?}\n{stderr}");
        assert_eq!(stderr, "", "{words:?}");
        assert!(
            output.status.code().is_some_and(|code| code == 0),
            "{words:?} {:?}",
            output.status
        );
    }
    // As a person types it, with a reader that takes the first line.
    let line = "\"$0\" audit export | head -1";
    let mut shell = Command::new("bash");
    let program = env!("CARGO_BIN_EXE_fluffy");
    shell
        .args(["-o", "pipefail", "-c", line, program])
        .env_clear();
    shell.envs(
        site.context
            .command()
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    let output = shell.current_dir(site.context.project()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        output.stdout.iter().filter(|byte| **byte == b'\n').count(),
        1
    );
}

#[test]
fn colours_are_for_terminals_only() {
    let mut site = Site::prepared();
    let words: &[&[&str]] = &[
        &["policy", "explain", "fs.read", "/.env"],
        &["audit", "log"],
        &["policy", "check", "missing.yaml"],
        &["demo"],
    ];
    let colourful = |site: &Site, words: &[&str]| site.run(words).transcript().contains('\u{1b}');
    for words in words {
        assert!(!colourful(&site, words), "{words:?} with NO_COLOR");
        let mut piped = site.context.command();
        let output = piped.env_remove("NO_COLOR").args(*words).output().unwrap();
        assert!(
            !output.stdout.contains(&0x1b) && !output.stderr.contains(&0x1b),
            "{words:?}"
        );
    }
    // The control: who insists gets them, even in a pipe.
    site.context.set("FLUFFY_UI_COLOR", "always");
    site.context.set("NO_COLOR", "");
    assert!(colourful(&site, words[0]));
}

#[test]
fn quiet_says_only_the_result() {
    let site = Site::empty();
    let finished = site.ends(0, &["init", "--quiet"]);
    assert_eq!(finished.stderr, "");
    assert!(
        finished.stdout.contains("public key"),
        "{}",
        finished.stdout
    );
    // Errors are no talk.
    assert!(
        site.ends(4, &["policy", "check", "missing.yaml", "-q"])
            .stderr
            .contains("missing.yaml")
    );
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let site = Site::prepared();
    for words in [
        ["audit", "log"].as_slice(),
        &["audit", "export"],
        &["policy", "schema"],
    ] {
        let full = std::fs::File::options()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let output = site
            .context
            .command()
            .args(words)
            .stdout(full)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}");
    }
}
