//! `fluffy doctor`: what this machine can do, as root and as anybody else.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::Value;

use crate::site::Site;

#[test]
fn every_tier_is_named_and_the_default_works() {
    let site = Site::empty();
    let report: Value = serde_json::from_str(&site.succeeds(&["doctor", "--json"])).unwrap();
    assert_eq!(report["default_works"], true);
    let tiers = report["tiers"].as_array().unwrap();
    let names: Vec<&str> = tiers
        .iter()
        .map(|line| line["tier"].as_str().unwrap())
        .collect();
    for tier in ["wasm", "process", "container", "microvm"] {
        assert!(names.contains(&tier), "{names:?}");
    }
    // What is missing says why.
    for line in tiers.iter().filter(|line| line["works"] == false) {
        assert!(!line["why"].as_str().unwrap().is_empty(), "{line}");
    }
    let default: Vec<&Value> = tiers
        .iter()
        .filter(|line| line["default"] == true)
        .collect();
    assert_eq!(default.len(), 1);
    assert_eq!(report["health"]["policy"]["ok"], true);
    let text = site.succeeds(&["doctor"]);
    for word in ["TIER", "native", "kernel", "landlock", "ledger", "policy"] {
        assert!(text.contains(word), "{text}");
    }
}

/// An ordinary user needs no set-up, no group and no helper.
#[test]
fn an_ordinary_user_has_it_too() {
    let site = Site::empty();
    let root = site.context.home().parent().unwrap().to_owned();
    let program = root.join("fluffy");
    if std::fs::hard_link(env!("CARGO_BIN_EXE_fluffy"), &program).is_err() {
        std::fs::copy(env!("CARGO_BIN_EXE_fluffy"), &program).unwrap();
    }
    std::fs::set_permissions(&root, PermissionsExt::from_mode(0o755)).unwrap();
    for folder in [
        site.context.home(),
        site.context.project(),
        root.join("tmp"),
    ] {
        std::os::unix::fs::chown(&folder, Some(12_345), Some(12_345)).unwrap();
    }
    let run = |arguments: &[&str]| {
        let inner = site.context.command();
        let output = Command::new("setpriv")
            .args([
                "--reuid",
                "12345",
                "--regid",
                "12345",
                "--clear-groups",
                "--",
            ])
            .arg(&program)
            .args(arguments)
            .env_clear()
            .envs(
                inner
                    .get_envs()
                    .filter_map(|(name, value)| Some((name, value?))),
            )
            .current_dir(site.context.project())
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (
            output.status.code(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    let (code, stdout, stderr) = run(&["doctor", "--json"]);
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    let (code, stdout, stderr) = run(&[
        "sandbox",
        "run",
        "--merge",
        "--",
        "sh",
        "-c",
        "id -u; touch new",
    ]);
    assert_eq!((code, stdout.as_str()), (Some(0), "1000\n"), "{stderr}");
    assert!(site.context.project().join("new").exists());
    // Where nothing else is allowed, and without any privilege to give up.
    let (code, stdout, stderr) = run(&["sandbox", "run", "--engine", "reduced", "--", "id", "-u"]);
    assert_eq!((code, stdout.as_str()), (Some(0), "12345\n"), "{stderr}");
    let bomb = "i=0; while [ $i -lt 700 ]; do sleep 300 & i=$((i+1)); done; wait";
    let words = ["sandbox", "run", "--engine", "reduced", "--json", "--"];
    let (_, _, stderr) = run(&[&words[..], &["sh", "-c", bomb]].concat());
    assert!(stderr.contains(r#""limit":"pids""#), "{stderr}");
}
