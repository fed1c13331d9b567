//! The reviewed copy: nothing else counts, and a changed one is refused.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use fluffy_base::Digest;
use fluffy_gate::{Bundle, LoadPolicyError, ReadPinError, UpdateError};
use fluffy_test_kit::record_skip;

use crate::support::{SmallDisk, Stage, events, payload, rules, three_ways, update_request, write};

const PASS: &str = "export function evaluate(request) { return \"pass\"; }\n";

fn open_wide() -> String {
    rules(&[["everything", "fs.write", "**", "allow"]])
}

fn extended() -> Bundle {
    Bundle {
        policy: three_ways(),
        extensions: BTreeMap::from([("guard".to_owned(), PASS.to_owned())]),
    }
}

#[test]
fn what_a_repository_carries_changes_nothing_until_it_is_applied() {
    let stage = Stage::with_rules(&three_ways());
    let carried = stage.home.path().join("shop/.fluffy");
    fs::create_dir_all(&carried).unwrap();
    fs::write(carried.join("policy.yaml"), open_wide()).unwrap();
    assert!(!stage.gate.reload().unwrap());
    stage.refusal(&write("/secret/key"));
    assert!(
        stage
            .reopen()
            .unwrap()
            .authorize(&write("/secret/key"))
            .is_err()
    );

    // Proposing is looking: still nothing.
    let bundle = Bundle::read(&carried).unwrap().unwrap();
    let proposal = stage.gate.propose(bundle, 100).unwrap();
    assert!(!proposal.in_force);
    stage.refusal(&write("/secret/key"));

    // Control: applied, the same file counts.
    let digest = stage.gate.update(&proposal, &update_request()).unwrap();
    assert_eq!(stage.gate.policy().pinned, Some(digest));
    assert!(stage.gate.authorize(&write("/secret/key")).is_ok());
    assert!(
        stage
            .gate
            .propose(Bundle::of_rules(open_wide()), 0)
            .unwrap()
            .in_force
    );
}

#[test]
fn projects_do_not_share_pins() {
    let stage = Stage::with_rules(&open_wide());
    let pins = stage.home.path().join("pins");
    for root in [
        "/somewhere/else/shop",
        "/somewhere/shop/",
        "/somewhere/Shop",
    ] {
        let other = fluffy_gate::PinStore::of_project(&pins, Path::new(root));
        assert!(other.current().unwrap().is_none(), "{root}");
    }
    assert!(stage.pins().current().unwrap().is_some());
}

/// Changes a pinned copy: the store's folder, then the copy's.
type Tamper = fn(&Path, &Path);

fn flip(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
}

const TAMPERS: &[(&str, Tamper)] = &[
    ("a bit in the rules", |_, copy| {
        flip(&copy.join("policy.yaml"))
    }),
    ("a bit in an extension", |_, copy| {
        flip(&copy.join("policy.d/guard.ts"))
    }),
    ("one byte more", |_, copy| {
        let path = copy.join("policy.yaml");
        fs::write(&path, fs::read_to_string(&path).unwrap() + "\n").unwrap();
    }),
    ("no rules", |_, copy| {
        fs::remove_file(copy.join("policy.yaml")).unwrap()
    }),
    ("no extension", |_, copy| {
        fs::remove_file(copy.join("policy.d/guard.ts")).unwrap()
    }),
    ("no copy", |_, copy| fs::remove_dir_all(copy).unwrap()),
    ("one extension more", |_, copy| {
        fs::write(copy.join("policy.d/other.ts"), PASS).unwrap();
    }),
    ("an extension of another name", |_, copy| {
        let from = copy.join("policy.d/guard.ts");
        fs::rename(from, copy.join("policy.d/drapes.ts")).unwrap();
    }),
    ("the rules behind a link", |store, copy| {
        fs::rename(copy.join("policy.yaml"), store.join("moved")).unwrap();
        symlink(store.join("moved"), copy.join("policy.yaml")).unwrap();
    }),
    ("the extensions behind a link", |store, copy| {
        fs::rename(copy.join("policy.d"), store.join("moved")).unwrap();
        symlink(store.join("moved"), copy.join("policy.d")).unwrap();
    }),
    ("`current` names nothing that is there", |store, _| {
        let elsewhere = format!("fluffy-pin-1 {}\n", Digest::of(b"elsewhere"));
        fs::write(store.join("current"), elsewhere).unwrap();
    }),
    ("`current` names a path", |store, copy| {
        let name = copy.file_name().unwrap().to_str().unwrap();
        fs::write(store.join("current"), format!("fluffy-pin-1 ./{name}\n")).unwrap();
    }),
    ("`current` is of another version", |store, _| {
        let text = fs::read_to_string(store.join("current")).unwrap();
        fs::write(store.join("current"), text.replace("pin-1", "pin-2")).unwrap();
    }),
    ("`current` is empty", |store, _| {
        fs::write(store.join("current"), "").unwrap()
    }),
    ("`current` is a link", |store, _| {
        fs::rename(store.join("current"), store.join("moved")).unwrap();
        symlink(store.join("moved"), store.join("current")).unwrap();
    }),
];

