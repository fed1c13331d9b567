//! What can be asked for and what is refused: names, quotas, claims, bounds.

use fluffy_api::Operation;
use fluffy_control::runtime::Notice;
use fluffy_control::{Material, Outcome};
use serde_json::{Value, json};

use crate::world::{DATA, DEV, WEB, World, routed};

const GIB: u64 = 1 << 30;
const SHOP: [&str; 2] = ["local", "shop"];
const LIVE: [&str; 3] = ["local", "shop", "live"];

fn limit(world: &mut World, dimension: &str, limit: u64) {
    let org = world.state.runtime.orgs.keys().next().unwrap().to_string();
    let version = world.state.meta("org", &org).unwrap().version;
    let body = json!({"limits": {dimension: limit}, "expected_version": version});
    world.done(Operation::SetQuotas, &["local"], body);
}

fn deployed(seed: u8) -> World {
    let mut world = World::new("fd00::/48", seed);
    world.node(1, 16 * GIB);
    let release = world.release(WEB);
    world.deploy(&release);
    world.settle();
    world
}

/// Two envs that something runs in, and public addresses for both.
fn two_envs(seed: u8) -> World {
    let mut world = deployed(seed);
    world.done(Operation::CreateEnv, &SHOP, json!({"name": "live"}));
    let release = world.release(WEB);
    let body = json!({"release_id": release});
    world.done(Operation::CreateDeploy, &LIVE, body);
    world.say(Notice::Ipv4Pool(vec!["203.0.113.0/28".to_owned()]));
    world
}

fn raw(listen_port: u16, ipv4_required: bool) -> Value {
    json!({"listen_port": listen_port, "protocol_hint": "tcp_raw",
        "ipv4_required": ipv4_required, "backend_process": "web", "backend_port": 8080})
}

fn tls(hostname: &str) -> Value {
    json!({"hostname": hostname, "listen_port": 443, "protocol_hint": "tls_passthrough",
        "backend_process": "web", "backend_port": 8080})
}

/// Makes a route of an env, and gives its path.
fn exposed(world: &mut World, env: [&'static str; 3], body: Value) -> Vec<String> {
    let made = world.done(Operation::CreateRoute, &env, body);
    let parts = env.into_iter().chain(made["id"].as_str());
    parts.map(str::to_owned).collect()
}

fn parts(path: &[String]) -> Vec<&str> {
    path.iter().map(String::as_str).collect()
}

/// Says that the DNS has the text that a route waits for; the refusal, if so.
fn proven(world: &mut World, path: &[String]) -> Result<(), &'static str> {
    let mut verify = world.request(Operation::VerifyRoute, &parts(path), json!({}));
    verify.material = Material::Proof("dns_txt".to_owned());
    match world.ask(&verify) {
        Outcome::Done { .. } => Ok(()),
        Outcome::Refused(refusal) => Err(refusal.code),
        other => panic!("{other:?}"),
    }
}

/// Every route that edges are told of: whether at its own address, and which port.
fn routed_at(world: &World) -> Vec<(bool, u16)> {
    let routes = world.state.runtime.edge_config().routes.into_iter();
    let mut at: Vec<_> = routes
        .map(|it| (it.ipv4.is_some(), it.listen_port))
        .collect();
    at.sort_unstable();
    at
}

fn take_address(world: &mut World, env: [&str; 3]) {
    let mut force = world.request(Operation::DisableIpv4, &env, json!({}));
    force.query.insert("force".to_owned(), "true".to_owned());
    world.done_with(&force);
}

#[test]
fn a_name_is_taken_once_and_rests_after_deletion() {
    let mut world = World::new("fd00::/48", 20);
    let body = json!({"name": "shop"});
    let refused = world.refused(Operation::CreateApp, &["local"], body);
    assert_eq!(refused.code, "name_taken");
    for name in ["Shop", "1shop", "", "a_b", &"x".repeat(33)] {
        let refused = world.refused(Operation::CreateApp, &["local"], json!({"name": name}));
        assert_eq!(refused.code, "invalid_argument", "{name}");
    }
    world.done(Operation::CreateApp, &["local"], json!({"name": "other"}));
    world.done(Operation::DeleteApp, &["local", "other"], json!({}));
    let refused = world.refused(Operation::CreateApp, &["local"], json!({"name": "other"}));
    assert_eq!(refused.code, "name_taken");
    let project = json!({"name": "team"});
    world.done(Operation::CreateProject, &["local"], project);
    let moved = json!({"project": "team", "description": "Sells"});
    let app = world.done(Operation::UpdateApp, &SHOP, moved);
    assert_eq!(app["description"], "Sells");
    assert!(app["project_id"].is_string());
    let refused = world.refused(Operation::DeleteProject, &["local", "team"], json!({}));
    assert_eq!(refused.code, "not_empty");
    let app = world.done(Operation::UpdateApp, &SHOP, json!({"project": null}));
    assert!(app["project_id"].is_null());
    let gone = world.done(Operation::DeleteProject, &["local", "team"], json!({}));
    assert_eq!(gone["deleted"], true);
    world.check_fold();
}

