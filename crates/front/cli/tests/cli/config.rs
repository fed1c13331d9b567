//! `fluffy config show`: every layer, and what is refused at its place.

use std::fs;

use crate::site::Site;

fn user_config(site: &Site, text: &str) {
    let folder = site.context.home().join(".config/fluffy");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("config.toml"), text).unwrap();
}

#[test]
fn every_value_says_which_layer_it_comes_from() {
    let mut site = Site::empty();
    user_config(
        &site,
        "[budget]\nturns = 40\ntool_calls = 30\n\n[ui]\ncolor = \"never\"\n",
    );
    let project = "[budget]\nturns = 20\n\n[tests]\ncommand = [\"cargo\", \"test\"]\n";
    site.context.write(".fluffy/config.toml", project).unwrap();
    site.context.set("FLUFFY_LEDGER_RETENTION_DAYS", "30");
    let value = site.json(0, &["config", "show"]);
    let layer = |key: &str| {
        value["config"][key]["origin"]["layer"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(layer("budget.tokens"), "default");
    assert_eq!(layer("budget.tool_calls"), "user");
    assert_eq!(layer("budget.turns"), "project");
    assert_eq!(layer("tests.command"), "project");
    assert_eq!(layer("ledger.retention_days"), "environment");
    assert_eq!(value["config"]["budget.turns"]["value"], "20");
    assert_eq!(value["config"]["budget.turns"]["origin"]["line"], 2);
    let shown = site.succeeds(&["config", "show", "--origin"]);
    let row = |key: &str| {
        let line = shown.lines().find(|line| line.starts_with(key)).unwrap();
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(row("KEY"), ["KEY", "VALUE", "FROM"]);
    assert_eq!(row("budget.tokens")[2], "default");
    assert!(
        row("budget.tool_calls")[2].ends_with(".config/fluffy/config.toml:3"),
        "{shown}"
    );
    assert!(
        row("budget.turns")[2].ends_with(".fluffy/config.toml:2"),
        "{shown}"
    );
    assert_eq!(
        row("ledger.retention_days")[2],
        "FLUFFY_LEDGER_RETENTION_DAYS"
    );
    let plain = site.succeeds(&["config", "show"]);
    assert!(
        plain.starts_with("KEY") && !plain.contains("FROM"),
        "{plain}"
    );
}

#[test]
fn an_unknown_key_is_refused_with_its_place_and_a_suggestion() {
    let site = Site::empty();
    user_config(
        &site,
        "[ui]\ncolor = \"never\"\n\n[ledger]\n  retention_dayz = 3\n",
    );
    let finished = site.ends(2, &["config", "show"]);
    assert!(
        finished.stderr.contains("config.toml:5:3\n"),
        "{}",
        finished.stderr
    );
    assert!(
        finished
            .stderr
            .contains("did you mean `ledger.retention_days`?"),
        "{}",
        finished.stderr
    );
    let error = site.json_error(2, &["config", "show"]);
    assert_eq!(
        (&error["at"][0]["line"], &error["at"][0]["column"]),
        (&5.into(), &3.into())
    );
    // What is in doubt is not used by half: no other command goes on either.
    site.ends(2, &["policy", "decide", "fs.read", "/a"]);
    site.ends(0, &["version"]);
}

#[test]
fn a_project_may_not_set_what_could_hurt_its_user() {
    for text in [
        "model = \"somebody/model\"\n",
        "[ledger]\npath = \"/tmp/elsewhere\"\n",
        "[ledger]\nwitness = [\"/tmp/elsewhere\"]\n",
        "[budget]\nturns = 9999\n",
        "[providers.mine]\nbase_url = \"https://evil.example.com\"\n",
    ] {
        let site = Site::empty();
        site.context.write(".fluffy/config.toml", text).unwrap();
        let finished = site.ends(2, &["config", "show"]);
        assert!(
            finished.stderr.contains(".fluffy/config.toml:"),
            "{text}\n{}",
            finished.stderr
        );
        assert!(
            finished.stderr.contains("  fix: "),
            "{text}\n{}",
            finished.stderr
        );
    }
    // The control: the user may.
    let site = Site::empty();
    user_config(&site, "model = \"somebody/model\"\n");
    let value = site.json(0, &["config", "show"]);
    assert_eq!(value["config"]["model"]["value"], "somebody/model");
}

#[test]
fn a_misspelt_variable_is_a_warning_without_its_value() {
    let mut site = Site::empty();
    site.context.set("FLUFFY_UI_COLOUR", "marked-value");
    let finished = site.ends(0, &["config", "show"]);
    assert!(
        finished.stderr.contains("did you mean `FLUFFY_UI_COLOR`?"),
        "{}",
        finished.stderr
    );
    assert!(!finished.transcript().contains("marked-value"));
}

#[test]
fn a_file_that_is_not_toml_is_refused_at_its_place() {
    let site = Site::empty();
    user_config(&site, "[ui]\ncolor = \n");
    let finished = site.ends(2, &["config", "show"]);
    assert!(
        finished.stderr.contains("config.toml:2:"),
        "{}",
        finished.stderr
    );
}
