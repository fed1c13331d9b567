//! Keeping a state of a layer, and going back.

use std::os::unix::fs::symlink;

use fluffy_base::id::{LayerId, SnapshotId};
use fluffy_layer::{HeldLayer, HoldLayerError, LayerKind, LayerStore, permit as permits};
use fluffy_policy::Permit;

use crate::support::{Stage, files_in, kinds, merge, permit};

const PROJECT: &str = "mkdir -p src/deep; echo one >src/a; echo two >src/b; echo three >src/deep/c";

fn shown(held: &HeldLayer) -> Vec<String> {
    let list = held.changes().unwrap().list;
    list.iter()
        .map(|change| format!("{} {:?}", change.path, change.kind))
        .collect()
}

#[test]
fn going_back_restores_exactly_what_was() {
    for kind in kinds() {
        let stage = Stage::new(PROJECT);
        let held = stage.create(kind);
        let empty = held.snapshot().unwrap();
        stage.in_layer(
            &held,
            "echo more >>src/a; rm -r src/deep; mkdir src/deep; echo n >src/n; ln -s a src/l",
        );
        let full = held.snapshot().unwrap();
        let before = shown(&held);
        stage.in_layer(&held, "rm -r src; echo gone >src");
        assert_ne!(shown(&held), before);

        held.restore(restoring(&held), full.id).unwrap();
        assert_eq!(shown(&held), before, "{kind:?}");
        // A sandbox sees it too, and can go on from there.
        stage.in_layer(
            &held,
            "grep -q more src/a; test ! -e src/deep/c; test -d src/deep; echo on >>src/n",
        );
        held.restore(restoring(&held), full.id).unwrap();
        assert_eq!(shown(&held), before, "a snapshot can be restored again");

        held.restore(restoring(&held), empty.id).unwrap();
        assert_eq!(shown(&held), [""; 0], "{kind:?}");
        stage.in_layer(&held, "cat src/deep/c >/dev/null");
        let ids: Vec<SnapshotId> = held.snapshots().unwrap().iter().map(|s| s.id).collect();
        assert_eq!(ids, [empty.id, full.id]);
        held.restore(restoring(&held), full.id).unwrap();
        assert!(merge(held).retired);
        assert_eq!(stage.files()["src/a"], "644 one\\nmore\\n");
    }
}

#[test]
fn bases_go_back_with_the_content() {
    for kind in kinds() {
        let stage = Stage::new("printf '1\\n2\\n3\\n4\\n5\\n' >lines");
        let held = stage.create(kind);
        stage.in_layer(&held, "sed -i s/1/eins/ lines; echo new >new");
        let snapshot = held.snapshot().unwrap();
        stage.in_layer(&held, "rm lines new");
        stage.in_project("sed -i s/5/five/ lines");
        held.restore(restoring(&held), snapshot.id).unwrap();
        assert!(merge(held).retired, "{kind:?}");
        assert_eq!(stage.files()["lines"], "644 eins\\n2\\n3\\n4\\nfive\\n");
    }
}

#[test]
fn a_wrong_permit_or_snapshot_changes_nothing() {
    let stage = Stage::new(PROJECT);
    let held = stage.create(LayerKind::Copy);
    stage.in_layer(&held, "echo more >>src/a");
    let snapshot = held.snapshot().unwrap();
    let before = shown(&held);
    assert!(
        held.restore(permit("fs.write", Some("/src/a")), snapshot.id)
            .is_err()
    );
    let other = LayerId::from_bits(7).to_string();
    for wrong in [
        permit(permits::DROP, Some(&held.layer().id().to_string())),
        permit(permits::RESTORE, Some(&other)),
    ] {
        assert!(held.restore(wrong, snapshot.id).is_err());
    }
    let unknown = SnapshotId::from_bits(7);
    assert!(held.restore(restoring(&held), unknown).is_err());
    assert_eq!(shown(&held), before);
}

