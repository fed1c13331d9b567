//! Limits that a whole cluster or an org has, and who is told of them when.

use std::collections::BTreeMap;

use fluffy_api::Operation;
use fluffy_api::types::IMAGE_LIMITS;
use fluffy_base::id::OrgId;
use fluffy_control::call::ResolvedImage;
use fluffy_control::runtime::Notice;
use fluffy_control::{Material, Outcome, Refusal};
use serde_json::{Value, json};

use crate::world::{DEV, WEB, World, image};

const GIB: u64 = 1 << 30;

fn payloads(world: &World, event_type: &str) -> Vec<Value> {
    let events = world.events.iter();
    let own = events.filter(|event| event.event_type == event_type);
    let payload = |event: &fluffy_ledger::Event| serde_json::from_str(event.payload.as_str());
    own.map(|event| payload(event).unwrap()).collect()
}

#[test]
fn limits_of_images_are_raised_within_their_ceilings_and_each_change_is_an_event() {
    let mut world = World::new("fd00::/48", 61);
    let shown = world.get(Operation::GetImageLimits, &[]);
    for kind in IMAGE_LIMITS {
        let limit = &shown["limits"][kind.name];
        assert_eq!(limit["limit"], kind.usual, "{}", kind.name);
        assert_eq!(limit["ceiling"], kind.ceiling, "{}", kind.name);
    }
    let set = |limits: Value| json!({ "limits": limits });
    let raised = set(json!({"compressed_bytes": 20 * GIB, "layers": 128, "image_seconds": 7200}));
    let shown = world.done(Operation::SetImageLimits, &[], raised);
    assert_eq!(shown["limits"]["compressed_bytes"]["limit"], 20 * GIB);
    // What is as it was is no change.
    let seconds = json!({"name": "image_seconds", "limit": 7200, "previous": 1800});
    let bytes = json!({"name": "compressed_bytes", "limit": 20 * GIB, "previous": 10 * GIB});
    let changes = "cluster.image_limit_set";
    assert_eq!(payloads(&world, changes), [bytes, seconds]);

    // None is without a bound, whatever somebody types.
    for kind in IMAGE_LIMITS {
        for wrong in [0, kind.ceiling + 1, u64::MAX] {
            let body = set(json!({ kind.name: wrong }));
            let refused = world.refused(Operation::SetImageLimits, &[], body);
            assert_eq!(refused.code, "invalid_argument", "{}", kind.name);
            assert!(
                refused.why.contains(&kind.ceiling.to_string()),
                "{}",
                refused.why
            );
        }
    }
    let refused = world.refused(Operation::SetImageLimits, &[], set(json!({"depth": 3})));
    assert!(refused.fix.contains("compressed_bytes"), "{}", refused.fix);
    assert_eq!(
        payloads(&world, changes).len(),
        2,
        "a refusal changes nothing"
    );

    let back = set(json!({"compressed_bytes": null}));
    let shown = world.done(Operation::SetImageLimits, &[], back);
    assert_eq!(shown["limits"]["compressed_bytes"]["limit"], 10 * GIB);
    let last = payloads(&world, changes).pop().unwrap();
    assert_eq!(
        (&last["limit"], &last["previous"]),
        (&json!(10 * GIB), &json!(20 * GIB))
    );
    world.check_fold();
}

/// What every replica can read is known since the first of it was said, and is
/// never less than that again: events that take it may be in the ledger.
#[test]
fn what_all_replicas_read_only_grows() {
    let mut world = World::new("fd00::/48", 64);
    let readers = |world: &World| world.state.runtime.cluster.reader_version;
    assert_eq!(readers(&world), 0, "nobody has said anything yet");
    for (said, known) in [(1, 1), (3, 3), (3, 3), (2, 3), (4, 4)] {
        world.say(Notice::Readers(said));
        assert_eq!(readers(&world), known, "{said} was said");
    }
    let set = payloads(&world, "cluster.reader_version_set");
    assert_eq!(
        set,
        [1, 3, 4].map(|version| json!({"min_version": version}))
    );
}

