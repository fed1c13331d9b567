//! Roles that are bound to an app or an env: what they give inside, that they
//! give nothing outside, and who can give them.

use fluffy_api::Operation;
use fluffy_api::operation::{Auth, Kind};
use fluffy_base::Digest;
use fluffy_base::id::{AttachmentId, MemberId, TokenId, VolumeId};
use fluffy_control::call::ResolvedImage;
use fluffy_control::event::{
    AppDeleted, EnvDeleted, ResolvedDigest, VolumeAttachmentCreated, VolumeCreated,
    VolumeStateChanged,
};
use fluffy_control::{Caller, Fact, Material, Outcome, Owner, Refusal, Request};
use serde_json::{Value, json};

use crate::ground::{HOUR, With, World, issuing, request, token_id};
use crate::matrix::path_of;

const ROLES: [&str; 5] = ["viewer", "developer", "operator", "admin", "owner"];

/// The world with a second app, `blog`, and a second open env, `shop/test`.
fn wide() -> World {
    let mut world = World::new();
    let acme = world.named("acme");
    let shop = at(&world, "acme/shop");
    world.env(shop, "test", false);
    let blog = world.app(acme, "blog");
    world.env(blog, "dev", false);
    world
}

/// What a path in names is.
fn at(world: &World, path: &str) -> Owner {
    let names = &world.state.access.names;
    let mut parts = path.split('/');
    let org = names.org(parts.next().unwrap());
    let app = parts
        .next()
        .map(|app| names.app(org.unwrap(), app).unwrap());
    let env = parts
        .next()
        .map(|env| names.env(app.unwrap(), env).unwrap());
    Owner { org, app, env }
}

fn bound(world: &mut World, role: &str, path: &str) -> (Caller, MemberId) {
    let person = world.person();
    let owner = at(world, path);
    let id = world.join(&person, owner, role);
    (person, id)
}

/// Asks for a role somewhere: in the org, or on an app or env.
fn role_on(path: &str, body: Value) -> Request {
    let mut body = body;
    let mut parts = path.split('/');
    let org = parts.next().unwrap();
    for (name, part) in ["app", "env"].into_iter().zip(parts) {
        body[name] = part.into();
    }
    request(Operation::AddMember, &[org], body)
}

fn invite(role: &str, path: &str, token: u128) -> Request {
    let body = json!({ "email": "a@example.com", "role": role });
    issuing(role_on(path, body), &[token_id(token)])
}

fn further(person: &Caller, role: &str, path: &str) -> Request {
    role_on(
        path,
        json!({ "principal_id": person.actor.id, "role": role }),
    )
}

/// How an operation at an app or env ends for somebody, as far as it is a
/// matter of what they may do.
fn may(world: &World, caller: &Caller, operation: Operation, path: &[&str]) -> bool {
    let mut request = Request::new(operation, path);
    request.body = Some(json!({}));
    let refusal = match operation.spec().kind {
        Kind::Write => match world.decide(caller, &request, With::default()).outcome {
            Outcome::Refused(refusal) => Some(refusal),
            _ => None,
        },
        _ => world.read(caller, &request).result.err(),
    };
    refusal.is_none_or(|refusal| !["forbidden", "org_access_denied"].contains(&refusal.code))
}