#[test]
fn one_at_a_time_and_what_is_dropped_is_gone() {
    for kind in kinds() {
        let stage = Stage::new(PROJECT);
        let held = stage.create(kind);
        let id = held.layer().id().to_string();
        let found = stage.store.find(&id).unwrap();
        assert!(matches!(found.hold(), Err(HoldLayerError::Busy { .. })));
        held.snapshot().unwrap();
        stage.in_layer(
            &held,
            "mkdir -p d/e; echo x >d/e/f; chmod 000 d/e/f; chmod 000 d/e; chmod 555 d",
        );
        drop(held);
        let held = stage.store.find(&id[4..20]).unwrap().hold().unwrap();
        assert!(
            stage
                .store
                .drop_layer(permit(permits::DROP, Some("lay_other")), held)
                .is_err()
        );
        let held = stage.store.find(&id).unwrap().hold().unwrap();
        stage
            .store
            .drop_layer(permit(permits::DROP, Some(&id)), held)
            .unwrap();
        assert!(stage.store.find(&id).is_err());
        let left = files_in(&stage.home().join("state"));
        assert_eq!(left.keys().collect::<Vec<_>>(), ["layers"], "{kind:?}");
    }
}

#[test]
fn ids_are_found_by_their_beginning() {
    let stage = Stage::new(PROJECT);
    let (one, other) = (stage.create(LayerKind::Copy), stage.create(LayerKind::Copy));
    let listing = stage.store.list().unwrap();
    assert_eq!(listing.layers.len(), 2);
    assert!(
        listing.layers[0].id() > listing.layers[1].id(),
        "newest first"
    );
    assert_eq!(
        stage.store.find(&one.layer().id().to_string()).unwrap(),
        *one.layer()
    );
    let common = &other.layer().id().to_string()[..6];
    assert!(
        stage
            .store
            .find(common)
            .unwrap_err()
            .to_string()
            .starts_with("2 layers")
    );
    assert!(stage.store.find("lay_ZZZ").is_err());
}

#[test]
fn what_a_crash_left_is_swept() {
    let stage = Stage::new(PROJECT);
    let held = stage.create(LayerKind::Copy);
    let layers = stage.store.folder().to_owned();
    let id = held.layer().id().to_string();
    for name in [".lay_x.new", ".lay_y.dropped"] {
        std::fs::create_dir_all(layers.join(name).join("deep")).unwrap();
        std::fs::write(layers.join(name).join("lock"), "").unwrap();
        symlink("/", layers.join(name).join("deep/root")).unwrap();
    }
    std::fs::create_dir(held.layer().folder().join(".unfinished-x")).unwrap();
    drop(held);
    let store = LayerStore::open(&stage.home().join("state")).unwrap();
    let held = store.find(&id).unwrap().hold().unwrap();
    let names: Vec<_> = std::fs::read_dir(&layers).unwrap().collect();
    assert_eq!(names.len(), 1);
    assert!(!held.layer().folder().join(".unfinished-x").exists());
    assert!(shown(&held).is_empty());
}

#[test]
fn a_project_that_holds_the_store_is_refused() {
    let home = tempfile::TempDir::new().unwrap();
    let store = LayerStore::open(home.path()).unwrap();
    let create = |project: &std::path::Path| {
        store.create(permit(permits::CREATE, Some("x")), project, LayerKind::Copy)
    };
    assert!(create(home.path()).is_err());
    assert!(create(&home.path().join("layers")).is_err());
    assert!(create(&home.path().join("nowhere")).is_err());
}

#[test]
fn an_empty_layer_is_given_back_and_another_is_kept() {
    for kind in kinds() {
        let stage = Stage::new(PROJECT);
        let held = stage.create(kind);
        let id = held.layer().id().to_string();
        assert!(stage.store.give_back(held).unwrap());
        assert!(stage.store.find(&id).is_err());

        let held = stage.create(kind);
        let id = held.layer().id().to_string();
        stage.in_layer(&held, "echo work >new");
        assert!(!stage.store.give_back(held).unwrap());
        let held = stage.store.find(&id).unwrap().hold().unwrap();
        assert_eq!(shown(&held).len(), 1, "{kind:?}");
    }
}

