//! `fluffy ledger migrate`: from `fluffy up` into a real PostgreSQL.

use fluffy_test_kit::FreshDatabase;

use super::real::up;
use crate::site::Site;

#[test]
fn a_platform_is_copied_into_a_database_while_nobody_serves_it() {
    let database = FreshDatabase::create().unwrap();
    let to = ["ledger", "migrate", "--to", database.url()];
    let mut site = Site::empty();
    site.ends(2, &["ledger", "migrate"]);
    site.ends(2, &["ledger", "migrate", "--to", "nowhere"]);
    site.ends(4, &to);
    let running = up(&site);
    site.succeeds(&["apps", "create", "shop"]);
    site.ends(5, &to);
    running.end();
    let moved = site.json(0, &to);
    assert!(moved["data"]["seq"].as_u64() > Some(0), "{moved}");
    assert!(moved["data"]["entries"].as_u64() > Some(0), "{moved}");
    let count = database.sql("select count(*) from ledger.events").unwrap();
    assert_eq!(count.trim(), moved["data"]["seq"].to_string());
    let last = "select encode(hash, 'hex') from ledger.events order by seq desc limit 1";
    let last = database.sql(last).unwrap();
    assert_eq!(last.trim(), moved["data"]["hash"].as_str().unwrap());
    // The address may hold a password, which a variable keeps from others.
    site.context.set("FLUFFY_DATABASE", database.url());
    let again = site.ends(0, &["ledger", "migrate"]);
    assert!(again.stdout.contains("there as here"), "{again:?}");
}