#[test]
fn an_env_has_a_name_for_people_which_may_change() {
    let mut world = World::new("fd00::/48", 31);
    let named = json!({"name": "live", "display_name": "The shop"});
    let env = world.done(Operation::CreateEnv, &SHOP, named);
    assert_eq!(env["display_name"], "The shop");
    let live = ["local", "shop", "live"];
    let renamed = json!({"display_name": "The old shop"});
    let env = world.done(Operation::UpdateEnv, &live, renamed);
    assert_eq!(
        (&env["name"], &env["display_name"], &env["protected"]),
        (&json!("live"), &json!("The old shop"), &json!(false))
    );
    // Without one it is called by its name.
    let env = world.get(Operation::GetEnv, &DEV);
    assert_eq!(env["display_name"], "dev");
    for bad in ["", &"x".repeat(65)] {
        let body = json!({"display_name": bad});
        let refused = world.refused(Operation::UpdateEnv, &live, body);
        assert_eq!(refused.code, "invalid_argument", "{bad}");
        let body = json!({"name": "more", "display_name": bad});
        let refused = world.refused(Operation::CreateEnv, &SHOP, body);
        assert_eq!(refused.code, "invalid_argument", "{bad}");
    }
    world.check_fold();
}

#[test]
fn lists_are_filtered_by_what_they_show() {
    let mut world = deployed(32);
    let deploys = (Operation::ListDeploys, &DEV[..]);
    assert_eq!(world.listed(deploys, ("process", "web")).len(), 1);
    assert_eq!(world.listed(deploys, ("process", "db")).len(), 0);
    world.done(Operation::CreateEnv, &SHOP, json!({"name": "live"}));
    world.done(Operation::DeleteEnv, &DEV, json!({}));
    let envs = (Operation::ListEnvs, &SHOP[..]);
    assert_eq!(world.listed(envs, ("status", "active")), ["live"]);
    assert_eq!(world.listed(envs, ("status", "deleting")), ["dev"]);
    let members = (Operation::ListMembers, &["local"][..]);
    // The owner of the machine needs no invite.
    assert_eq!(world.listed(members, ("status", "active")).len(), 1);
    assert_eq!(world.listed(members, ("status", "invited")).len(), 0);
}

#[test]
fn a_manifest_is_refused_with_all_its_problems() {
    let mut world = World::new("fd00::/48", 21);
    let text = "schema_version = \"v2\"\n[processes.web]\nreplicas = 1000\n";
    let body = json!({"image": "x", "manifest": text});
    let refused = world.refused(Operation::CreateRelease, &SHOP, body);
    assert_eq!(refused.code, "manifest_invalid");
    let codes: Vec<&str> = refused.fields.iter().map(|it| it.code.as_str()).collect();
    assert!(codes.contains(&"E_SCHEMA_VERSION") && codes.contains(&"E_REPLICA_RANGE"));
    assert_eq!(refused.fields[0].place, Some((1, 18)));
    let body = json!({"image": "x", "manifest": WEB});
    let refused = world.refused(Operation::CreateRelease, &SHOP, body);
    assert_eq!(refused.code, "image_unresolvable");
}

#[test]
fn the_replica_limit_of_volumes_holds_at_every_door() {
    let mut world = World::new("fd00::/48", 22);
    world.node(1, 16 * GIB);
    // The manifest itself.
    let text = DATA.replace("[processes.db]", "[processes.db]\nreplicas = 2");
    let body = json!({"image": "x", "manifest": text});
    let refused = world.refused(Operation::CreateRelease, &SHOP, body);
    assert_eq!(refused.fields[0].code, "E_VOLUME_REPLICA_LIMIT");
    // Explicit scale.
    let release = world.release(DATA);
    world.deploy(&release);
    let two = json!({"processes": {"db": 2}});
    let refused = world.refused(Operation::SetScale, &DEV, two);
    assert_eq!(refused.code, "E_VOLUME_REPLICA_LIMIT");
    let words = "process type 'db' has volume mounts and cannot have replicas > 1";
    assert_eq!(refused.why, words);
    // An attachment to what has several, and a deploy of several to what has one.
    let both = format!("{WEB}replicas = 2\n");
    let release = world.release(&both);
    world.deploy(&release);
    let body = json!({"name": "extra", "size_bytes": GIB});
    let volume = world.done(Operation::CreateVolume, &["local"], body);
    let attach = |process: &str, path: &str| json!({"volume_id": volume["id"], "process": process, "mount_path": path});
    let refused = world.refused(Operation::CreateAttachment, &DEV, attach("web", "/x"));
    assert_eq!(refused.code, "E_VOLUME_REPLICA_LIMIT");
    world.done(Operation::SetScale, &DEV, json!({"processes": {"web": 1}}));
    world.done(Operation::CreateAttachment, &DEV, attach("web", "/x"));
    // Going back to what the manifest says is a scale too.
    let reset = json!({"processes": {"web": null}});
    let refused = world.refused(Operation::SetScale, &DEV, reset);
    assert_eq!(refused.code, "E_VOLUME_REPLICA_LIMIT");
    // Without replicas of its own it is deployed, whatever it could be scaled to.
    let one = world.release(WEB);
    world.deploy(&one);
    let two = json!({"processes": {"web": 2}});
    let refused = world.refused(Operation::SetScale, &DEV, two);
    assert_eq!(refused.code, "E_VOLUME_REPLICA_LIMIT");
    world.done(
        Operation::SetScale,
        &DEV,
        json!({"processes": {"web": null}}),
    );
    let again = json!({"release_id": release});
    let refused = world.refused(Operation::CreateDeploy, &DEV, again);
    assert_eq!(refused.code, "E_VOLUME_REPLICA_LIMIT");
}