fn restoring(held: &HeldLayer) -> Permit {
    permit(permits::RESTORE, Some(&held.layer().id().to_string()))
}

#[test]
fn a_snapshot_that_is_not_needed_is_forgotten() {
    for kind in kinds() {
        let stage = Stage::new(PROJECT);
        let held = stage.create(kind);
        let first = held.snapshot().unwrap();
        stage.in_layer(&held, "echo more >>src/a");
        let second = held.snapshot().unwrap();
        held.forget(first.id).unwrap();
        held.forget(first.id).unwrap();
        let kept = held.snapshots().unwrap();
        assert_eq!(kept.first(), Some(&second));
        assert_eq!(kept.len(), 1);
        assert!(held.restore(restoring(&held), first.id).is_err());
        held.restore(restoring(&held), second.id).unwrap();
        assert_eq!(shown(&held).len(), 1);
    }
}

#[test]
fn a_snapshot_is_no_larger_than_was_said() {
    for kind in kinds() {
        let stage = Stage::new(PROJECT);
        let held = stage.create(kind);
        stage.in_layer(&held, "head -c 5000 /dev/zero >src/a");
        assert!(held.snapshot_within(4_000).is_err());
        assert_eq!(held.snapshots().unwrap(), []);
        held.snapshot_within(6_000).unwrap();
    }
}

#[test]
fn a_duplicate_goes_its_own_way_and_merges_as_well() {
    for kind in kinds() {
        let stage = Stage::new("printf '1\\n2\\n3\\n4\\n5\\n' >lines; echo x >gone");
        let held = stage.create(kind);
        stage.in_layer(&held, "sed -i s/1/eins/ lines; echo new >new; rm gone");
        held.snapshot().unwrap();
        let before = shown(&held);
        let making = permit(permits::CREATE, Some("code-executor"));
        let twin = stage.store.duplicate(making, &held).unwrap();
        assert_ne!(twin.layer().id(), held.layer().id());
        assert_eq!(twin.snapshots().unwrap(), []);
        assert_eq!(shown(&twin), before, "{kind:?}");
        stage.in_layer(&twin, "echo twin >new; grep -q eins lines");
        stage.in_layer(&held, "grep -q new new");
        assert_eq!(shown(&held), before);
        // What the project had comes along: this is a three-way merge.
        stage.in_project("sed -i s/5/five/ lines");
        assert!(merge(twin).retired, "{kind:?}");
        assert_eq!(stage.files()["lines"], "644 eins\\n2\\n3\\n4\\nfive\\n");
        assert_eq!(stage.files()["new"], "644 twin\\n");
        assert!(!held.changes().unwrap().list.is_empty());

        let wrong = permit(permits::DROP, Some("code-executor"));
        assert!(stage.store.duplicate(wrong, &held).is_err());
    }
}

#[test]
fn a_glance_sees_what_is_there_and_keeps_the_layer_held() {
    for kind in kinds() {
        let stage = Stage::new(PROJECT);
        let held = stage.create(kind);
        let glance = held.glance().unwrap();
        stage.in_layer_unsettled(&held, "echo more >>src/a");
        let seen = glance.difference().unwrap().to_string();
        assert!(seen.contains("+more"), "{seen}");
        assert_eq!(held.difference().unwrap().to_string(), seen);
        let id = held.layer().id().to_string();
        drop(held);
        let found = stage.store.find(&id).unwrap();
        assert!(matches!(found.hold(), Err(HoldLayerError::Busy { .. })));
        drop(glance);
        stage.store.find(&id).unwrap().hold().unwrap();
    }
}