/// Every role, bound to each kind of thing, at everything inside and outside.
#[test]
fn a_bound_role_gives_inside_what_the_role_gives_and_outside_nothing() {
    let mut world = wide();
    let places = [
        "acme/shop/dev",
        "acme/shop/test",
        "acme/shop/prod",
        "acme/blog/dev",
    ];
    let asked = [
        Operation::GetEnv,
        Operation::GetStatus,
        Operation::ListInstances,
        Operation::GetSecrets,
        Operation::GetLogs,
        Operation::SetScale,
        Operation::CreateDeploy,
        Operation::CreateRoute,
        Operation::UpdateEnv,
        Operation::DeleteEnv,
    ];
    let (mut inside, mut outside) = (0, 0);
    for role in ROLES {
        let whole = world.member(Some("acme"), role);
        for binding in ["acme/shop/dev", "acme/shop/prod", "acme/shop", "acme/blog"] {
            let (person, _) = bound(&mut world, role, binding);
            for place in places {
                let path: Vec<&str> = place.split('/').collect();
                let is_inside = place == binding || place.starts_with(&format!("{binding}/"));
                for operation in asked {
                    // The control: in the whole org the same role may.
                    let expected = is_inside && may(&world, &whole, operation, &path);
                    let found = may(&world, &person, operation, &path);
                    let what = format!("{role} on {binding}: {} {place}", operation.spec().id);
                    assert_eq!(found, expected, "{what}");
                    match found {
                        true => inside += 1,
                        false => outside += 1,
                    }
                }
            }
            // What is above is not theirs.
            for operation in [
                Operation::GetOrg,
                Operation::ListApps,
                Operation::ListGrants,
            ] {
                assert!(
                    !may(&world, &person, operation, &["acme"]),
                    "{role} {binding}"
                );
            }
        }
    }
    assert!(inside > 100 && outside > 300, "{inside} {outside}");
}

#[test]
fn a_developer_of_a_protected_env_needs_a_grant_all_the_same() {
    let mut world = wide();
    let (person, _) = bound(&mut world, "developer", "acme/shop/prod");
    let prod = ["acme", "shop", "prod"];
    assert!(may(&world, &person, Operation::GetEnv, &prod));
    assert!(!may(&world, &person, Operation::CreateDeploy, &prod));
    let Owner { org, app, env } = at(&world, "acme/shop/prod");
    let ids = format!("{}/{}/{}", org.unwrap(), app.unwrap(), env.unwrap());
    world.give(&person, "env.deploy.acme/shop/prod", &[ids], HOUR);
    assert!(may(&world, &person, Operation::CreateDeploy, &prod));
}

/// Every operation below another env is refused as if nothing were there.
#[test]
fn who_has_a_role_on_one_env_learns_nothing_of_another() {
    let mut world = World::empty();
    world.record(crate::fixtures::made());
    let shop = at(&world, "acme/shop");
    world.env(shop, "test", false);
    let mut asked = 0;
    for role in ROLES {
        let (person, _) = bound(&mut world, role, "acme/shop/test");
        for operation in Operation::ALL {
            let spec = operation.spec();
            let params: Vec<&str> = spec.path_params().collect();
            if !params.contains(&"org") || params.len() < 2 || spec.auth != Auth::Caller {
                continue;
            }
            // The fixtures' objects are in `dev`, and have ids that are there.
            let there = path_of(*operation, "dev");
            for place in 1..there.len() {
                let mut not = there.clone();
                not[place] = match not[place].split_once('_') {
                    Some((kind, _)) => format!("{kind}_01ARZ3NDEKTSV4RRFFQ69G5FAV"),
                    None => "nothing".to_owned(),
                };
                let said = [&there, &not].map(|path| refused(&world, &person, *operation, path));
                let what = format!("{role}: {} {there:?} {not:?}", spec.id);
                assert_eq!(said[0].code, "forbidden", "{what}");
                assert_eq!(said[0], said[1], "{what}");
                asked += 1;
            }
        }
    }
    assert!(asked > 500, "{asked}");
    // The control: whoever has the role in the org is told what is not there.
    let viewer = world.member(Some("acme"), "viewer");
    let nothing = ["acme", "shop", "nothing"].map(str::to_owned);
    let said = refused(&world, &viewer, Operation::GetEnv, &nothing);
    assert_eq!(said.code, "not_found");
}

fn refused(world: &World, caller: &Caller, operation: Operation, path: &[String]) -> Refusal {
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    let mut request = Request::new(operation, &path);
    request.body = Some(json!({}));
    if operation.spec().kind != Kind::Write {
        return world.read(caller, &request).result.unwrap_err();
    }
    let with = With {
        key: Some("some-key-here"),
        if_match: Some(1),
    };
    match world.decide(caller, &request, with).outcome {
        Outcome::Refused(refusal) => refusal,
        other => panic!("{} {path:?}: {other:?}", operation.spec().id),
    }
}