#[test]
fn scale_keeps_its_bounds() {
    let mut world = World::new("fd00::/48", 23);
    world.node(1, 16 * GIB);
    let release = world.release(&format!("{WEB}scaling = {{ min = 1, max = 3 }}\n"));
    world.deploy(&release);
    for wrong in [0, 4] {
        let body = json!({"processes": {"web": wrong}});
        let refused = world.refused(Operation::SetScale, &DEV, body);
        assert_eq!(refused.code, "scale_out_of_bounds");
    }
    let refused = world.refused(Operation::SetScale, &DEV, json!({"processes": {"api": 1}}));
    assert_eq!(refused.code, "invalid_argument");
    let set = world.done(Operation::SetScale, &DEV, json!({"processes": {"web": 3}}));
    assert_eq!(
        set["processes"]["web"],
        json!({"desired": 3, "source": "explicit", "min": 1, "max": 3})
    );
    let set = world.done(
        Operation::SetScale,
        &DEV,
        json!({"processes": {"web": null}}),
    );
    assert_eq!(set["processes"]["web"]["source"], "manifest");
}

#[test]
fn a_release_whose_bounds_exclude_the_scale_is_not_deployed() {
    let mut world = deployed(44);
    world.done(Operation::SetScale, &DEV, json!({"processes": {"web": 5}}));
    let narrow = world.release(&format!("{WEB}scaling = {{ min = 1, max = 3 }}\n"));
    let body = json!({"release_id": narrow});
    let refused = world.refused(Operation::CreateDeploy, &DEV, body.clone());
    assert_eq!(refused.code, "scale_out_of_bounds");
    assert!(
        refused.why.contains("from 1 to 3 instances, not 5"),
        "{}",
        refused.why
    );
    // The control: without a scale of its own the release's number counts.
    world.done(
        Operation::SetScale,
        &DEV,
        json!({"processes": {"web": null}}),
    );
    world.done(Operation::CreateDeploy, &DEV, body);
}

#[test]
fn a_surge_is_booked_only_as_far_as_it_can_go() {
    let mut world = deployed(45);
    let release = world.release(&WEB.replace("serve", "serve2"));
    // One runs; at most one more comes, whatever the surge could be.
    limit(&mut world, "instances", 2);
    let body = json!({"release_id": release, "options": {"max_surge": 10}});
    world.done(Operation::CreateDeploy, &DEV, body.clone());
    limit(&mut world, "instances", 1);
    let refused = world.refused(Operation::CreateDeploy, &DEV, body);
    assert_eq!(refused.code, "quota_exceeded");
}

#[test]
fn a_quota_is_never_exceeded_and_says_by_how_much() {
    let mut world = deployed(24);
    limit(&mut world, "apps", 2);
    world.done(Operation::CreateApp, &["local"], json!({"name": "two"}));
    let refused = world.refused(Operation::CreateApp, &["local"], json!({"name": "three"}));
    assert_eq!(refused.code, "quota_exceeded");
    let details = Value::Object(*refused.details);
    assert_eq!(
        details,
        json!({"dimension": "apps", "limit": 2, "current": 2, "requested": 1})
    );
    limit(&mut world, "instances", 3);
    let refused = world.refused(Operation::SetScale, &DEV, json!({"processes": {"web": 4}}));
    assert_eq!(refused.details["dimension"], "instances");
    world.done(Operation::SetScale, &DEV, json!({"processes": {"web": 3}}));
    world.settle();
    // There is no room for one more on the way.
    let release = world.release(&WEB.replace("serve", "more"));
    let body = json!({"release_id": release});
    let refused = world.refused(Operation::CreateDeploy, &DEV, body);
    assert_eq!(refused.code, "quota_exceeded");
    let careful = json!({"release_id": release, "options": {"max_surge": 0, "max_unavailable": 1}});
    world.done(Operation::CreateDeploy, &DEV, careful);
    world.settle();
    let quotas = world.get(Operation::GetQuotas, &["local"]);
    assert_eq!(
        quotas["quotas"]["instances"],
        json!({"limit": 3, "used": 3})
    );
    // Lowered below use, it stops growth and ends nothing.
    limit(&mut world, "instances", 1);
    world.settle();
    assert_eq!(world.state.runtime.plan.instances.len(), 3);
    world.check_fold();
}

