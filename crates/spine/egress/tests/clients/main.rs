//! Real programs through the proxy: curl, git, pip, npm, cargo, openssl.
//!
//! They get nothing but the variables of `environment`, as inside a sandbox,
//! and reach a site of ours that is called `registry.test` and is on this
//! machine. `site.py` makes and serves it. Start in `support`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

mod support;

use std::collections::BTreeSet;
use std::fs;

use fluffy_egress::Reason;
use fluffy_egress::record::Verdict;

use support::Stage;

#[tokio::test(flavor = "multi_thread")]
async fn curl_over_tls_and_without() {
    let stage = Stage::start(&[]);
    let page = |url: String| stage.run("curl", &["-sS", "--fail", &url]);
    assert_eq!(page(stage.https("page")).stdout, "a page");
    assert_eq!(page(stage.http("page")).stdout, "a page");
    assert_eq!(page(stage.https("large")).stdout.len(), 3_000_000);
    let records = stage.records(3);
    assert_eq!(records.len(), 3);
    assert!(
        records
            .iter()
            .all(|record| record.verdict == Verdict::Allowed)
    );
    assert!(records[2].bytes_down > 3_000_000);
    assert!(
        records.iter().all(|record| record.reason.is_none()),
        "{records:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_sends_bodies_of_both_sorts() {
    let stage = Stage::start(&[]);
    let path = stage.file("body", &"abc\r\n".repeat(50_000));
    let digest = stage.run("sha256sum", &[&path]).stdout;
    let (digest, _) = digest.split_once(' ').unwrap();
    let upload = format!("@{path}");
    for header in [
        "Content-Type: x",
        "Transfer-Encoding: chunked",
        "Expect: 100-continue",
    ] {
        for url in [stage.http("post"), stage.https("post")] {
            let sent = stage.run(
                "curl",
                &[
                    "-sS",
                    "--fail",
                    "--data-binary",
                    &upload,
                    "-H",
                    header,
                    &url,
                ],
            );
            assert_eq!(sent.stdout, digest, "{header} {url}");
        }
    }
    let head = stage
        .run("curl", &["-sS", "--head", &stage.http("large")])
        .stdout;
    assert!(head.contains("Content-Length: 3000000"), "{head}");
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_is_told_what_is_not_allowed() {
    let stage = Stage::start(&[]);
    let refused = stage.run("curl", &["-sS", "https://elsewhere.test/"]);
    assert!(refused.stderr.contains("403"), "{}", refused.stderr);
    let refused = stage.run("curl", &["-sS", "http://elsewhere.test/"]);
    assert!(
        refused.stdout.contains("no rule allows this sandbox"),
        "{}",
        refused.stdout
    );
    // An allowed page that leads to this machine's other name leads nowhere.
    let redirected = stage.run("curl", &["-sS", "-L", &stage.http("away")]);
    assert!(
        redirected.stdout.contains("no rule allows"),
        "{}",
        redirected.stdout
    );
    // Control: where the other name is allowed, the redirect is followed.
    let stage = Stage::start(&["inner.test"]);
    let redirected = stage.run("curl", &["-sS", "-L", &stage.http("away")]);
    assert_eq!(redirected.stdout, "a page");
}

#[tokio::test(flavor = "multi_thread")]
async fn openssl_must_name_the_host_it_was_allowed() {
    let stage = Stage::start(&[]);
    let connect = |name: &[&str]| {
        let target = format!("registry.test:{}", stage.https_port());
        let proxy = format!("127.0.0.1:{}", stage.proxy_port());
        let common = ["s_client", "-proxy", &proxy, "-connect", &target, "-brief"];
        stage.run("openssl", &[&common, name].concat())
    };
    let right = connect(&["-servername", "registry.test"]);
    assert!(
        right.stderr.contains("CONNECTION ESTABLISHED"),
        "{}",
        right.stderr
    );
    let wrong = connect(&["-servername", "evil.test"]);
    assert!(wrong.stderr.contains("alert"), "{}", wrong.stderr);
    let none = connect(&["-noservername"]);
    assert!(none.stderr.contains("alert"), "{}", none.stderr);
    let records = stage.records(3);
    let codes: BTreeSet<_> = records
        .iter()
        .map(|record| record.reason.as_ref().map(Reason::code))
        .collect();
    let expected = [None, Some("other_server_name"), Some("no_server_name")];
    assert_eq!(codes, BTreeSet::from(expected));
}

#[tokio::test(flavor = "multi_thread")]
async fn git_clones() {
    let stage = Stage::start(&[]);
    let to = stage.path("clone");
    let cloned = stage.run("git", &["clone", "-q", &stage.https("repo.git"), &to]);
    assert!(cloned.success, "{}", cloned.stderr);
    assert_eq!(
        fs::read_to_string(format!("{to}/README")).unwrap(),
        "from git"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn pip_installs() {
    let stage = Stage::start(&[]);
    let to = stage.path("packages");
    let index = stage.https("simple/");
    let options = [
        "-m",
        "pip",
        "install",
        "-q",
        "--disable-pip-version-check",
        "--no-cache-dir",
    ];
    let rest = ["--index-url", &index, "--target", &to, "tiny"];
    let installed = stage.run("python3", &[&options[..], &rest].concat());
    assert!(installed.success, "{}", installed.stderr);
    let module = fs::read_to_string(format!("{to}/tiny.py")).unwrap();
    assert!(module.contains("from pip"));
}

#[tokio::test(flavor = "multi_thread")]
async fn npm_installs() {
    let stage = Stage::start(&[]);
    let to = stage.path("project");
    fs::create_dir(&to).unwrap();
    let registry = stage.https("npm/");
    let options = ["install", "--no-audit", "--no-fund", "--no-update-notifier"];
    let rest = ["--prefix", &to, "--registry", &registry, "tiny"];
    let installed = stage.run("npm", &[&options[..], &rest].concat());
    assert!(installed.success, "{}", installed.stderr);
    let module = fs::read_to_string(format!("{to}/node_modules/tiny/index.js")).unwrap();
    assert!(module.contains("from npm"));
}

#[tokio::test(flavor = "multi_thread")]
async fn cargo_fetches() {
    let stage = Stage::start(&[]);
    let to = stage.path("project");
    fs::create_dir_all(format!("{to}/src")).unwrap();
    fs::create_dir_all(format!("{to}/.cargo")).unwrap();
    fs::write(format!("{to}/src/lib.rs"), "").unwrap();
    let manifest = "[package]\nname = \"user\"\nversion = \"0.1.0\"\n\n\
                    [dependencies]\ntiny = { version = \"0.1\", registry = \"ours\" }\n";
    fs::write(format!("{to}/Cargo.toml"), manifest).unwrap();
    let index = stage.https("index/");
    let config = format!("[registries.ours]\nindex = \"sparse+{index}\"\n");
    fs::write(format!("{to}/.cargo/config.toml"), config).unwrap();
    let fetched = stage.run_in(&to, env!("CARGO"), &["fetch"]);
    assert!(fetched.success, "{}", fetched.stderr);
    let lock = fs::read_to_string(format!("{to}/Cargo.lock")).unwrap();
    assert!(lock.contains("registry.test"), "{lock}");
    assert!(
        stage
            .records(1)
            .iter()
            .all(|record| record.verdict == Verdict::Allowed)
    );
}