#[test]
fn a_role_does_not_pass_on_to_a_later_env_or_app_of_the_same_name() {
    let mut world = wide();
    let (of_env, row) = bound(&mut world, "operator", "acme/shop/test");
    let (of_app, _) = bound(&mut world, "viewer", "acme/blog");
    let env = ["acme", "shop", "test"];
    assert!(may(&world, &of_env, Operation::GetEnv, &env));
    assert!(may(&world, &of_app, Operation::GetApp, &["acme", "blog"]));
    let (test, blog) = (at(&world, "acme/shop/test"), at(&world, "acme/blog"));
    let blog_dev = at(&world, "acme/blog/dev");
    for gone in [test, blog_dev] {
        let deleted = Fact::new(gone.env.unwrap(), EnvDeleted {}.into());
        world.record(vec![deleted.of(&gone.scope())]);
    }
    let deleted = Fact::new(blog.app.unwrap(), AppDeleted {}.into());
    world.record(vec![deleted.of(&blog.scope())]);
    // Whose role is on nothing any more is a stranger.
    for person in [&of_env, &of_app] {
        let get = ["acme", "shop", "test"].map(str::to_owned);
        let said = refused(&world, person, Operation::GetEnv, &get);
        assert_eq!(said.code, "org_access_denied");
        assert_eq!(world.get(person, Operation::Whoami, &[])["orgs"], json!([]));
    }
    let acme = world.named("acme");
    world.env(at(&world, "acme/shop"), "test", false);
    world.app(acme, "blog");
    assert!(!may(&world, &of_env, Operation::GetEnv, &env));
    assert!(!may(&world, &of_app, Operation::GetApp, &["acme", "blog"]));
    // It is shown as what it is, and can be given anew.
    let admin = world.member(Some("acme"), "admin");
    let shown = world.get(&admin, Operation::ListMembers, &["acme"]);
    let items = shown["items"].as_array().unwrap();
    let gone = items.iter().find(|it| it["id"] == row.to_string().as_str());
    let gone = gone.unwrap();
    assert_eq!(gone["path"], Value::Null);
    assert_eq!(gone["env_id"], test.env.unwrap().to_string().as_str());
    world.done(&admin, &further(&of_env, "operator", "acme/shop/test"));
    assert!(may(&world, &of_env, Operation::GetEnv, &env));
    let remove = Request::new(Operation::RemoveMember, &["acme", &row.to_string()]);
    assert_eq!(world.done(&admin, &remove)["deleted"], true);
    assert!(may(&world, &of_env, Operation::GetEnv, &env));
}