#[test]
fn a_hostname_and_a_port_belong_to_one() {
    let mut world = deployed(25);
    world.done(Operation::CreateEnv, &SHOP, json!({"name": "live"}));
    let release = world.release(WEB);
    let live = LIVE;
    world.done(
        Operation::CreateDeploy,
        &live,
        json!({"release_id": release}),
    );
    let route = |host: Option<&str>, port: u16, hint: &str| {
        json!({"hostname": host, "listen_port": port, "protocol_hint": hint,
            "backend_process": "web", "backend_port": 8080})
    };
    let tls = "tls_passthrough";
    let first = world.done(
        Operation::CreateRoute,
        &DEV,
        route(Some("Shop.example.com"), 443, tls),
    );
    assert_eq!(first["hostname"], "shop.example.com");
    assert_eq!(
        first["challenge"]["record"],
        "_fluffy-challenge.shop.example.com"
    );
    let id = first["id"].as_str().unwrap();
    let path = [DEV[0], DEV[1], DEV[2], id];
    let mut verify = world.request(Operation::VerifyRoute, &path, json!({}));
    verify.material = Material::Proof("dns".to_owned());
    assert_eq!(world.done_with(&verify)["verified"], true);
    for (path, body, code) in [
        (
            live,
            route(Some("shop.example.com"), 8443, tls),
            "hostname_taken",
        ),
        (DEV, route(Some("shop.example.com"), 443, tls), "port_taken"),
        (live, route(None, 443, "tcp_raw"), "ipv4_required"),
        (live, route(None, 25, "tcp_raw"), "port_denied"),
        (live, route(None, 443, tls), "invalid_argument"),
        (live, route(Some("shop"), 443, tls), "invalid_argument"),
        (live, route(Some("192.0.2.1"), 443, tls), "invalid_argument"),
    ] {
        let refused = world.refused(Operation::CreateRoute, &path, body.clone());
        assert_eq!(refused.code, code, "{body}");
    }
    let mut undeclared = route(Some("a.example.com"), 443, tls);
    undeclared["backend_port"] = json!(9);
    let refused = world.refused(Operation::CreateRoute, &DEV, undeclared);
    assert_eq!(refused.code, "backend_port_undeclared");
    let mut proxied = route(Some("a.example.com"), 443, tls);
    proxied["proxy_protocol"] = json!("v2");
    let refused = world.refused(Operation::CreateRoute, &DEV, proxied);
    assert_eq!(refused.code, "proxy_ack_required");
    world.done(
        Operation::CreateRoute,
        &live,
        route(Some("live.example.com"), 443, tls),
    );
    // A deploy that would leave the route without a target.
    let other = world.release(&WEB.replace("8080", "8081"));
    let body = json!({"release_id": other});
    let refused = world.refused(Operation::CreateDeploy, &DEV, body);
    assert_eq!(refused.code, "route_target_missing");
    // Proven and applied, it serves; dropped by edges, its name is free.
    world.say(routed(Some(1)));
    assert_eq!(world.get(Operation::GetRoute, &path)["status"], "pending");
    let applied = Some(world.state.seq);
    world.say(routed(applied));
    assert_eq!(world.get(Operation::GetRoute, &path)["status"], "active");
    world.done(Operation::DeleteRoute, &path, json!({}));
    let taken = route(Some("shop.example.com"), 443, tls);
    let refused = world.refused(Operation::CreateRoute, &live, taken.clone());
    assert_eq!(refused.code, "hostname_taken", "edges still have it");
    let applied = Some(world.state.seq);
    world.say(routed(applied));
    world.done(Operation::CreateRoute, &live, taken);
    world.check_fold();
}

#[test]
fn a_route_that_gives_its_address_up_takes_nobodys_port() {
    let mut world = two_envs(46);
    let [dev, live] = [DEV, LIVE].map(|env| {
        world.done(Operation::EnableIpv4, &env, json!({}));
        exposed(&mut world, env, raw(5432, true))
    });
    let shared = json!({"ipv4_required": false});
    world.done(Operation::UpdateRoute, &parts(&dev), shared.clone());
    let refused = world.refused(Operation::UpdateRoute, &parts(&live), shared.clone());
    assert_eq!(refused.code, "port_taken");
    // What gave its address up is not there any more, also while its env has it.
    assert_eq!(routed_at(&world), [(false, 5432), (true, 5432)]);
    // The other keeps its own, and so its env does.
    let refused = world.refused(Operation::DisableIpv4, &LIVE, json!({}));
    assert_eq!(refused.code, "ipv4_in_use");
    world.done(Operation::DisableIpv4, &DEV, json!({}));
    assert_eq!(routed_at(&world), [(false, 5432), (true, 5432)]);
    // The control: what stays where it is, and what moves where there is room.
    let same = json!({"ipv4_required": true, "backend_port": 8080});
    world.done(Operation::UpdateRoute, &parts(&live), same);
    world.done(Operation::DeleteRoute, &parts(&dev), json!({}));
    let refused = world.refused(Operation::UpdateRoute, &parts(&live), shared.clone());
    assert_eq!(refused.code, "port_taken", "edges still have it");
    world.say(routed(Some(world.state.seq)));
    world.done(Operation::UpdateRoute, &parts(&live), shared);
    assert_eq!(routed_at(&world), [(false, 5432)]);
    world.check_fold();
}

#[test]
fn what_all_envs_share_is_nobodys_alone_and_an_own_address_is() {
    let mut world = two_envs(47);
    for port in [80, 443] {
        let refused = world.refused(Operation::CreateRoute, &DEV, raw(port, false));
        assert_eq!(refused.code, "ipv4_required", "{port}");
    }
    // The control: of other ports the first who comes has it.
    exposed(&mut world, DEV, raw(9000, false));
    let refused = world.refused(Operation::CreateRoute, &LIVE, raw(9000, false));
    assert_eq!(refused.code, "port_taken");
    // At an address of its own nobody else is in the way, nor is it in anybody's.
    exposed(&mut world, DEV, tls("one.example.com"));
    world.done(Operation::EnableIpv4, &LIVE, json!({}));
    let own = exposed(&mut world, LIVE, raw(443, true));
    exposed(&mut world, LIVE, raw(9000, true));
    exposed(&mut world, DEV, tls("two.example.com"));
    // Names of the same env are answered there as well.
    let refused = world.refused(Operation::CreateRoute, &LIVE, tls("live.example.com"));
    assert_eq!(refused.code, "port_taken");
    let shared = json!({"ipv4_required": false});
    let refused = world.refused(Operation::UpdateRoute, &parts(&own), shared);
    assert_eq!(refused.code, "ipv4_required");
    let other = json!({"backend_port": 8080});
    world.done(Operation::UpdateRoute, &parts(&own), other);
    world.check_fold();
}

