//! `fluffy sandbox run --tier container` with real engines.

use fluffy_test_kit::{EngineKind, TestEngine, record_skip};

use crate::site::Site;

fn site(kind: EngineKind) -> Option<Site> {
    let socket = match kind.for_tests().unwrap() {
        TestEngine::At(socket) => socket,
        TestEngine::Impossible(reason) => {
            record_skip(
                &format!("sandbox run --tier container ({})", kind.name()),
                &reason,
            );
            return None;
        }
    };
    let mut site = Site::empty();
    site.context
        .set("DOCKER_HOST", &format!("unix://{}", socket.display()));
    Some(site)
}

#[test]
fn a_container_is_like_any_other_sandbox() {
    for kind in [EngineKind::Docker, EngineKind::Podman] {
        let Some(site) = site(kind) else { continue };
        site.context.write("old.txt", "one\n").unwrap();
        let script = "id -u; cat old.txt; echo two >> old.txt; echo err >&2; exit 0";
        let words = ["sandbox", "run", "--tier", "container", "--merge", "--json"];
        let words = [&words[..], &["--", "sh", "-c", script]].concat();
        let finished = site.ends(0, &words);
        assert_eq!(finished.stdout, "1000\none\n", "{}", kind.name());
        assert!(
            finished.stderr.contains("\"tier\":\"container\""),
            "{}",
            finished.stderr
        );
        let file = site.context.project().join("old.txt");
        assert_eq!(std::fs::read_to_string(file).unwrap(), "one\ntwo\n");
        let words = [
            "sandbox",
            "run",
            "--tier",
            "container",
            "--time",
            "2s",
            "--",
            "sleep",
            "60",
        ];
        site.ends(124, &words);
        let doctor = site.succeeds(&["doctor"]);
        assert!(doctor.contains(kind.name()), "{doctor}");
    }
}

#[test]
fn without_an_engine_it_says_how_to_get_one() {
    let mut site = Site::empty();
    site.context
        .set("DOCKER_HOST", "unix:///nowhere/engine.sock");
    let words = ["sandbox", "run", "--tier", "container", "--", "true"];
    let finished = site.ends(125, &words);
    assert!(finished.stderr.contains("fix:"), "{}", finished.stderr);
    assert_eq!(site.layers(&[]), Vec::<serde_json::Value>::new());
}
