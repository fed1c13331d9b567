//! Attacks on the ledger's database, each of which `audit verify` has to name.
//!
//! Every attack starts from a copy of one honest ledger, on which the same
//! command succeeds.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use fluffy_ledger::{
    Actor, ActorKind, Aggregate, Batch, Domain, Draft, Ledger, LedgerOptions, Scope, Signing,
};
use rusqlite::Connection;
use rusqlite::types::Value;

use crate::site::{Saved, Site, copy_folder};

/// The event that is attacked: it has a value in every column.
const TARGET: u64 = 8;
const LAST: u64 = 9;

static HONEST: LazyLock<Saved> = LazyLock::new(|| {
    let site = Site::prepared();
    append_full_event(&site);
    assert_eq!(site.decide("fs.read", "/README.md").code, Some(0));
    site.save()
});

/// What the attacked event is: no command writes all optional fields yet.
fn append_full_event(site: &Site) {
    let signing = Signing {
        key: site.state().join("keys/ledger.key"),
        checkpoints: site.checkpoints(),
        witnesses: Vec::new(),
    };
    let options = LedgerOptions {
        signing: Some(signing),
        ..LedgerOptions::default()
    };
    let ledger = Ledger::open(&site.ledger(), options).unwrap();
    let actor = Actor::new(ActorKind::Agent, "agent").on_behalf_of("alice");
    let aggregate = Aggregate::new("session", "s1");
    let scope = Scope {
        org_id: Some("org".to_owned()),
        app_id: Some("app".to_owned()),
        env_id: Some("env".to_owned()),
    };
    let draft = Draft::new(Domain::Agent, aggregate, "tool.execute", actor)
        .payload(serde_json::json!({"tool": "grep"}))
        .scope(scope)
        .request("request-1")
        .idempotency("key-1")
        .correlation("story")
        .caused_by(1)
        .decided_by(2);
    ledger.append_blocking(Batch::from(draft)).unwrap();
    ledger.close().unwrap();
}

fn verify_against(site: &Site, code: i32, witness: &Path) -> String {
    let witness = witness.to_str().unwrap();
    let words = ["audit", "verify", "--against", witness];
    site.ends(code, &words).stderr
}

/// `audit verify` must end with 7 and name this event, for people and as JSON.
fn assert_named(site: &Site, seq: u64, what: &str) {
    let finished = site.run(&["audit", "verify"]);
    let text = finished.transcript();
    assert_eq!(finished.code, Some(7), "{what}\n{text}");
    let named = format!("the first bad event is {seq}\n");
    assert!(finished.stderr.contains(&named), "{what}\n{text}");
    assert_eq!(finished.stdout, "", "{what}");
    let value = site.json(7, &["audit", "verify"]);
    assert_eq!(value["sound"], false, "{what}");
    assert_eq!(value["finding"]["seq"], seq, "{what}: {value}");
}

fn assert_attack_named(sql: &str, seq: u64) {
    let site = HONEST.site();
    site.attacker()
        .execute_batch(sql)
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
    assert_named(&site, seq, sql);
}

#[test]
fn an_untouched_ledger_is_sound() {
    let value = HONEST.site().json(0, &["audit", "verify"]);
    assert_eq!(value["sound"], true);
    assert_eq!(value["last_seq"], LAST);
    assert_eq!(value["finding"], serde_json::Value::Null);
    // Every attack starts by dropping the guards, which stop honest mistakes;
    // that alone changes nothing.
    let site = HONEST.site();
    let guarded = Connection::open(site.database()).unwrap();
    for mistake in ["UPDATE events SET actor_id = 'x'", "DELETE FROM events"] {
        assert!(guarded.execute(mistake, []).is_err(), "{mistake}");
    }
    drop(guarded);
    drop(site.attacker());
    site.ends(0, &["audit", "verify"]);
}