#[test]
fn an_address_of_its_own_has_five_ports_more() {
    let mut world = two_envs(51);
    world.done(Operation::EnableIpv4, &DEV, json!({}));
    for port in [80, 443, 9000, 9001, 9002, 9003, 9004] {
        exposed(&mut world, DEV, raw(port, true));
    }
    // Not by way of a port that it has among those of all, either.
    let sixth = exposed(&mut world, DEV, raw(9005, false));
    let refused = world.refused(Operation::CreateRoute, &DEV, raw(9005, true));
    assert_eq!(refused.code, "quota_exceeded");
    let own = json!({"ipv4_required": true});
    let refused = world.refused(Operation::UpdateRoute, &parts(&sixth), own);
    assert_eq!(refused.code, "quota_exceeded");
}

#[test]
fn a_route_that_needs_no_address_any_more_goes_on_without() {
    let mut world = two_envs(48);
    world.done(Operation::EnableIpv4, &DEV, json!({}));
    let route = exposed(&mut world, DEV, raw(9000, true));
    take_address(&mut world, DEV);
    let shown = world.get(Operation::GetRoute, &parts(&route));
    assert_eq!(
        (&shown["status"], &shown["reason"]),
        (&json!("blocked"), &json!("ipv4_missing"))
    );
    assert_eq!(routed_at(&world), []);
    let other = json!({"backend_port": 8080});
    let refused = world.refused(Operation::UpdateRoute, &parts(&route), other);
    assert_eq!(refused.code, "ipv4_required", "it still needs one");
    let shared = json!({"ipv4_required": false});
    let shown = world.done(Operation::UpdateRoute, &parts(&route), shared);
    assert_eq!(
        (&shown["status"], &shown["reason"]),
        (&json!("pending"), &json!(null))
    );
    assert_eq!(routed_at(&world), [(false, 9000)]);
    world.say(routed(Some(world.state.seq)));
    let shown = world.get(Operation::GetRoute, &parts(&route));
    assert_eq!(shown["status"], "active");
    world.check_fold();
}

/// Else edges would try again to serve it, and that where everybody's are.
#[test]
fn what_edges_could_not_serve_waits_for_its_address_once_that_is_gone() {
    let mut world = two_envs(49);
    world.done(Operation::EnableIpv4, &DEV, json!({}));
    let route = exposed(&mut world, DEV, raw(9000, true));
    let problem = (route[3].parse().unwrap(), "bind_failed".to_owned());
    world.say(Notice::Routes {
        applied: Some(world.state.seq),
        problems: [problem].into(),
        loopback: false,
    });
    let reason = |world: &World| {
        let shown = world.get(Operation::GetRoute, &parts(&route));
        assert_eq!(shown["status"], "blocked");
        shown["reason"].as_str().unwrap().to_owned()
    };
    assert_eq!(reason(&world), "bind_failed");
    assert_eq!(routed_at(&world).len(), 1, "it is tried again");
    take_address(&mut world, DEV);
    world.say(routed(Some(world.state.seq)));
    assert_eq!(reason(&world), "ipv4_missing");
    assert_eq!(routed_at(&world), []);
    world.done(Operation::EnableIpv4, &DEV, json!({}));
    assert_eq!(routed_at(&world).len(), 1);
    world.check_fold();
}

#[test]
fn a_name_is_whose_who_proves_it_and_asking_for_it_keeps_nobody_from_it() {
    let mut world = two_envs(50);
    let name = "shop.example.com";
    let squatter = exposed(&mut world, DEV, tls(name));
    let owner = exposed(&mut world, LIVE, tls(name));
    let unproven = world.state.runtime.unproven();
    assert_eq!(unproven.len(), 2);
    assert_ne!(unproven[0].challenge.value, unproven[1].challenge.value);
    assert_eq!(proven(&mut world, &owner), Ok(()));
    // From here on it is the owner's alone, by whichever door.
    assert_eq!(proven(&mut world, &squatter), Err("hostname_taken"));
    let many = world.events.len();
    world.say(Notice::RouteProven {
        route: squatter[3].parse().unwrap(),
        method: "dns_txt".to_owned(),
    });
    assert_eq!(world.events.len(), many);
    let mut other = tls(name);
    other["listen_port"] = json!(8443);
    let refused = world.refused(Operation::CreateRoute, &DEV, other.clone());
    assert_eq!(refused.code, "hostname_taken");
    exposed(&mut world, LIVE, other);
    let unproven = world.state.runtime.unproven();
    assert_eq!(unproven.len(), 1, "nobody looks for what would not count");
    let routes = world.state.runtime.edge_config().routes;
    let ids: Vec<String> = routes.iter().map(|it| it.id.to_string()).collect();
    assert_eq!(ids, owner[3..]);
    // Until edges have dropped it; then it is whose who proves it.
    world.done(Operation::DeleteRoute, &parts(&owner), json!({}));
    assert_eq!(proven(&mut world, &squatter), Err("hostname_taken"));
    world.say(routed(Some(world.state.seq)));
    assert_eq!(proven(&mut world, &squatter), Ok(()));
    world.check_fold();
}