#[test]
fn a_release_has_an_image_as_large_as_the_cluster_says_now() {
    let mut world = World::new("fd00::/48", 63);
    let release = |world: &mut World, bytes: u64| -> Result<(), Refusal> {
        let body = json!({"image": "registry.example.com/shop:1", "manifest": WEB});
        let mut request = world.request(Operation::CreateRelease, &DEV[..2], body);
        request.material = Material::Image(ResolvedImage {
            compressed_bytes: bytes,
            ..image()
        });
        match world.ask(&request) {
            Outcome::Done { .. } => Ok(()),
            Outcome::Refused(refusal) => Err(refusal),
            other => panic!("{other:?}"),
        }
    };
    let set = |world: &mut World, limit: Value| {
        let body = json!({"limits": {"compressed_bytes": limit}});
        world.done(Operation::SetImageLimits, &[], body);
    };
    let raised_and_lowered = [
        (None, 10 * GIB),
        (Some(json!(20 * GIB)), 20 * GIB),
        (Some(json!(GIB)), GIB),
        (Some(json!(null)), 10 * GIB),
    ];
    for (limit, largest) in raised_and_lowered {
        if let Some(limit) = limit {
            set(&mut world, limit);
        }
        release(&mut world, largest).unwrap();
        let refused = release(&mut world, largest + 1).unwrap_err();
        assert_eq!(refused.code, "image_too_large", "{largest}");
        let named = refused.fix.contains(&largest.to_string());
        assert!(named, "{}", refused.fix);
    }
    world.check_fold();
}

#[test]
fn an_org_is_told_once_a_day_and_level_how_much_it_printed() {
    let mut world = World::new("fd00::/48", 62);
    world.node(1, 16 * GIB);
    let release = world.release(WEB);
    world.deploy(&release);
    world.settle();
    let org: OrgId = world.state.access.names.org("local").unwrap();
    let version = world.state.meta("org", &org.to_string()).unwrap().version;
    let limit = json!({"limits": {"log_bytes_per_day": 1_000}, "expected_version": version});
    world.done(Operation::SetQuotas, &["local"], limit);
    let today =
        |world: &World| u64::try_from(world.now.as_micros()).unwrap() / (24 * 3600 * 1_000_000);
    let says = |world: &mut World, day: u64, bytes: u64| {
        let used = BTreeMap::from([(org, bytes), (OrgId::from_bits(7), bytes)]);
        world.say(Notice::LogBytes { day, used });
        let told = payloads(world, "org.log_quota_reached");
        told.iter()
            .map(|it| it["percent"].as_u64().unwrap())
            .collect::<Vec<_>>()
    };
    let conditions = |world: &World| {
        let shown = world.get(Operation::GetStatus, &DEV);
        let all = shown["conditions"].as_array().unwrap().clone();
        let logs = all
            .into_iter()
            .filter(|it| it["reason"] == "log_bytes_per_day");
        let words = logs.map(|it| it["condition"].as_str().unwrap().to_owned());
        (
            shown["status"].as_str().unwrap().to_owned(),
            words.collect::<Vec<_>>(),
        )
    };
    let day = today(&world);
    assert!(says(&mut world, day, 0).is_empty());
    assert!(says(&mut world, day, 799).is_empty());
    let before = conditions(&world).0;
    // Said by every server, again and again.
    for bytes in [800, 800, 850, 999] {
        assert_eq!(says(&mut world, day, bytes), [80], "{bytes}");
    }
    assert_eq!(
        conditions(&world),
        (before.clone(), vec!["logs_near_quota".to_owned()])
    );
    for bytes in [1_000, 1_001, 5_000, 900] {
        assert_eq!(says(&mut world, day, bytes), [80, 100], "{bytes}");
    }
    assert_eq!(
        conditions(&world),
        (before.clone(), vec!["logs_sampled".to_owned()])
    );
    let told = payloads(&world, "org.log_quota_reached").pop().unwrap();
    let wanted = json!({"percent": 100, "day": "2026-11-16", "used": 1_000, "limit": 1_000});
    assert_eq!(told, wanted);
    world.check_fold();

    // The next day begins anew, and who still counts the last one says nothing.
    world.pass(24 * 3600);
    assert_eq!(conditions(&world), (before, vec![]));
    assert_eq!(says(&mut world, day + 1, 2_000), [80, 100, 80, 100]);
    assert_eq!(says(&mut world, day, 2_000), [80, 100, 80, 100]);
    world.check_fold();
}