#[test]
fn a_copy_that_was_changed_is_refused() {
    for (what, tamper) in TAMPERS {
        let stage = Stage::new();
        let digest = stage.apply(extended());
        let current = stage.pins().current_file();
        let store = current.parent().unwrap();
        // Control: untouched it is what was applied.
        assert_eq!(stage.pins().current().unwrap(), Some(extended()));

        tamper(store, &store.join(digest.to_string()));
        let error = stage
            .pins()
            .current()
            .err()
            .unwrap_or_else(|| panic!("taken: {what}"));
        assert!(
            !matches!(stage.reopen(), Ok(_) | Err(LoadPolicyError::Refused { .. })),
            "{what}"
        );
        let reloaded = stage.gate.reload();
        assert!(
            matches!(reloaded, Err(LoadPolicyError::Pin(_))),
            "{what}: {reloaded:?}"
        );
        assert_eq!(stage.gate.policy().pinned, Some(digest), "{what}");
        if what.starts_with("a bit") || what.starts_with("no ") {
            assert!(
                matches!(error, ReadPinError::Damaged { .. }),
                "{what}: {error:?}"
            );
        }
    }
}

#[test]
fn a_damaged_copy_is_mended_by_applying_it_again() {
    let stage = Stage::with_rules(&three_ways());
    let store = stage.pins().current_file();
    let digest = stage.gate.policy().pinned.unwrap().to_string();
    let damaged = store.parent().unwrap().join(digest).join("policy.yaml");
    flip(&damaged);
    assert!(stage.pins().current().is_err());
    let permit = approved_permit(&stage);
    stage
        .pins()
        .pin(permit, &Bundle::of_rules(three_ways()))
        .unwrap();
    assert_eq!(
        stage.pins().current().unwrap(),
        Some(Bundle::of_rules(three_ways()))
    );
}

#[test]
fn a_permit_for_something_else_pins_nothing() {
    let stage = Stage::with_rules(&three_ways());
    let permit = stage.gate.authorize(&write("/src/a.rs")).unwrap().permit;
    assert!(
        stage
            .pins()
            .pin(permit, &Bundle::of_rules(open_wide()))
            .is_err()
    );
    assert_eq!(
        stage.pins().current().unwrap(),
        Some(Bundle::of_rules(three_ways()))
    );

    let proposal = stage
        .gate
        .propose(Bundle::of_rules(open_wide()), 0)
        .unwrap();
    let error = stage
        .gate
        .update(&proposal, &write("/src/a.rs"))
        .unwrap_err();
    assert!(matches!(error, UpdateError::NotPinned(_)), "{error:?}");
    stage.refusal(&write("/secret/key"));
}

fn approved_permit(stage: &Stage) -> fluffy_policy::Permit {
    let request = update_request();
    let answers = ["builtin:policy-update".to_owned()];
    let approved = stage.gate.approve(&request, &answers, "maria").unwrap();
    let presented = fluffy_policy::token::Presented {
        token: &approved.token,
        counter: 1,
    };
    stage
        .gate
        .authorize_with_token(&request, &presented)
        .unwrap()
        .permit
}