#[test]
fn public_addresses_come_from_the_operator_and_rest() {
    let mut world = deployed(26);
    let refused = world.refused(Operation::EnableIpv4, &DEV, json!({}));
    assert_eq!(refused.code, "ipv4_pool_exhausted");
    world.say(Notice::Ipv4Pool(vec!["203.0.113.7".to_owned()]));
    let wrong = world.say(Notice::Ipv4Pool(vec!["203.0.113".to_owned()]));
    assert!(matches!(wrong, Outcome::Refused(_)));
    let ipv4 = world.done(Operation::EnableIpv4, &DEV, json!({}));
    assert_eq!(ipv4["address"], "203.0.113.7");
    world.done(
        Operation::CreateRoute,
        &DEV,
        json!({"listen_port": 80, "protocol_hint": "tcp_raw", "ipv4_required": true,
            "backend_process": "web", "backend_port": 8080}),
    );
    let refused = world.refused(Operation::DisableIpv4, &DEV, json!({}));
    assert_eq!(refused.code, "ipv4_in_use");
    let mut force = world.request(Operation::DisableIpv4, &DEV, json!({}));
    force.query.insert("force".to_owned(), "true".to_owned());
    world.done_with(&force);
    let routes = world.get(Operation::ListRoutes, &DEV);
    assert_eq!(routes["items"][0]["reason"], "ipv4_missing");
    let refused = world.refused(Operation::EnableIpv4, &DEV, json!({}));
    assert_eq!(refused.code, "ipv4_pool_exhausted", "it rests");
    world.pass(24 * 3600);
    world.done(Operation::EnableIpv4, &DEV, json!({}));
    let routes = world.get(Operation::ListRoutes, &DEV);
    assert_eq!(routes["items"][0]["status"], "pending");
}

#[test]
fn a_volume_is_attached_snapshotted_restored_and_deleted() {
    use fluffy_control::runtime::notice::{JobReport, VolumeReport};
    let mut world = deployed(27);
    let node = *world.state.runtime.nodes.keys().next().unwrap();
    let body = json!({"name": "disk", "size_bytes": 2 * GIB});
    let made = world.done(Operation::CreateVolume, &["local"], body);
    let volume = made["id"].as_str().unwrap().to_owned();
    world.work();
    let huge = json!({"name": "huge", "size_bytes": 1024 * GIB});
    limit(&mut world, "volume_bytes", 5 << 40);
    let refused = world.refused(Operation::CreateVolume, &["local"], huge);
    assert_eq!(refused.code, "no_capacity_disk");
    let attach = json!({"volume_id": volume, "process": "web", "mount_path": "/proc/x"});
    let refused = world.refused(Operation::CreateAttachment, &DEV, attach);
    assert_eq!(refused.code, "mount_path_invalid");
    let attach = json!({"volume_id": volume, "process": "web", "mount_path": "/disk"});
    let made = world.done(Operation::CreateAttachment, &DEV, attach);
    let attachment = made["id"].as_str().unwrap().to_owned();
    world.settle();
    let path = [DEV[0], DEV[1], DEV[2], attachment.as_str()];
    let refused = world.refused(Operation::DeleteAttachment, &path, json!({}));
    assert_eq!(refused.code, "volume_in_use");
    let refused = world.refused(Operation::DeleteVolume, &["local", "disk"], json!({}));
    assert_eq!(refused.code, "volume_attached");
    let snap = world.done(Operation::CreateSnapshot, &["local", "disk"], json!({}));
    let snap = snap["id"].as_str().unwrap().to_owned();
    let again = json!({"name": "copy"});
    let refused = world.refused(Operation::RestoreSnapshot, &["local", &snap], again.clone());
    assert_eq!(refused.code, "snapshot_not_ready");
    let report = JobReport::Succeeded {
        size_bytes: Some(7),
        consistency: Some("crash".to_owned()),
    };
    world.say(Notice::Snapshot {
        node,
        snapshot: snap.parse().unwrap(),
        report: report.clone(),
    });
    let restore = world.done(Operation::RestoreSnapshot, &["local", &snap], again);
    let id = restore["id"].as_str().unwrap().to_owned();
    world.say(Notice::Restore {
        node,
        restore: id.parse().unwrap(),
        report,
    });
    let shown = world.get(Operation::GetOperation, &["local", &id]);
    assert_eq!(shown["status"], "succeeded");
    assert_eq!(
        world.get(Operation::GetVolume, &["local", "copy"])["status"],
        "available"
    );
    world.done(Operation::SetScale, &DEV, json!({"processes": {"web": 0}}));
    world.settle();
    world.done(Operation::DeleteAttachment, &path, json!({}));
    world.done(Operation::DeleteVolume, &["local", "disk"], json!({}));
    let volume = volume.parse().unwrap();
    world.say(Notice::Volume {
        node,
        volume,
        report: VolumeReport::Removed,
    });
    assert!(!world.state.runtime.volumes.contains_key(&volume));
    world.check_fold();
}

