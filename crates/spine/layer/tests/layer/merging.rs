//! Layers merged into projects that stayed or did not stay as they were.

use fluffy_layer::{ConflictKind, LayerState};

use crate::support::{Stage, clear_plan, kinds, merge, merge_permit, path, permit};

const PROJECT: &str = "mkdir -p src/deep docs empty; echo one >src/a; echo two >src/b; \
                       echo three >src/deep/c; echo doc >docs/d; ln -s a src/link; chmod 755 src/b; \
                       printf '1\\n2\\n3\\n4\\n5\\n6\\n7\\n8\\n9\\n' >lines; chmod 644 lines src/a docs/d";

#[test]
fn a_merge_does_what_the_commands_did() {
    let script = "echo more >>src/a; rm src/b; mkdir -p x/y; echo z >x/y/z; chmod 755 docs/d; \
                  ln -sf deep src/link; rm -r src/deep; echo file >src/deep; rm lines; mkdir lines; \
                  echo in >lines/in; printf '\\000\\001' >binary; rmdir empty; mkdir closed; \
                  echo c >closed/c; chmod 555 closed";
    for kind in kinds() {
        let (stage, direct) = (Stage::new(PROJECT), Stage::new(PROJECT));
        let before = stage.files();
        let held = stage.create(kind);
        stage.in_layer(&held, script);
        assert_eq!(stage.files(), before, "the project is untouched");
        let plan = clear_plan(&held);
        assert_eq!(stage.files(), before, "planning changes nothing");
        let needs: Vec<String> = plan
            .needs()
            .iter()
            .map(|need| format!("{} {}", need.action, need.resource))
            .collect();
        assert!(needs.contains(&"fs.write /src/a".to_owned()), "{needs:?}");
        assert!(needs.contains(&"fs.remove /src/b".to_owned()), "{needs:?}");
        let id = held.layer().id();
        let report = merge(held);
        assert!(report.retired && report.troubles.is_empty(), "{report:#?}");
        direct.in_project(script);
        assert_eq!(stage.files(), direct.files(), "{kind:?}");
        let layer = stage.store.find(&id.to_string()).unwrap();
        assert!(matches!(layer.state(), LayerState::Retired { .. }));
        let left = std::fs::read_dir(layer.folder()).unwrap().count();
        assert_eq!(left, 2, "only the record and the lock are left");
        assert!(layer.hold().is_err(), "a merged layer is never used again");
        stage.in_project("chmod 755 closed");
        direct.in_project("chmod 755 closed");
    }
}

#[test]
fn changes_of_both_sides_are_put_together() {
    for kind in kinds() {
        let stage = Stage::new(PROJECT);
        let held = stage.create(kind);
        stage.in_layer(
            &held,
            "sed -i s/2/zwei/ lines; echo new >src/new; chmod 755 src/a",
        );
        stage.in_project("sed -i s/8/acht/ lines; echo theirs >docs/theirs; echo uno >src/a");
        let report = merge(held);
        assert!(report.retired);
        let files = stage.files();
        assert_eq!(
            files["lines"],
            "644 1\\nzwei\\n3\\n4\\n5\\n6\\n7\\nacht\\n9\\n"
        );
        assert_eq!(
            files["src/a"], "755 uno\\n",
            "content of one, mode of the other"
        );
        assert!(files.contains_key("docs/theirs") && files.contains_key("src/new"));
    }
}

#[test]
fn what_both_did_alike_is_no_conflict() {
    for kind in kinds() {
        let stage = Stage::new(PROJECT);
        let held = stage.create(kind);
        let script = "echo same >src/a; rm src/b; echo n >new; mkdir -p m/n; ln -sf b src/link";
        stage.in_layer(&held, script);
        stage.in_project(script);
        let plan = clear_plan(&held);
        assert!(plan.steps().is_empty(), "{:#?}", plan.steps());
    }
}

