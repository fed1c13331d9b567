//! `fluffy launch` and `manifest diff --release` against the real server.

use super::stage::{Stage, Typist};

#[test]
fn a_folder_becomes_something_that_runs_and_can_be_compared() {
    let stage = Stage::set();
    let site = &stage.site;
    let error = site.json_error(2, &["launch", "--no-input"]);
    assert_eq!(error["what"], "which image?", "{error}");
    let words = ["launch", "--name", "shop", "--memory", "64MiB"];
    let words = [&words[..], &["--port", "8080", "--image", &stage.image]].concat();
    let launched = site.ends(0, &words);
    assert!(launched.stdout.contains("succeeded"), "{launched:?}");
    assert!(
        launched.stderr.contains("wrote fluffy.toml"),
        "{launched:?}"
    );
    let ready = site.json(0, &["instances", "list", "--env", "dev"]);
    assert_eq!(ready["items"][0]["process"], "web", "{ready}");
    // Again it is a deploy like any other, of the file that is there.
    let again = site.ends(0, &["launch"]);
    assert!(!again.stderr.contains("wrote"), "{again:?}");
    assert!(!again.stderr.contains("made"), "{again:?}");
    let releases = site.json(0, &["releases", "list"]);
    let release = releases["items"][0]["id"].as_str().unwrap();
    let same = site.succeeds(&["manifest", "diff", "--release", release]);
    assert_eq!(same, "They say the same.\n");
    let file = site.project_file("fluffy.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("64MiB", "128MiB")).unwrap();
    let differs = site.json(0, &["manifest", "diff", "--release", release]);
    assert_eq!(differs["changes"].as_array().unwrap().len(), 1, "{differs}");
    assert_eq!(
        differs["changes"][0]["field"],
        "processes.web.resources.memory"
    );
    assert_eq!(differs["changes"][0]["before"], 64 << 20);
    site.ends(2, &["manifest", "diff"]);
    site.ends(
        4,
        &[
            "manifest",
            "diff",
            "--release",
            "rel_01ARZ3NDEKTSV4RRFFQ69G5FAV",
        ],
    );
    stage.running.end();
}

#[test]
fn what_flags_do_not_say_is_asked() {
    let stage = Stage::set();
    let script = "@fluffy launch --env staging\necho code $?\n";
    let mut person = Typist::start(&stage.site, script);
    person.answer("name [", "shop\n");
    person.answer("Its image:", &format!("{}\n", stage.image));
    person.answer("if any:", "8080\n");
    person.until("", "code 0");
    let text = std::fs::read_to_string(stage.site.project_file("fluffy.toml")).unwrap();
    assert!(text.contains("internal = 8080"), "{text}");
    let health = "health = { type = \"tcp\", port = 8080 }";
    assert!(text.contains(health), "{text}");
    let envs = stage.site.succeeds(&["envs", "list"]);
    assert!(envs.contains("staging"), "{envs}");
}