#[test]
fn a_client_comes_back_only_to_a_session_that_waits_for_it() {
    let mut world = deployed(29);
    let instances = &world.state.runtime.plan.instances;
    let instance = instances.keys().next().unwrap().to_string();
    let path = [DEV[0], DEV[1], DEV[2], instance.as_str()];
    let piped = json!({"command": ["sh"], "resume": true});
    let refused = world.refused(Operation::CreateExec, &path, piped);
    assert_eq!(refused.code, "invalid_argument");
    let body = json!({"command": ["sh"], "tty": true, "resume": true, "as_root": true});
    let made = world.done(Operation::CreateExec, &path, body);
    let shown = world.get(Operation::GetExec, &["local", made["id"].as_str().unwrap()]);
    assert_eq!(
        (&shown["resume"], &shown["as_root"]),
        (&json!(true), &json!(true))
    );
    let session = made["id"].as_str().unwrap().parse().unwrap();
    let resume = Notice::ExecResumed {
        session,
        pii_ref: None,
    };
    assert!(
        matches!(world.say(resume.clone()), Outcome::Refused(_)),
        "too early"
    );
    let connect = Notice::ExecConnected {
        session,
        pii_ref: None,
    };
    assert!(matches!(world.say(connect), Outcome::Done { .. }));
    assert!(matches!(world.say(resume.clone()), Outcome::Done { .. }));
    assert_eq!(
        world.events.last().unwrap().event_type,
        "exec_session.resumed"
    );
    let ended = Notice::ExecEnded {
        session,
        end_reason: "exited".to_owned(),
        exit_code: Some(0),
        bytes_in: 0,
        bytes_out: 0,
    };
    world.say(ended);
    assert!(matches!(world.say(resume), Outcome::Refused(_)), "too late");
    world.check_fold();
}

#[test]
fn a_signal_is_for_what_runs_and_is_on_record() {
    let mut world = deployed(30);
    let instances = &world.state.runtime.plan.instances;
    let (id, node) = instances
        .iter()
        .next()
        .map(|(id, it)| (*id, it.node))
        .unwrap();
    let id = id.to_string();
    let path = [DEV[0], DEV[1], DEV[2], id.as_str()];
    for signal in ["KILL", "STOP", "usr1", ""] {
        let body = json!({"signal": signal});
        let refused = world.refused(Operation::SignalInstance, &path, body);
        assert_eq!(refused.code, "invalid_argument", "{signal}");
    }
    let body = json!({"signal": "USR1"});
    world.done(Operation::SignalInstance, &path, body.clone());
    let event = world.events.last().unwrap();
    assert_eq!(event.event_type, "instance.signal_requested");
    assert!(event.payload.as_str().contains(&node.to_string()));
    let shown = world.get(Operation::DiagnoseInstance, &path);
    assert_eq!(shown["id"], id.as_str());
    world.done(Operation::SetScale, &DEV, json!({"processes": {"web": 0}}));
    world.settle();
    let gone = world.refused(Operation::SignalInstance, &path, body);
    let codes = ["instance_not_running", "not_found"];
    assert!(codes.contains(&gone.code), "{gone:?}");
    world.check_fold();
}

#[test]
fn exec_runs_only_where_something_runs_and_ends_with_it() {
    let mut world = deployed(28);
    let id = world
        .state
        .runtime
        .plan
        .instances
        .keys()
        .next()
        .unwrap()
        .to_string();
    let path = [DEV[0], DEV[1], DEV[2], id.as_str()];
    let body = json!({"command": ["sh", "--password", "hunter2"], "reason": "look"});
    let one = world.done(Operation::CreateExec, &path, body.clone());
    let session = one["id"].as_str().unwrap().to_owned();
    world.done(Operation::CreateExec, &path, body.clone());
    let refused = world.refused(Operation::CreateExec, &path, body.clone());
    assert_eq!(refused.code, "exec_limit");
    // It is on record what was not let in, without what is secret.
    let [.., asked, denied] = world.events.as_slice() else {
        panic!("{:?}", world.events)
    };
    assert_eq!(asked.event_type, "exec_session.requested");
    assert_eq!(denied.event_type, "exec_session.denied");
    assert!(denied.payload.as_str().contains("exec_limit"));
    let of_denied = ["local", denied.aggregate.id.as_str()];
    assert_eq!(
        world.get(Operation::GetExec, &of_denied)["status"],
        "denied"
    );
    let shown = world.get(Operation::GetExec, &["local", &session]);
    assert_eq!(shown["status"], "granted");
    let ledger = format!("{:?}", world.events);
    assert!(!ledger.contains("hunter2"));
    let id: fluffy_base::id::ExecSessionId = session.parse().unwrap();
    let connect = Notice::ExecConnected {
        session: id,
        pii_ref: None,
    };
    assert!(matches!(world.say(connect.clone()), Outcome::Done { .. }));
    assert!(matches!(world.say(connect), Outcome::Refused(_)), "once");
    // Nobody comes back to one that does not wait.
    let resume = |session| Notice::ExecResumed {
        session,
        pii_ref: None,
    };
    assert!(matches!(world.say(resume(id)), Outcome::Refused(_)));
    world.pass(7200);
    world.say(Notice::Upkeep);
    let shown = world.get(Operation::GetExec, &["local", &session]);
    assert_eq!(shown["end_reason"], "timeout");
    world.done(Operation::CreateExec, &path, body.clone());
    world.done(Operation::SetScale, &DEV, json!({"processes": {"web": 0}}));
    world.settle();
    let live = world
        .state
        .runtime
        .execs
        .values()
        .filter(|it| !it.state.is_final());
    assert_eq!(live.count(), 0, "nothing runs any more");
    world.check_fold();
}