#[test]
fn a_person_has_several_roles_and_is_shown_them() {
    let mut world = wide();
    let admin = world.member(Some("acme"), "admin");
    let member = world.done(&admin, &invite("developer", "acme/shop/dev", 5));
    assert_eq!(
        (&member["path"], &member["status"]),
        (&json!("acme/shop/dev"), &json!("invited"))
    );
    let principal = member["principal_id"].as_str().unwrap().to_owned();
    let person = world.login(&principal);
    for (role, path) in [("viewer", "acme/shop"), ("admin", "acme/blog/dev")] {
        let more = world.done(&admin, &further(&person, role, path));
        assert_eq!(more["principal_id"], principal.as_str());
        assert_eq!((&more["path"], &more["role"]), (&json!(path), &json!(role)));
        // Who has logged in is no longer invited.
        assert_eq!(more["status"], "active");
        assert_eq!(
            world.refused(&admin, &further(&person, role, path)),
            "conflict"
        );
    }
    let me = world.get(&person, Operation::Whoami, &[]);
    assert_eq!(me["orgs"][0]["role"], Value::Null);
    let roles = me["orgs"][0]["roles"].as_array().unwrap();
    let mut paths: Vec<&str> = roles
        .iter()
        .map(|it| it["path"].as_str().unwrap())
        .collect();
    paths.sort_unstable();
    assert_eq!(paths, ["acme/blog/dev", "acme/shop", "acme/shop/dev"]);
    let patterns = me["effective_patterns"].as_array().unwrap();
    let has = |pattern: &str| patterns.contains(&json!(pattern));
    assert!(has("env.deploy.acme/shop/dev") && has("app.read.acme/shop/*"));
    assert!(has("env.delete.acme/blog/dev") && !has("env.deploy.acme/shop/test"));
    assert!(
        patterns
            .iter()
            .all(|it| !it.as_str().unwrap().ends_with(".acme/*"))
    );
    // A list is of what is inside.
    let paths = |query: &[(&str, &str)]| {
        let mut list = Request::new(Operation::ListMembers, &["acme"]);
        list.query = query
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect();
        let shown = world.read(&admin, &list).result.unwrap();
        let items = shown["items"].as_array().unwrap().clone();
        let mut paths: Vec<String> = items
            .iter()
            .map(|it| it["path"].as_str().unwrap().to_owned())
            .collect();
        paths.sort_unstable();
        paths
    };
    assert_eq!(paths(&[("app", "shop")]), ["acme/shop", "acme/shop/dev"]);
    assert_eq!(paths(&[("app", "shop"), ("env", "dev")]), ["acme/shop/dev"]);
    assert_eq!(paths(&[]).len(), 4);
    // With one role the others stay; with the last one everything ends.
    let token = TokenId::from_bits(77);
    let issued = crate::ground::issued("api", &principal, world.now.after(HOUR));
    let scope = world.named("acme").scope();
    world.record(vec![Fact::new(token, issued.into()).of(&scope)]);
    let shown = world.get(&admin, Operation::ListMembers, &["acme"]);
    let rows = shown["items"].as_array().unwrap().clone();
    let own = rows
        .iter()
        .filter(|it| it["principal_id"] == principal.as_str());
    for (left, row) in own.enumerate() {
        let revoked = world.state.access.tokens[&token].revoked.is_some();
        assert!(!revoked, "after {left}");
        let remove = Request::new(
            Operation::RemoveMember,
            &["acme", row["id"].as_str().unwrap()],
        );
        world.done(&admin, &remove);
    }
    assert!(world.state.access.tokens[&token].revoked.is_some());
}

#[test]
fn who_looks_after_a_part_gives_roles_there_and_nowhere_else() {
    let mut world = wide();
    let (part, _) = bound(&mut world, "admin", "acme/shop");
    let made = world.done(&part, &invite("operator", "acme/shop/dev", 1));
    assert_eq!(made["path"], "acme/shop/dev");
    world.done(&part, &invite("admin", "acme/shop", 2));
    for (role, path, code) in [
        // Not more than they hold,
        ("owner", "acme/shop", "grant_exceeds_own"),
        ("owner", "acme/shop/dev", "grant_exceeds_own"),
        // not above, not beside, and not of what is there or not.
        ("viewer", "acme", "forbidden"),
        ("viewer", "acme/blog", "forbidden"),
        ("viewer", "acme/blog/dev", "forbidden"),
        ("viewer", "acme/nothing", "forbidden"),
        ("viewer", "acme/shop/nothing", "not_found"),
    ] {
        let refused = world.refused(&part, &invite(role, path, 3));
        assert_eq!(refused, code, "{role} on {path}");
    }
    let id = made["id"].as_str().unwrap();
    let update = |id: &str, role: &str| {
        request(
            Operation::UpdateMember,
            &["acme", id],
            json!({ "role": role }),
        )
    };
    assert_eq!(world.done(&part, &update(id, "viewer"))["role"], "viewer");
    let remove = |id: &str| Request::new(Operation::RemoveMember, &["acme", id]);
    // Members of elsewhere are not theirs.
    let (_, blog) = bound(&mut world, "viewer", "acme/blog");
    let person = world.person();
    let whole = world.join(&person, world.named("acme"), "viewer");
    for id in [blog, whole] {
        assert_eq!(
            world.refused(&part, &update(&id.to_string(), "viewer")),
            "forbidden"
        );
        assert_eq!(world.refused(&part, &remove(&id.to_string())), "forbidden");
    }
    assert_eq!(world.done(&part, &remove(id))["deleted"], true);
    // What somebody was granted in the org ends by whoever may end that.
    let (granted, row) = bound(&mut world, "viewer", "acme/shop/dev");
    let org = at(&world, "acme").org.unwrap();
    world.give(&granted, "app.read.acme/blog", &[format!("{org}/*")], HOUR);
    assert_eq!(
        world.refused(&part, &remove(&row.to_string())),
        "grant_exceeds_own"
    );
    let admin = world.member(Some("acme"), "admin");
    assert_eq!(
        world.done(&admin, &remove(&row.to_string()))["deleted"],
        true
    );
    // They see whom they look after.
    let mut list = Request::new(Operation::ListMembers, &["acme"]);
    assert_eq!(
        world.read(&part, &list).result.unwrap_err().code,
        "forbidden"
    );
    list.query.insert("app".into(), "shop".into());
    assert!(world.read(&part, &list).result.is_ok());
}

