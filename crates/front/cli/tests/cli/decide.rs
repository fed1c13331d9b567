//! `fluffy policy decide`: the exit code is the answer, and it is recorded.

use rusqlite::Connection;

use crate::site::Site;

#[test]
fn the_exit_code_is_the_decision_and_the_ledger_has_it() {
    let site = Site::initialised();
    for (number, (action, resource, code, word)) in [
        ("fs.read", "/src/lib.rs", 0, "allow"),
        ("fs.read", "/.env", 3, "deny"),
        ("fs.write", "/Cargo.toml", 8, "require_review"),
        ("nothing.like", "/a", 3, "deny"),
        ("fs.read", "/../a", 3, "deny"),
    ]
    .into_iter()
    .enumerate()
    {
        let finished = site.decide(action, resource);
        assert_eq!(finished.code, Some(code), "{}", finished.transcript());
        let seq = number + 2;
        let first = format!("{word} (event {seq})\n");
        assert!(finished.stdout.starts_with(&first), "{}", finished.stdout);
        let log = site.succeeds(&["audit", "log", "--last", "1"]);
        assert!(log.contains("policy.decision"), "{log}");
        assert!(log.contains(&format!("{word} {action}")), "{log}");
    }
}

#[test]
fn an_allow_is_on_disk_when_the_command_has_ended() {
    let site = Site::initialised();
    let finished = site.decide("fs.read", "/unusual-name.rs");
    assert_eq!(finished.code, Some(0));
    // Straight from the file, without anything of ours that could repair it.
    let database = Connection::open(site.database()).unwrap();
    let payload: String = database
        .query_row(
            "SELECT payload FROM events ORDER BY seq DESC LIMIT 1",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert!(payload.contains("/unusual-name.rs"), "{payload}");
    assert!(payload.contains("\"decision\":\"allow\""), "{payload}");
}

#[test]
fn reasons_and_position_are_in_the_json() {
    let site = Site::initialised();
    let value = site.json(3, &["policy", "decide", "fs.read", "/.env"]);
    assert_eq!(value["decision"], "deny");
    assert_eq!(value["seq"], 2);
    assert_eq!(
        value["reasons"][0],
        "Secrets are never read into a conversation"
    );
}

#[test]
fn nothing_is_assumed_about_a_real_request() {
    let site = Site::initialised();
    // The starter allows writes only in a sandbox, and a size that is not
    // given may be any size.
    site.ends(8, &["policy", "decide", "fs.write", "/src/lib.rs"]);
    assert_eq!(site.decide("fs.write", "/src/lib.rs").code, Some(0));
}

#[test]
fn only_the_policy_in_force_decides() {
    let site = Site::initialised();
    site.context.write("draft.yaml", "version: 1\n").unwrap();
    let before = site.events();
    let words = [
        "policy",
        "decide",
        "fs.read",
        "/a",
        "--policy",
        "draft.yaml",
    ];
    let error = site.json_error(2, &words);
    assert!(
        error["what"]
            .as_str()
            .unwrap()
            .contains("the policy in force"),
        "{error}"
    );
    assert_eq!(site.events(), before);
}

#[test]
fn a_decision_needs_no_init() {
    let site = Site::empty();
    assert_eq!(site.decide("fs.read", "/src/lib.rs").code, Some(0));
    assert_eq!(site.events(), 1);
}

#[test]
fn decisions_of_many_processes_make_one_chain() {
    let site = Site::initialised();
    let children: Vec<_> = (0..8)
        .map(|number| {
            let mut command = site.context.command();
            command.args(["policy", "decide", "fs.read", &format!("/file-{number}")]);
            command.stdout(std::process::Stdio::null()).spawn().unwrap()
        })
        .collect();
    for mut child in children {
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
    assert_eq!(site.events(), 9);
}

#[test]
fn a_decision_that_cannot_be_recorded_is_none() {
    let site = Site::initialised();
    std::fs::remove_dir_all(site.ledger()).unwrap();
    std::fs::write(site.ledger(), "a file where the folder was").unwrap();
    let finished = site.decide("fs.read", "/src/lib.rs");
    assert!(
        !matches!(finished.code, Some(0) | None),
        "{}",
        finished.transcript()
    );
    assert!(
        !finished.stdout.contains("allow"),
        "{}",
        finished.transcript()
    );
    assert!(
        finished.stderr.contains("  fix: "),
        "{}",
        finished.transcript()
    );
}