#[test]
fn one_flipped_byte_in_any_column_is_named() {
    let columns: Vec<String> = HONEST
        .site()
        .attacker()
        .prepare("SELECT name FROM pragma_table_info('events')")
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert_eq!(columns.len(), 22);
    for column in columns {
        let site = HONEST.site();
        let attacker = site.attacker();
        let select = format!("SELECT {column} FROM events WHERE seq = {TARGET}");
        let honest: Value = attacker.query_row(&select, [], |row| row.get(0)).unwrap();
        let update = format!("UPDATE events SET {column} = ?1 WHERE seq = {TARGET}");
        attacker.execute(&update, [flip(&honest)]).unwrap();
        drop(attacker);
        assert_named(&site, TARGET, &column);
        // The control: with the byte put back, the very same file is sound.
        let back = match column.as_str() {
            "seq" => "UPDATE events SET seq = ?1 WHERE seq > 1000".to_owned(),
            _ => update,
        };
        assert_eq!(
            site.attacker().execute(&back, [honest]).unwrap(),
            1,
            "{column}"
        );
        site.ends(0, &["audit", "verify"]);
    }
}

/// The value with one bit changed.
fn flip(honest: &Value) -> Value {
    match honest {
        Value::Integer(number) => Value::Integer(number ^ 0x400),
        Value::Text(text) => {
            let mut bytes = text.clone().into_bytes();
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
            Value::Text(String::from_utf8(bytes).unwrap())
        }
        Value::Blob(bytes) => {
            let mut bytes = bytes.clone();
            bytes[15] ^= 1;
            Value::Blob(bytes)
        }
        Value::Null | Value::Real(_) => panic!("the attacked event has {honest:?}"),
    }
}

#[test]
fn a_deny_turned_into_an_allow_is_named() {
    assert_attack_named(
        "UPDATE events SET payload = replace(payload, '\"deny\"', '\"allow\"') WHERE seq = 3",
        3,
    );
}

#[test]
fn a_deleted_event_is_named() {
    assert_attack_named("DELETE FROM events WHERE seq = 5", 5);
    // Closing the gap moves the fault only as far as the next hash.
    assert_attack_named(
        "DELETE FROM events WHERE seq = 5; UPDATE events SET seq = seq - 1 WHERE seq > 5",
        5,
    );
}

#[test]
fn swapped_events_are_named() {
    assert_attack_named(
        "UPDATE events SET seq = 9999 WHERE seq = 4; UPDATE events SET seq = 4 WHERE seq = 5; \
         UPDATE events SET seq = 5 WHERE seq = 9999",
        4,
    );
}

#[test]
fn an_appended_event_is_named() {
    let copied = "CREATE TEMP TABLE forged AS SELECT * FROM events WHERE seq = 9; \
         UPDATE forged SET seq = 10, aggregate_version = aggregate_version + 1; \
         INSERT INTO events SELECT * FROM forged;";
    assert_attack_named(copied, LAST + 1);
    // With the hash that it would need, by somebody who cannot sign.
    let forger = HONEST.site();
    assert_eq!(forger.decide("fs.read", "/forged.rs").code, Some(0));
    let site = HONEST.site();
    let sql = format!(
        "ATTACH '{}' AS forged; \
         INSERT INTO main.events SELECT * FROM forged.events WHERE seq = {};",
        forger.database().display(),
        LAST + 1
    );
    site.attacker().execute_batch(&sql).unwrap();
    assert_named(&site, LAST + 1, "a forged event with the right hash");
}

#[test]
fn a_tail_that_was_cut_off_is_named() {
    assert_attack_named("DELETE FROM events WHERE seq > 6", 7);
    // An older copy of the whole ledger agrees with itself in every hash; the
    // checkpoints that were signed since then do not agree with it.
    let site = HONEST.site();
    fs::remove_dir_all(site.ledger()).unwrap();
    fs::create_dir(site.ledger()).unwrap();
    let earlier = Site::prepared();
    copy_folder(&earlier.ledger(), &site.ledger());
    assert_named(&site, TARGET, "an older copy in the place of the ledger");
    // The control: where nothing was signed since, that copy is sound.
    earlier.ends(0, &["audit", "verify"]);
}

/// Two histories of one ledger, told apart by nobody but a witness.
struct Rewritten {
    /// The ledger with the forged history; key and checkpoints are consistent.
    site: Site,
    /// What the honest ledger sent to another disk.
    witness: PathBuf,
    key: String,
}

/// Rewrites a ledger from its first event on, with the owner's own key.
fn rewritten() -> Rewritten {
    let empty = Site::empty();
    // With its files there already, `init` creates a ledger without events.
    empty
        .context
        .write(".fluffy/policy.yaml", "version: 1\n")
        .unwrap();
    empty.context.write(".fluffy/config.toml", "").unwrap();
    let key = empty.key();
    assert_eq!(empty.events(), 0);
    let (honest, site) = (empty.copy(), empty.copy());
    for (resource, code) in [("/.env", 3), ("/src/lib.rs", 0), ("/id_rsa", 3)] {
        assert_eq!(honest.decide("fs.read", resource).code, Some(code));
        assert_eq!(site.decide("fs.read", "/harmless.rs").code, Some(0));
    }
    let witness = site.project_file("witness.txt");
    fs::copy(honest.checkpoints(), &witness).unwrap();
    verify_against(&honest, 0, &witness);
    Rewritten { site, witness, key }
}