#[test]
fn a_request_for_a_role_says_who_and_where_or_is_refused() {
    let mut world = wide();
    let owner = world.member(Some("acme"), "owner");
    let (known, _) = bound(&mut world, "viewer", "acme/shop");
    let stranger = world.person();
    let role = |body: Value| {
        issuing(
            request(Operation::AddMember, &["acme"], body),
            &[token_id(1)],
        )
    };
    for (body, code) in [
        (
            json!({ "role": "viewer", "email": "a@b.c", "env": "dev" }),
            "invalid_argument",
        ),
        (json!({ "role": "viewer" }), "invalid_argument"),
        (
            json!({ "role": "viewer", "email": "a@b.c", "principal_id": known.actor.id }),
            "invalid_argument",
        ),
        (
            json!({ "role": "viewer", "principal_id": stranger.actor.id }),
            "invalid_argument",
        ),
        (
            json!({ "role": "viewer", "email": "a@b.c", "app": "nothing" }),
            "not_found",
        ),
        (
            json!({ "role": "viewer", "email": "a@b.c", "app": "" }),
            "not_found",
        ),
    ] {
        assert_eq!(world.refused(&owner, &role(body.clone())), code, "{body}");
    }
    // An id names the same as a name.
    let dev = at(&world, "acme/shop/dev");
    let body = json!({
        "role": "viewer", "principal_id": known.actor.id,
        "app": dev.app.unwrap().to_string(), "env": dev.env.unwrap().to_string(),
    });
    assert_eq!(world.done(&owner, &role(body))["path"], "acme/shop/dev");
}

#[test]
fn the_last_owner_is_one_of_the_whole_org() {
    let mut world = wide();
    let person = world.person();
    let acme = world.named("acme");
    let only = world.join(&person, acme, "owner").to_string();
    bound(&mut world, "owner", "acme/shop");
    bound(&mut world, "owner", "acme/shop/dev");
    world.done(&person, &further(&person, "owner", "acme/blog"));
    let remove = Request::new(Operation::RemoveMember, &["acme", &only]);
    assert_eq!(world.refused(&person, &remove), "last_owner");
    let demote = request(
        Operation::UpdateMember,
        &["acme", &only],
        json!({ "role": "admin" }),
    );
    assert_eq!(world.refused(&person, &demote), "last_owner");
    // The control: with another one of the whole org they can go.
    let other = world.member(Some("acme"), "owner");
    assert_eq!(world.done(&other, &remove)["deleted"], true);
}

/// A rule that lets a role pass looks at the role at that place.
#[test]
fn a_role_elsewhere_gets_nobody_around_a_rule() {
    let mut world = wide();
    let acme = world.named("acme");
    let text = "version: 1\ncapabilities:\n\
        - { name: slowly, match: { action: env.update }, do: require_review, except: [{ caller_tag: [admin] }] }\n";
    let set = fluffy_control::event::PolicyVersionSet {
        policy_hash: fluffy_base::Digest::of(text.as_bytes()),
        rules: text.to_owned(),
    };
    let fact = Fact::new(acme.org.unwrap(), set.into()).of(&acme.scope());
    world.record(vec![fact]);
    let (person, _) = bound(&mut world, "admin", "acme/shop/dev");
    let test = at(&world, "acme/shop/test");
    world.join(&person, test, "operator");
    let update = |env: &str| {
        let body = json!({ "allow_shared_kernel": true });
        let mut update = request(Operation::UpdateEnv, &["acme", "shop", env], body);
        update.query.clear();
        update
    };
    let outcome = |world: &World, env| world.decide(&person, &update(env), With::default()).outcome;
    assert!(!matches!(outcome(&world, "dev"), Outcome::Parked { .. }));
    assert!(
        matches!(outcome(&world, "test"), Outcome::Parked { .. }),
        "{:?}",
        outcome(&world, "test")
    );
}

