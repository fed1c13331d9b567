//! Names: of commands as people look for them, and of things by tab.

use fluffy_api::operation::Operation;
use serde_json::{Value, json};

use super::double::{Reply, refused};
use super::local;
use crate::shell::completed;
use crate::site::Site;

fn items(items: &[Value]) -> Reply {
    Reply::Json(200, json!({"items": items, "next_cursor": null}))
}

fn words(shown: &str) -> Vec<&str> {
    shown.split_whitespace().collect()
}

#[test]
fn what_a_flag_or_a_place_names_is_completed() {
    let (site, double) = local(|asked| match asked.operation {
        Operation::ListReleases => items(&[json!({"id": "rel_1"}), json!({"id": "rel_2"})]),
        Operation::ListDeploys => items(&[json!({"id": "dep_1"})]),
        Operation::ListApprovals => items(&[json!({"id": "apr_1"})]),
        Operation::ListVolumes => items(&[json!({"id": "vol_1", "name": "data"})]),
        Operation::GetScale => Reply::Json(200, json!({"processes": {"web": {}, "worker": {}}})),
        _ => refused("forbidden"),
    });
    site.succeeds(&["context", "set", "work", "--app", "shop"]);
    site.succeeds(&["context", "set", "wild", "--app", "shop"]);
    let cases: [(&[&str], &[&str]); 12] = [
        (&["rollback", "--to", "re"], &["rel_1", "rel_2"]),
        (&["deploy", "--release", "re"], &["rel_1", "rel_2"]),
        (&["wait", ""], &["dep_1"]),
        (&["approvals", "approve", ""], &["apr_1"]),
        (&["approvals", "deny", "a"], &["apr_1"]),
        (&["describe", "release", "r"], &["rel_1", "rel_2"]),
        (&["describe", "volume", ""], &["data"]),
        (&["scale", "w"], &["web=", "worker="]),
        (&["deploy", "--process", "wo"], &["worker"]),
        (&["instances", "list", "--process", "we"], &["web"]),
        (&["apps", "list", "--context", "w"], &["wild", "work"]),
        (&["context", "use", "wo"], &["work"]),
    ];
    for (typed, expected) in cases {
        let shown = completed(&site, typed);
        let mut shown = words(&shown);
        shown.retain(|word| !word.starts_with('-'));
        assert_eq!(shown, expected, "{typed:?}");
    }
    double.asked();
    // Silence where there is nothing, and where nobody answers.
    assert_eq!(completed(&site, &["describe", "node", "n"]), "");
    assert_eq!(completed(&Site::empty(), &["rollback", "--to", "re"]), "");
}

#[test]
fn completing_never_spends_a_refresh_token() {
    let (site, double) = local(|asked| match asked.operation {
        Operation::ExchangeToken => Reply::Json(
            200,
            json!({"access_token": "first", "refresh_token": "first-refresh"}),
        ),
        Operation::Whoami => Reply::Json(200, json!({"principal_id": "usr_1"})),
        _ => refused("token_expired"),
    });
    super::logins::piped(&site, &["login", "--client-id", "sp_1"], "secret-1\n");
    double.asked();
    assert_eq!(completed(&site, &["apps", "describe", "s"]), "");
    let asked = double.asked();
    assert_eq!(asked.len(), 1, "{asked:?}");
}

#[test]
fn what_is_looked_for_at_the_machine_is_shown_the_way() {
    let site = Site::empty();
    let finished = site.ends(2, &["node", "list", "--status", "active"]);
    let fix = "fix: fluffy nodes list --status active";
    assert!(finished.stderr.contains(fix), "{}", finished.stderr);
    let finished = site.ends(2, &["node", "enroll-token", "create"]);
    let fix = "fluffy nodes enroll-token create";
    assert!(finished.stderr.contains(fix), "{}", finished.stderr);
    let finished = site.ends(2, &["node", "nonsense"]);
    assert!(
        !finished.stderr.contains("nodes nonsense"),
        "{}",
        finished.stderr
    );
    let (one, two) = (["completion", "bash"], ["completions", "bash"]);
    assert_eq!(site.succeeds(&one), site.succeeds(&two));
}

#[test]
fn secrets_are_rendered_without_values_and_shown_with_who_runs_them() {
    let bundle = json!({
        "id": "sb_1", "status": "active", "current_version_id": "sv_2",
        "keys": ["API_KEY", "DATABASE_URL"],
        "versions": [
            {"id": "sv_2", "status": "current", "key_count": 2, "size_bytes": 20,
             "master_key_id": "mk_1", "created_at": "2020-01-01T00:00:00Z"},
            {"id": "sv_1", "status": "previous", "key_count": 1, "size_bytes": 10,
             "master_key_id": "mk_1", "created_at": "2020-01-01T00:00:00Z"},
        ],
    });
    let instance = |process: &str, version: &str, status: &str| {
        json!({"id": "inst_1", "process": process, "secret_version_id": version,
               "observed": {"status": status}})
    };
    let all = vec![
        instance("web", "sv_2", "ready"),
        instance("web", "sv_2", "booting"),
        instance("job", "sv_1", "ready"),
        instance("job", "sv_1", "stopped"),
    ];
    let (site, _double) = local(move |asked| match asked.operation {
        Operation::ListInstances => items(&all),
        _ => Reply::Json(200, bundle.clone()),
    });
    let shown = site.succeeds(&["secrets", "render", "--app", "shop"]);
    let file = "# FLUFFY_SECRETS_V1\nAPI_KEY=(redacted)\nDATABASE_URL=(redacted)\n";
    assert_eq!(shown, file);
    let shown = site.succeeds(&["secrets", "status", "--app", "shop"]);
    let rows: Vec<&str> = shown.lines().collect();
    assert_eq!(rows[0], "active: sv_2");
    assert!(rows[1].starts_with("ID    STATUS    RUN BY"), "{shown}");
    assert!(rows[2].contains("web: 2"), "{shown}");
    assert!(rows[3].contains("job: 1"), "{shown}");
    let shown = site.json(0, &["secrets", "status", "--app", "shop"]);
    assert_eq!(shown["data"]["versions"][0]["run_by"], json!({"web": 2}));
}