#[test]
fn a_chain_that_was_rewritten_as_a_whole_is_named_by_a_witness() {
    let Rewritten { site, witness, key } = rewritten();
    // Nothing in the ledger itself gives the forgery away, not even its key.
    site.ends(0, &["audit", "verify", "--key", &key]);
    let stderr = verify_against(&site, 7, &witness);
    assert!(stderr.contains("the first bad event is 1\n"), "{stderr}");
}

#[test]
fn a_configured_witness_is_asked_every_time() {
    let Rewritten { site, witness, .. } = rewritten();
    site.ends(0, &["audit", "verify"]);
    let config = site.context.home().join(".config/fluffy");
    fs::create_dir_all(&config).unwrap();
    let text = format!("[ledger]\nwitness = [\"{}\"]\n", witness.display());
    fs::write(config.join("config.toml"), text).unwrap();
    assert_named(&site, 1, "a rewritten chain and a configured witness");
}

#[test]
fn a_witness_gets_every_checkpoint_and_agrees_with_an_honest_ledger() {
    let site = Site::empty();
    let witness = site.context.home().join("other-disk/witness.txt");
    fs::create_dir_all(witness.parent().unwrap()).unwrap();
    let config = site.context.home().join(".config/fluffy");
    fs::create_dir_all(&config).unwrap();
    let text = format!("[ledger]\nwitness = [\"{}\"]\n", witness.display());
    fs::write(config.join("config.toml"), text).unwrap();
    site.succeeds(&["init"]);
    assert_eq!(site.decide("fs.read", "/src/lib.rs").code, Some(0));
    assert_eq!(
        fs::read(&witness).unwrap(),
        fs::read(site.checkpoints()).unwrap()
    );
    let checked = site.json(0, &["audit", "verify"])["checkpoints_checked"].as_u64();
    assert!(checked >= Some(2), "{checked:?}");
}

#[test]
fn a_chain_rewritten_with_another_key_is_named_by_the_pinned_key() {
    let forged = Site::prepared();
    let honest = Site::prepared();
    let pinned = honest.key();
    let other = Site::initialised();
    fs::copy(
        other.state().join("keys/ledger.key"),
        forged.state().join("keys/ledger.key"),
    )
    .unwrap();
    fs::remove_file(forged.checkpoints()).unwrap();
    assert_eq!(forged.decide("fs.read", "/harmless.rs").code, Some(0));
    forged.ends(0, &["audit", "verify"]);
    let finished = forged.ends(7, &["audit", "verify", "--key", &pinned]);
    assert!(
        finished.stderr.contains("the first bad event is"),
        "{}",
        finished.stderr
    );
    honest.ends(0, &["audit", "verify", "--key", &pinned]);
}

#[test]
fn looking_at_the_evidence_leaves_it_as_it_is() {
    let site = HONEST.site();
    site.attacker()
        .execute("UPDATE events SET actor_id = 'mallory' WHERE seq = 3", [])
        .unwrap();
    let before = crate::site::contents(&site.state());
    assert_named(&site, 3, "another actor");
    assert_eq!(crate::site::contents(&site.state()), before);
}

#[test]
fn every_other_command_says_that_the_ledger_is_broken() {
    let site = HONEST.site();
    site.attacker()
        .execute("UPDATE events SET actor_id = 'mallory' WHERE seq = 3", [])
        .unwrap();
    // What was verified before is looked at again only by `audit verify`.
    fs::remove_file(site.state().join("checkpoints/ledger.verified")).unwrap();
    let finished = site.decide("fs.read", "/src/lib.rs");
    assert_eq!(finished.code, Some(0), "{}", finished.transcript());
    let warned = finished.stderr.contains("THE LEDGER IS BROKEN at event 3");
    assert!(warned, "{}", finished.transcript());
    let log = site.succeeds(&["audit", "log"]);
    assert!(log.contains("ledger.chain_break"), "{log}");
}