fn volume(world: &mut World, of: Owner, name: &str) -> VolumeId {
    let id = VolumeId::from_bits(world.id());
    let created = VolumeCreated {
        name: name.to_owned(),
        size_bytes: 1 << 30,
        filesystem: "ext4".to_owned(),
        backup_enabled: false,
        home_node_id: fluffy_base::id::NodeId::from_bits(7),
        snapshot_id: None,
    };
    let state = VolumeStateChanged {
        state: "available".to_owned(),
        reason: None,
        instance_id: None,
    };
    let scope = of.scope();
    world.record(vec![
        Fact::new(id, created.into()).of(&scope),
        Fact::new(id, state.into()).of(&scope),
    ]);
    id
}

/// Mounted by the process type `job` of an env.
fn attached(world: &mut World, env: Owner, volume_id: VolumeId) -> AttachmentId {
    let id = AttachmentId::from_bits(world.id());
    let created = VolumeAttachmentCreated {
        volume_id,
        process: "job".to_owned(),
        mount_path: "/x".to_owned(),
        read_only: false,
    };
    world.record(vec![Fact::new(id, created.into()).of(&env.scope())]);
    id
}

/// Volumes hang on the org or on an env, and a request at one env names them
/// by id: those of elsewhere are not there for who has nothing there.
#[test]
fn a_volume_of_elsewhere_is_mounted_by_nobody_who_has_nothing_there() {
    let mut world = wide();
    let (acme, dev, test) = (
        at(&world, "acme"),
        at(&world, "acme/shop/dev"),
        at(&world, "acme/shop/test"),
    );
    let whole = volume(&mut world, acme, "whole");
    let own = volume(&mut world, dev, "own");
    let foreign = volume(&mut world, test, "foreign");
    let (person, _) = bound(&mut world, "operator", "acme/shop/dev");
    let attach = |id: VolumeId| {
        let body = json!({ "volume_id": id, "process": "job", "mount_path": "/x" });
        request(Operation::CreateAttachment, &["acme", "shop", "dev"], body)
    };
    let of = |world: &World, caller: &Caller, id| match world
        .decide(caller, &attach(id), With::default())
        .outcome
    {
        Outcome::Refused(refusal) => Some(refusal),
        _ => None,
    };
    let nothing = of(&world, &person, VolumeId::from_bits(1)).unwrap();
    assert_eq!(nothing.code, "not_found");
    for id in [whole, foreign] {
        assert_eq!(of(&world, &person, id).as_ref(), Some(&nothing));
    }
    assert_eq!(of(&world, &person, own), None);
    // The control: an operator of the org mounts each of them.
    let operator = world.member(Some("acme"), "operator");
    for id in [whole, foreign] {
        assert_eq!(of(&world, &operator, id), None);
    }
    // Nor in the place of one that is mounted.
    let attachment = attached(&mut world, dev, own);
    let path = ["acme", "shop", "dev", &attachment.to_string()];
    let replace = |id: VolumeId| {
        let body = json!({ "volume_id": id });
        request(Operation::ReplaceAttachment, &path, body)
    };
    let refused = crate::ground::refusal(
        world
            .decide(&person, &replace(foreign), With::default())
            .outcome,
    );
    assert_eq!(refused.code, "not_found");
}