#[test]
fn conflicts_are_shown_and_nothing_is_overwritten() {
    for kind in kinds() {
        let stage = Stage::new(PROJECT);
        let mut held = stage.create(kind);
        stage.in_layer(
            &held,
            "sed -i s/5/layer/ lines; rm src/a; echo layer >src/b; echo layer >new; \
             ln -sf docs src/link; rm -r docs; printf '\\000L' >src/deep/c",
        );
        stage.in_project(
            "sed -i s/5/person/ lines; echo person >src/a; rm src/b; echo person >new; \
             ln -sf lines src/link; echo fresh >docs/fresh; printf '\\000P' >src/deep/c",
        );
        let before = stage.files();
        let plan = held.plan_merge().unwrap();
        let shown: Vec<(String, ConflictKind)> = plan
            .conflicts()
            .iter()
            .map(|conflict| (conflict.path.to_string(), conflict.kind))
            .collect();
        let mut expected = vec![
            ("docs", ConflictKind::DirectoryNotEmpty),
            ("lines", ConflictKind::BothChanged),
            ("new", ConflictKind::BothAdded),
            ("src/a", ConflictKind::ChangedInProject),
            ("src/b", ConflictKind::RemovedInProject),
            ("src/deep/c", ConflictKind::BothChanged),
            ("src/link", ConflictKind::BothChanged),
        ];
        if kind == fluffy_layer::LayerKind::Overlay {
            // The overlay hides the new file as well; the copy never had it.
            expected.insert(1, ("docs/fresh", ConflictKind::BaseUnknown));
        }
        let expected: Vec<(String, ConflictKind)> = expected
            .into_iter()
            .map(|(path, kind)| (path.to_owned(), kind))
            .collect();
        assert_eq!(shown, expected, "{kind:?}");
        let lines = plan.conflicts().iter().find(|c| c.path == path("lines"));
        let markers = lines.unwrap().shown.as_ref().unwrap();
        assert!(
            markers.contains(
                "<<<<<<< project\nperson\n||||||| base\n5\n=======\nlayer\n>>>>>>> layer\n"
            ),
            "{markers}"
        );
        assert!(held.apply(merge_permit(), &plan).is_err());
        assert_eq!(stage.files(), before);
        assert_eq!(held.layer().state(), LayerState::Open);
    }
}

#[test]
fn what_is_left_out_stays_in_the_layer() {
    for kind in kinds() {
        let stage = Stage::new(PROJECT);
        let mut held = stage.create(kind);
        stage.in_layer(
            &held,
            "echo layer >src/a; echo layer >src/b; sed -i s/2/zwei/ lines",
        );
        stage.in_project("echo person >src/a; sed -i s/8/acht/ lines");
        let plan = held.plan_merge().unwrap();
        assert_eq!(plan.conflicts().len(), 1);
        let plan = plan.leave_out(&[path("src/a")]);
        assert!(plan.is_clear());
        let report = held.apply(merge_permit(), &plan).unwrap();
        assert!(!report.retired && report.troubles.is_empty());
        assert_eq!(stage.files()["src/a"], "644 person\\n");
        assert_eq!(stage.files()["src/b"], "755 layer\\n");
        // What is merged is merged: only the rest is still to do.
        let plan = held.plan_merge().unwrap();
        assert_eq!(plan.conflicts().len(), 1);
        assert!(plan.steps().is_empty(), "{:#?}", plan.steps());
        // And a further edit of what was merged is no conflict.
        stage.in_layer(&held, "echo again >>src/b");
        let plan = held.plan_merge().unwrap();
        assert_eq!((plan.conflicts().len(), plan.steps().len()), (1, 1));
        stage.in_project("echo layer >src/a");
        assert!(merge(held).retired);
        assert_eq!(stage.files()["src/b"], "755 layer\\nagain\\n");
        assert_eq!(
            stage.files()["lines"],
            "644 1\\nzwei\\n3\\n4\\n5\\n6\\n7\\nacht\\n9\\n"
        );
    }
}

#[test]
fn a_plan_is_bound_to_its_layer_its_project_and_its_permit() {
    for kind in kinds() {
        let stage = Stage::new(PROJECT);
        let mut held = stage.create(kind);
        let mut other = stage.create(kind);
        stage.in_layer(&held, "echo layer >src/a; echo x >src/b");
        let plan = clear_plan(&held);
        assert_eq!(plan.digest(), clear_plan(&held).digest());
        assert!(other.apply(merge_permit(), &plan).is_err());
        assert!(held.apply(permit("fs.write", Some("/")), &plan).is_err());
        assert!(held.resume(merge_permit()).is_err(), "nothing to resume");
        stage.in_project("echo person >src/b");
        let before = stage.files();
        let error = held.apply(merge_permit(), &plan).unwrap_err();
        assert!(error.to_string().contains("`src/b` changed"), "{error}");
        assert_eq!(stage.files(), before);
        assert_ne!(plan.digest(), held.plan_merge().unwrap().digest());
    }
}

#[test]
fn a_project_that_was_replaced_is_not_merged_into() {
    let stage = Stage::new(PROJECT);
    let held = stage.create(fluffy_layer::LayerKind::Copy);
    stage.in_layer(&held, "echo layer >src/a");
    std::fs::rename(stage.project(), stage.home().join("away")).unwrap();
    std::fs::create_dir(stage.project()).unwrap();
    let error = held.plan_merge().unwrap_err();
    assert!(
        error.to_string().contains("is not the directory"),
        "{error}"
    );
}