#[test]
fn a_store_that_cannot_be_written_leaves_the_old_policy() {
    let bundle = Bundle::of_rules(open_wide());
    let process = std::process::id();
    let copy_in_the_way = format!(".{}-{process}", bundle.digest());
    for in_the_way in [copy_in_the_way, format!(".current-{process}")] {
        let stage = Stage::with_rules(&three_ways());
        let before = stage.gate.policy().pinned;
        let current = stage.pins().current_file();
        // Stops root too, whom a read-only folder would not.
        let obstacle = current.with_file_name(&in_the_way);
        if in_the_way.starts_with(".current") {
            fs::create_dir(&obstacle).unwrap();
        } else {
            fs::write(&obstacle, "").unwrap();
        }

        let proposal = stage.gate.propose(bundle.clone(), 0).unwrap();
        let error = stage.gate.update(&proposal, &update_request()).unwrap_err();
        assert!(
            matches!(error, UpdateError::NotPinned(_)),
            "{in_the_way}: {error:?}"
        );
        assert_eq!(stage.gate.policy().pinned, before);
        assert_eq!(
            stage.pins().current().unwrap(),
            Some(Bundle::of_rules(three_ways()))
        );
        stage.refusal(&write("/secret/key"));
        let outcomes: Vec<String> = events(&stage.ledger)
            .iter()
            .filter(|event| event.event_type == "policy.update")
            .map(|event| payload(event)["outcome"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(outcomes, ["approved", "approved", "failed"]);

        // Control: without the obstacle the same proposal is applied.
        if obstacle.is_dir() {
            fs::remove_dir(&obstacle).unwrap();
        } else {
            fs::remove_file(&obstacle).unwrap();
        }
        stage.gate.update(&proposal, &update_request()).unwrap();
        assert!(stage.gate.authorize(&write("/secret/key")).is_ok());
    }
}

#[test]
fn a_read_only_store_leaves_the_old_policy() {
    let stage = Stage::new();
    let pins = stage.home.path().join("pins");
    fs::create_dir(&pins).unwrap();
    let Some(disk) = SmallDisk::mount(&pins, "size=1m") else {
        let reason = "no file system may be mounted here";
        record_skip("a_read_only_store_leaves_the_old_policy", reason);
        return;
    };
    let before = stage.apply(Bundle::of_rules(three_ways()));
    let proposal = stage
        .gate
        .propose(Bundle::of_rules(open_wide()), 0)
        .unwrap();
    disk.make_read_only();
    let error = stage.gate.update(&proposal, &update_request()).unwrap_err();
    assert!(matches!(error, UpdateError::NotPinned(_)), "{error:?}");
    assert_eq!(stage.gate.policy().pinned, Some(before));
    let last = events(&stage.ledger).pop().unwrap();
    assert_eq!(
        (last.event_type.as_str(), &payload(&last)["outcome"]),
        ("policy.update", &"failed".into())
    );
    // Control: it was the disk.
    disk.make_writable();
    stage.gate.update(&proposal, &update_request()).unwrap();
}

#[test]
fn updates_at_the_same_time_take_turns() {
    let stage = Stage::with_rules(&three_ways());
    for round in 0..20 {
        let bundles =
            [0, 1, 2, 2].map(|n| Bundle::of_rules(format!("# {round} {n}\n{}", three_ways())));
        thread::scope(|scope| {
            for bundle in &bundles {
                let proposal = stage.gate.propose(bundle.clone(), 0).unwrap();
                let gate = &stage.gate;
                // One that was approved under the policy before is refused.
                scope.spawn(move || match gate.update(&proposal, &update_request()) {
                    Ok(_) | Err(UpdateError::NotPermitted(_)) => {}
                    Err(error) => panic!("{error:?}"),
                });
            }
        });
        let current = stage.pins().current().unwrap().unwrap();
        assert!(bundles.contains(&current));
        assert_eq!(stage.gate.policy().pinned, Some(current.digest()));
    }
}

#[test]
fn whoever_reads_during_updates_sees_one_whole_policy() {
    let stage = Stage::with_rules(&three_ways());
    let both = [three_ways(), open_wide()].map(Bundle::of_rules);
    let (done, reads) = (AtomicBool::new(false), AtomicUsize::new(0));
    let pins = stage.pins();
    thread::scope(|scope| {
        let readers = [(); 2].map(|()| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let current = pins.current().unwrap().unwrap();
                    assert!(both.contains(&current));
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        for bundle in both.iter().cycle().take(200) {
            pins.pin(approved_permit(&stage), bundle).unwrap();
        }
        done.store(true, Ordering::Relaxed);
        for reader in readers {
            reader.join().unwrap();
        }
    });
    assert!(reads.into_inner() > 0);
}