/// A release of an app whose process type `job` mounts the volume `data`.
fn release(world: &mut World, by: &Caller, app: &str) -> String {
    let manifest = "schema_version = \"v1\"\n\
        [processes.job]\nports = [{ internal = 5432 }]\n\
        resources = { memory = \"256MiB\", disk = \"1GiB\" }\n\
        mounts = [{ volume = \"data\", path = \"/x\" }]\n\
        [[volumes]]\nname = \"data\"\nsize = \"1GiB\"\n";
    let digest = format!("sha256:{}", Digest::of(b"image"));
    let image = ResolvedImage {
        image_ref: "registry.example.com/app:1".to_owned(),
        index_or_manifest_digest: digest.clone(),
        resolved_digests: vec![ResolvedDigest {
            os: "linux".to_owned(),
            arch: "amd64".to_owned(),
            digest,
        }],
        compressed_bytes: 1 << 20,
    };
    let body = json!({ "image": image.image_ref, "manifest": manifest });
    let mut create = request(Operation::CreateRelease, &["acme", app], body);
    create.material = Material::Image(image);
    match world.write(by, &create) {
        Outcome::Done { subject, .. } => subject.id,
        other => panic!("{other:?}"),
    }
}

/// What `a/b-c` and `a-b/c` declare as `data` has the same name.
#[test]
fn a_deploy_mounts_no_volume_of_another_env_by_its_name() {
    let mut world = wide();
    let acme = world.named("acme");
    let (short, long) = (world.app(acme, "a"), world.app(acme, "a-b"));
    world.env(short, "b-c", false);
    let own = world.env(long, "c", false);
    let (person, _) = bound(&mut world, "operator", "acme/a-b");
    let release = release(&mut world, &person, "a-b");
    // Whoever mounted it let it go, and it still has everything.
    let data = volume(&mut world, acme, "a-b-c-data");
    let body = json!({ "release_id": release });
    let deploy = request(Operation::CreateDeploy, &["acme", "a-b", "c"], body);
    let outcome = |world: &World, by: &Caller| {
        let with = With {
            key: Some("some-key-here"),
            if_match: None,
        };
        world.decide(by, &deploy, with).outcome
    };
    let refused = crate::ground::refusal(outcome(&world, &person));
    assert_eq!(refused.code, "volume_constraints_invalid");
    // The control: who may write volumes of the org may have it mounted, and
    // then it is this env's.
    let operator = world.member(Some("acme"), "operator");
    let by_operator = outcome(&world, &operator);
    assert!(
        matches!(by_operator, Outcome::Done { .. }),
        "{by_operator:?}"
    );
    attached(&mut world, own, data);
    let by_person = outcome(&world, &person);
    assert!(matches!(by_person, Outcome::Done { .. }), "{by_person:?}");
}

/// A role on what is gone does not keep what somebody was given besides.
#[test]
fn who_loses_the_last_role_on_something_that_is_there_leaves_the_org() {
    let mut world = wide();
    let admin = world.member(Some("acme"), "admin");
    let person = world.person();
    let rows: Vec<String> = ["acme/shop/test", "acme/shop/dev", "acme/blog"]
        .into_iter()
        .map(|path| {
            let owner = at(&world, path);
            world.join(&person, owner, "viewer").to_string()
        })
        .collect();
    let acme = world.named("acme");
    let whole = format!("{}/*", acme.org.unwrap());
    world.give(&person, "env.deploy.acme/*", &[whole], HOUR);
    let token = TokenId::from_bits(77);
    let issued = crate::ground::issued("api", &person.actor.id, world.now.after(HOUR));
    world.record(vec![Fact::new(token, issued.into()).of(&acme.scope())]);
    let test = at(&world, "acme/shop/test");
    let deleted = Fact::new(test.env.unwrap(), EnvDeleted {}.into());
    world.record(vec![deleted.of(&test.scope())]);
    let left = |world: &World| {
        let grants = world.get(&admin, Operation::ListGrants, &["acme"]);
        let revoked = world.state.access.tokens[&token].revoked.is_some();
        (grants["items"].as_array().unwrap().len(), revoked)
    };
    let remove = |row: &str| Request::new(Operation::RemoveMember, &["acme", row]);
    world.done(&admin, &remove(&rows[1]));
    // The control: there is another role that gives something.
    assert_eq!(left(&world), (1, false));
    world.done(&admin, &remove(&rows[2]));
    assert_eq!(left(&world), (0, true));
}
