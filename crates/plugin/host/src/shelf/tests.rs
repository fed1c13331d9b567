//! Plugins that are put on the shelf, changed behind its back and taken away.

use fluffy_test_kit::permit;

use super::*;

const MANIFEST: &str = "\
name: sample
version: 1.2.0
type: tool
engine: \">=0.1\"
api: 1
capabilities: [ \"kv.*\" ]
execution: { tier: process, command: [ \"./run\" ], protocol: mcp }
";

fn source() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(FILE), MANIFEST).unwrap();
    std::fs::write(folder.path().join("run"), "#!/bin/sh").unwrap();
    folder
}

fn record(examined: &Examined) -> Record {
    Record::new(examined, vec!["kv.*".to_owned()], "here")
}

fn install(shelf: &Shelf, source: &Path) -> Placed {
    let record = record(&examine(source).unwrap());
    let allowed = permit("plugins.install", Some("sample"));
    shelf.install(allowed, source, &record).unwrap()
}

#[test]
fn what_is_installed_is_found_switched_and_removed() {
    let (root, source) = (tempfile::tempdir().unwrap(), source());
    let shelf = Shelf::open(root.path()).unwrap();
    assert!(shelf.list().unwrap().is_empty());
    let placed = install(&shelf, source.path());
    assert_eq!(shelf.find("sample").unwrap().record, placed.record);
    std::fs::write(placed.home.join("kept"), "mine").unwrap();

    // A new version beside the old one, whose files stay until nobody runs it.
    std::fs::write(source.path().join("run"), "#!/bin/sh\nexit").unwrap();
    let newer = install(&shelf, source.path());
    assert!(placed.files.exists() && newer.files != placed.files);
    shelf.tidy("sample");
    assert!(!placed.files.exists() && newer.files.exists());

    let off = permit("plugins.disable", Some("sample"));
    shelf
        .switch(off, "sample", Some("too loud".to_owned()))
        .unwrap();
    assert_eq!(
        shelf.record("sample").unwrap().disabled.as_deref(),
        Some("too loud")
    );
    let on = permit("plugins.enable", Some("sample"));
    shelf.switch(on, "sample", None).unwrap();

    let remove = || permit("plugins.remove", Some("sample"));
    shelf.remove(remove(), "sample", Belongings::Keep).unwrap();
    assert!(newer.home.join("kept").exists() && !newer.files.exists());
    assert!(shelf.list().unwrap().is_empty());
    install(&shelf, source.path());
    shelf
        .remove(remove(), "sample", Belongings::Remove)
        .unwrap();
    assert!(!newer.home.exists());
    assert!(
        shelf
            .remove(remove(), "sample", Belongings::Remove)
            .is_err()
    );
}

#[test]
fn what_is_not_what_was_reviewed_is_rejected_and_hides_no_other() {
    let (root, source) = (tempfile::tempdir().unwrap(), source());
    let shelf = Shelf::open(root.path()).unwrap();
    let placed = install(&shelf, source.path());
    std::fs::write(placed.files.join("run"), "#!/bin/sh\nrm -rf /").unwrap();
    let found = shelf.list().unwrap();
    assert!(matches!(found[0].placed, Err(ExamineError::Changed)));

    // Between the review and the installation.
    let reviewed = record(&examine(source.path()).unwrap());
    std::fs::write(source.path().join("more"), "").unwrap();
    let allowed = permit("plugins.install", Some("sample"));
    let refused = shelf.install(allowed, source.path(), &reviewed);
    assert!(matches!(
        refused,
        Err(ChangeShelfError::Examine(ExamineError::Changed))
    ));

    let good = install(&shelf, source.path());
    for (name, text) in [("broken", "{"), ("other", "{\"v\": 9}"), ("Bad Name", "")] {
        let folder = root.path().join("installed").join(name);
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join(RECORD), text).unwrap();
    }
    let found = shelf.list().unwrap();
    let good_ones = found.iter().filter(|one| one.placed.is_ok()).count();
    assert_eq!((found.len(), good_ones), (4, 1));
    assert_eq!(shelf.find("sample").unwrap().record, good.record);
}

#[test]
fn a_permit_for_something_else_changes_nothing() {
    let (root, source) = (tempfile::tempdir().unwrap(), source());
    let shelf = Shelf::open(root.path()).unwrap();
    let record = record(&examine(source.path()).unwrap());
    for (action, name) in [("plugins.install", "another"), ("plugins.remove", "sample")] {
        let refused = shelf.install(permit(action, Some(name)), source.path(), &record);
        assert!(matches!(refused, Err(ChangeShelfError::Permit { .. })));
    }
    assert!(shelf.list().unwrap().is_empty());
}

#[test]
fn a_pin_changes_with_every_word() {
    let tool = ForeignTool {
        name: "a".to_owned(),
        summary: "b".to_owned(),
        parameters: serde_json::json!({"type": "object"}),
        effect: fluffy_contract::tool::Effect::Reads,
        timeout: fluffy_base::Span { millis: 1 },
    };
    let pin = pin_of(&tool);
    let moved = ForeignTool {
        name: "a\0b".to_owned(),
        summary: String::new(),
        ..tool.clone()
    };
    let said = ForeignTool {
        summary: "b ".to_owned(),
        ..tool.clone()
    };
    let takes = ForeignTool {
        parameters: serde_json::json!({"type": "object", "title": "x"}),
        ..tool.clone()
    };
    assert!([said, takes].iter().all(|other| pin_of(other) != pin));
    assert_eq!(pin_of(&tool), pin);
    // A name cannot have such a character, but must not matter if it could.
    assert_ne!(pin_of(&moved), pin);
}
