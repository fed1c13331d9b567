//! Routes of `fluffy up`: one address on this machine, whatever happens behind.

mod campaign;
mod drain;
mod fleet;
mod load;

use std::collections::BTreeSet;
use std::net::TcpListener;

use fluffy_test_kit::wait_for;
use serde_json::Value;

use super::instances::{LONG, layer, reach, up};
use super::real::Running;
use super::stage::write_image;
use crate::site::Site;

/// A web server that answers at once, and slowly where it is asked to.
fn manifest(port: u16, rest: &str) -> String {
    format!(
        r#"schema_version = "v1"
[app]
name = "hello"
[image]
ref = "oci:image"
[deploy]
min_ready_seconds = 1
[processes.web]
command = ["/bin/busybox", "httpd", "-f", "-p", "[::]:{port}", "-h", "/www"]
resources = {{ memory = "64MiB", cpu = 0.05, disk = "1GiB" }}
ports = [{{ internal = {port} }}]
{rest}
"#
    )
}

/// A site with an app, its env and its image, and nothing that runs.
fn site(port: u16) -> Site {
    let site = Site::empty();
    let image = site.context.project().join("image");
    write_image(&image, &layer(&site.context.home()));
    site.context
        .write("fluffy.toml", &manifest(port, ""))
        .unwrap();
    site
}

fn make_env(site: &Site) {
    site.succeeds(&["apps", "create", "hello"]);
    site.succeeds(&["envs", "create", "dev"]);
    site.succeeds(&["context", "set", "here", "--env", "dev"]);
}

/// Deploys, and says where it is.
fn deploy(site: &Site) -> String {
    let done = site.json(0, &["deploy"]);
    address(&done["routes"])
}

fn address(routes: &Value) -> String {
    let address = routes[0]["address"].as_str();
    address.unwrap_or_else(|| panic!("{routes}")).to_owned()
}

#[test]
fn a_service_has_one_address_here_that_outlives_the_platform() {
    // Somebody else has the port: another one is taken, and kept.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let site = site(port);
    let running = up(&site);
    make_env(&site);
    let told = deploy(&site);
    let status = site.json(0, &["status"])["data"].clone();
    assert_eq!(address(&status["routes"]), told, "{status}");
    let own: u16 = told.rsplit(':').next().unwrap().parse().unwrap();
    assert!((20_000..30_000).contains(&own), "{told}");
    assert!(site.succeeds(&["status"]).contains(&told));
    load::get(&told, load::PAGE).unwrap();
    // By the other loopback address as well.
    load::get(&format!("[::1]:{own}"), load::PAGE).unwrap();

    site.succeeds(&["scale", "web=3"]);
    reach(&site, 3);
    for _ in 0..30 {
        load::get(&told, load::PAGE).unwrap();
    }
    let mut names = BTreeSet::new();
    wait_for("every instance to be asked", LONG, || {
        names.insert(load::get(&told, load::WHO).unwrap());
        (names.len() == 3).then_some(())
    })
    .unwrap();

    running.kill();
    assert!(load::get(&told, load::PAGE).is_err());
    let mut command = site.context.command();
    command.args(["up", "--listen", "none", "--json"]);
    let (running, said) = Running::start(command, "\n");
    let started: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(address(&started["routes"]), told, "{started}");
    wait_for("the same route", LONG, || load::get(&told, load::PAGE).ok()).unwrap();
    reach(&site, 3);
    assert_eq!(address(&site.json(0, &["status"])["data"]["routes"]), told);
    running.end();
    assert!(load::get(&told, load::PAGE).is_err());
    drop(taken);
}

#[test]
fn a_port_that_is_lost_is_said_and_taken_back() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let site = site(free.local_addr().unwrap().port());
    let running = up(&site);
    make_env(&site);
    let told = deploy(&site);
    running.kill();
    // Somebody else is faster.
    let thief = TcpListener::bind(&told).unwrap();
    let running = up(&site);
    let state = |wanted: &'static str| {
        let what = format!("a route that is {wanted}");
        wait_for(&what, LONG, || {
            let status = site.json(0, &["status"])["data"].clone();
            (status["routes"][0]["status"] == wanted).then_some(status)
        })
        .unwrap()
    };
    let status = state("blocked");
    assert_eq!(status["routes"][0]["reason"], "bind_failed", "{status}");
    drop(thief);
    let status = state("active");
    assert_eq!(address(&status["routes"]), told);
    wait_for("the same route", LONG, || load::get(&told, load::PAGE).ok()).unwrap();
    running.end();
}