/// Whether a volume of somebody else is there, and where, is nobody's business.
#[test]
fn a_foreign_volume_is_as_unknown_as_one_that_is_not_there() {
    let mut world = World::new("fd00::/48", 29);
    world.node(1, 16 * GIB);
    let volume = |world: &mut World, org: &str, name: &str| {
        let body = json!({"name": name, "size_bytes": GIB});
        let made = world.done(Operation::CreateVolume, &[org], body);
        made["id"].as_str().unwrap().to_owned()
    };
    let mut attachments = Vec::new();
    for (name, path) in [("one", "/one"), ("two", "/two")] {
        let id = volume(&mut world, "local", name);
        let body = json!({"volume_id": id, "process": "job", "mount_path": path});
        let made = world.done(Operation::CreateAttachment, &DEV, body);
        attachments.push(made["id"].as_str().unwrap().to_owned());
    }
    world.done(Operation::CreateOrg, &[], json!({"slug": "other"}));
    let foreign = volume(&mut world, "other", "theirs");
    let made_up = fluffy_base::id::VolumeId::from_bits(7).to_string();
    let path = [DEV[0], DEV[1], DEV[2], &attachments[0]];
    let [theirs, nobodys] = [foreign, made_up].map(|id| {
        let body = json!({"volume_id": id});
        world.refused(Operation::ReplaceAttachment, &path, body)
    });
    assert_eq!(theirs, nobodys);
    // What is one's own is taken there.
    let own = volume(&mut world, "local", "three");
    world.done(
        Operation::ReplaceAttachment,
        &path,
        json!({"volume_id": own}),
    );
}

#[test]
fn without_another_release_there_is_nothing_to_go_back_to() {
    let mut world = deployed(36);
    let refused = world.refused(Operation::CreateRollback, &DEV, json!({}));
    assert_eq!(refused.code, "no_rollback_target");
    // The control: with another one there is.
    let next = world.release(&WEB.replace("serve", "serve2"));
    world.deploy(&next);
    world.settle();
    world.done(Operation::CreateRollback, &DEV, json!({}));
    world.check_fold();
}

#[test]
fn volumes_of_one_process_are_on_one_node() {
    let mut world = World::new("fd00::/48", 37);
    let nodes = [1, 2].map(|number| world.node(number, 16 * GIB).to_string());
    let body = |name: &str, node: &str| json!({"name": name, "size_bytes": GIB, "node": node});
    let mut volume = |name: &str, node: &str| {
        let made = world.done(Operation::CreateVolume, &["local"], body(name, node));
        made["id"].as_str().unwrap().to_owned()
    };
    let (first, second) = (volume("first", &nodes[0]), volume("second", &nodes[0]));
    let away = volume("away", &nodes[1]);
    world.settle();
    let mut near = body("near", &nodes[1]);
    near["near"] = json!("first");
    let refused = world.refused(Operation::CreateVolume, &["local"], near.clone());
    assert_eq!(refused.code, "volume_home_mismatch");
    near["node"] = json!(nodes[0]);
    world.done(Operation::CreateVolume, &["local"], near);

    let attach = |volume: &str, path: &str| {
        let process = "job";
        json!({"volume_id": volume, "process": process, "mount_path": path})
    };
    let made = world.done(Operation::CreateAttachment, &DEV, attach(&first, "/a"));
    let id = made["id"].as_str().unwrap().to_owned();
    world.done(Operation::CreateAttachment, &DEV, attach(&second, "/b"));
    let refused = world.refused(Operation::CreateAttachment, &DEV, attach(&away, "/c"));
    assert_eq!(refused.code, "volume_home_mismatch");
    let path = [DEV[0], DEV[1], DEV[2], id.as_str()];
    let body = json!({ "volume_id": away });
    let refused = world.refused(Operation::ReplaceAttachment, &path, body);
    assert_eq!(refused.code, "volume_home_mismatch");
    world.check_fold();
}

#[test]
fn more_secrets_than_an_env_has_are_refused() {
    let mut world = World::new("fd00::/48", 38);
    let mut set = |keys: usize, size_bytes: u64| {
        let mut request = world.request(Operation::ReplaceSecrets, &DEV, json!({"values": {}}));
        let Material::Secret(mut sealed) = world.sealed(b"values") else {
            panic!("it seals nothing");
        };
        sealed.keys = (0..keys).map(|number| format!("KEY_{number}")).collect();
        sealed.size_bytes = size_bytes;
        request.material = Material::Secret(sealed);
        match world.ask(&request) {
            Outcome::Refused(refusal) => refusal.code,
            Outcome::Done { .. } => "done",
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(set(257, 1), "secrets_invalid");
    assert_eq!(set(1, (256 << 10) + 1), "secrets_invalid");
    assert_eq!(set(256, 256 << 10), "done");
}
