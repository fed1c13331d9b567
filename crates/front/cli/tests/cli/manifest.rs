//! `fluffy manifest`: what a person reads about a wrong file, and its one form.

use std::fs;

use crate::site::Site;

const GOOD: &str = r#"schema_version = "v1"

[app]
name = "shop"

[image]
ref = "registry.example.com/shop:1"

[processes.web]
command = ["/bin/shop"]
resources = { memory = "128MiB" }
ports = [{ internal = 8080 }]
"#;

#[test]
fn every_problem_of_a_manifest_is_shown_at_its_place() {
    let site = Site::empty();
    let bad = r#"schema_version = "v1"
[processes.db]
replicas = 2
resources = { memory = "128Mi" }
mounts = [{ volume = "data", path = "/data" }]
colour = "blue"
[[volumes]]
name = "data"
size = "1GiB"
"#;
    site.context.write("fluffy.toml", bad).unwrap();
    let finished = site.ends(2, &["manifest", "validate"]);
    assert_eq!(finished.stdout, "");
    insta::assert_snapshot!(finished.stderr, @"
    error: `fluffy.toml` has 3 errors
      --> fluffy.toml:3:12
       |
     3 | replicas = 2
       |            ^ E_VOLUME_REPLICA_LIMIT
      --> fluffy.toml:4:24
       |
     4 | resources = { memory = \"128Mi\" }
       |                        ^ E_UNIT
      --> fluffy.toml:6:1
       |
     6 | colour = \"blue\"
       | ^ E_UNKNOWN_FIELD
      why: line 3: process type 'db' has volume mounts and cannot have replicas > 1
      why: line 4: `128Mi` is not a size
      why: line 6: there is no field `processes.db.colour`
      fix: line 3: use one instance, or remove its mounts
      fix: line 4: write `128MiB`
    ");
    let error = site.json_error(2, &["manifest", "validate", "fluffy.toml"]);
    assert_eq!(error["code"], "manifest_invalid");
    let codes: Vec<&str> = (error["errors"].as_array().unwrap().iter())
        .map(|problem| problem["code"].as_str().unwrap())
        .collect();
    assert_eq!(
        codes,
        ["E_VOLUME_REPLICA_LIMIT", "E_UNIT", "E_UNKNOWN_FIELD"]
    );
    assert_eq!(error["errors"][2]["line"], 6);
    assert_eq!(error["errors"][2]["column"], 1);
}

#[test]
fn a_good_manifest_is_found_from_a_folder_below() {
    let site = Site::empty();
    site.ends(4, &["manifest", "validate"]);
    site.context.write("fluffy.toml", GOOD).unwrap();
    site.context.write("src/deep/lib.rs", "").unwrap();
    let shown = site.succeeds(&["--project", "src/deep", "manifest", "validate"]);
    assert_eq!(shown, "fluffy.toml is valid: 1 process (web)\n");
    let value = site.json(0, &["manifest", "validate"]);
    assert_eq!(value["processes"][0], "web");
    // What is too large or not text is refused, not read on.
    fs::write(site.project_file("latin1.toml"), [b'#', 0xe4]).unwrap();
    site.ends(2, &["manifest", "validate", "latin1.toml"]);
    let large = "#".repeat(70 << 10);
    site.context.write("large.toml", &large).unwrap();
    let error = site.json_error(2, &["manifest", "validate", "large.toml"]);
    assert_eq!(error["errors"][0]["code"], "E_LENGTH");
    site.ends(4, &["manifest", "validate", "missing.toml"]);
}

#[test]
fn the_one_form_is_checked_and_written() {
    let site = Site::empty();
    let odd = GOOD.replace("name = \"shop\"", "name=   \"shop\" # ours");
    site.context.write("fluffy.toml", &odd).unwrap();
    let finished = site.ends(1, &["manifest", "fmt", "--check"]);
    assert!(
        finished.stderr.contains("fluffy manifest fmt"),
        "{}",
        finished.stderr
    );
    assert_eq!(
        fs::read_to_string(site.project_file("fluffy.toml")).unwrap(),
        odd
    );
    assert_eq!(site.json(0, &["manifest", "fmt"])["written"], true);
    let written = fs::read_to_string(site.project_file("fluffy.toml")).unwrap();
    assert!(written.contains("name = \"shop\" # ours\n"), "{written}");
    site.succeeds(&["manifest", "fmt", "--check"]);
    site.context.write("broken.toml", "a = \n").unwrap();
    site.ends(2, &["manifest", "fmt", "broken.toml"]);
}

#[test]
fn two_manifests_differ_by_what_they_mean() {
    let site = Site::empty();
    site.context.write("fluffy.toml", GOOD).unwrap();
    let spelt_otherwise = GOOD.replace("[{ internal", "[ { name = \"p8080\", internal");
    site.context.write("same.toml", &spelt_otherwise).unwrap();
    assert_eq!(
        site.succeeds(&["manifest", "diff", "same.toml"]),
        "They say the same.\n"
    );
    let old = GOOD.replace("128MiB", "64MiB").replace("shop:1", "shop:0");
    site.context.write("old.toml", &old).unwrap();
    insta::assert_snapshot!(site.succeeds(&["manifest", "diff", "old.toml", "fluffy.toml"]), @"
    FIELD                           BEFORE                       AFTER
    image.ref                       registry.example.com/shop:0  registry.example.com/shop:1
    processes.web.resources.memory  64MiB                        128MiB
    ");
    let value = site.json(0, &["manifest", "diff", "old.toml"]);
    assert_eq!(
        (&value["api_version"], &value["kind"]),
        (&serde_json::json!("v1"), &serde_json::json!("ManifestDiff"))
    );
    assert_eq!(value["changes"][0]["field"], "image.ref");
    assert_eq!(value["changes"][1]["before"], 64 << 20);
}

#[test]
fn the_schema_is_printed_for_editors() {
    let site = Site::empty();
    let schema = site.json(0, &["manifest", "schema"]);
    assert_eq!(schema["title"], "fluffy.toml");
    assert_eq!(schema["properties"]["schema_version"]["const"], "v1");
}
