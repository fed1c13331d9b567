//! What the engine is asked for, field by field.

use super::*;
use crate::engine::Brand;
use fluffy_base::id::SandboxId;
use fluffy_contract::isolation::{LayerMount, SandboxSpec};
use fluffy_sandbox::plan::{Engine, Host, Settings};
use fluffy_sandbox::template::Template;

fn plan(change: impl FnOnce(&mut SandboxSpec)) -> Plan {
    let settings = Settings {
        templates: Template::builtin(ByteSize(8 << 30)),
        projects: vec!["/work/project".into()],
        plugins: None,
        layers: "/state/layers".into(),
        state: "/state".into(),
        tools: vec!["/opt/tool".into()],
        engine: Engine::Container,
    };
    let host = Host {
        system: vec!["/usr".into()],
        links: vec![("/bin".into(), "usr/bin".into())],
        ..Host::default()
    };
    let mut spec = SandboxSpec {
        template: "kernel".to_owned(),
        project: Some("/work/project".into()),
        layer: Some(LayerMount::Tree {
            tree: "/state/layers/one/tree".into(),
        }),
        ..SandboxSpec::default()
    };
    change(&mut spec);
    Plan::derive(SandboxId::from_bits(7), &spec, &settings, &host).unwrap()
}

fn body_of(plan: &Plan, brand: Brand, source: Source) -> Result<ContainerCreateBody, ShapeError> {
    let carried = Carried {
        files: vec![("/bin/fluffy".into(), "/.fluffy/fluffy".into())],
        start: vec!["/.fluffy/fluffy".to_owned()],
    };
    let files = HashMap::from([
        (PathBuf::from("/etc/passwd"), PathBuf::from("/own/file-0")),
        (PathBuf::from("/etc/hosts"), PathBuf::from("/own/file-1")),
    ]);
    let covers = Covers {
        file: "/own/hidden-file".into(),
        directory: "/own/hidden-directory".into(),
    };
    let spaces = crate::spaces::of_plan(plan, brand);
    let shape = Shape {
        plan,
        image: "localhost/image",
        source,
        carried: &carried,
        user: User {
            user: 1000,
            group: 1000,
        },
        control: Path::new("/own/control"),
        files: &files,
        covers: &covers,
        spaces: &spaces,
        seccomp: "{}".to_owned(),
        labels: HashMap::from([(OWNER_LABEL.to_owned(), "me".to_owned())]),
        most_processes: 4096,
    };
    shape.body()
}

fn body(change: impl FnOnce(&mut SandboxSpec)) -> ContainerCreateBody {
    body_of(&plan(change), Brand::Docker, Source::Host).unwrap()
}

/// Each bind as `host -> inside`, with a mark for those that may be written.
fn binds(body: &ContainerCreateBody) -> Vec<String> {
    let mounts = body.host_config.as_ref().unwrap().mounts.as_ref().unwrap();
    let is_bind = |mount: &&EngineMount| mount.typ == Some(MountType::BIND);
    let line = |mount: &EngineMount| {
        let text = |field: &Option<String>| field.clone().unwrap();
        let mark = match mount.read_only {
            Some(true) => "",
            _ => " (writable)",
        };
        let options = mount.bind_options.as_ref().unwrap();
        assert_eq!(options.non_recursive, Some(true));
        format!("{} -> {}{mark}", text(&mount.source), text(&mount.target))
    };
    mounts.iter().filter(is_bind).map(line).collect()
}

#[test]
fn nothing_is_left_to_the_engines_defaults() {
    let body = body(|_| {});
    assert_eq!(body.user.as_deref(), Some("1000:1000"));
    assert_eq!(body.network_disabled, Some(true));
    assert_eq!(
        body.entrypoint.unwrap(),
        ["/.fluffy/fluffy", "worker", "container-init"]
    );
    let config = body.host_config.unwrap();
    assert_eq!(config.readonly_rootfs, Some(true));
    assert_eq!(config.privileged, Some(false));
    assert_eq!(config.network_mode.as_deref(), Some("none"));
    assert_eq!(config.ipc_mode.as_deref(), Some("none"));
    assert_eq!(config.cap_drop.unwrap(), ["ALL"]);
    assert_eq!(config.cap_add, None);
    assert_eq!(config.devices, None);
    assert_eq!(
        config.security_opt.unwrap(),
        ["no-new-privileges", "seccomp={}"]
    );
    assert_eq!(config.memory, Some(512 << 20));
    assert_eq!(config.memory_swap, config.memory);
    assert_eq!(config.nano_cpus, Some(1_000_000_000));
    assert_eq!(config.pids_limit, Some(65));
    assert_eq!(config.log_config.unwrap().typ.as_deref(), Some("none"));
    let scratch = config.tmpfs.unwrap();
    let tmp = &scratch["/tmp"];
    assert!(
        tmp.contains("nosuid,nodev") && tmp.contains("nr_inodes="),
        "{tmp}"
    );
    assert!(scratch.contains_key("/dev/shm"));
}

#[test]
fn only_the_layer_may_be_written() {
    let mut seen = binds(&body(|_| {}));
    seen.sort();
    let mut expected = vec![
        "/bin/fluffy -> /.fluffy/fluffy",
        "/opt/tool -> /opt/tool",
        "/own/control -> /.fluffy/control",
        "/own/file-0 -> /etc/passwd",
        "/own/file-1 -> /etc/hosts",
        "/state/layers/one/tree -> /work/project (writable)",
        "/usr -> /usr",
    ];
    expected.sort_unstable();
    assert_eq!(seen, expected);
    let without = binds(&body(|spec| spec.layer = None));
    assert!(
        without.iter().all(|bind| !bind.contains("writable")),
        "{without:?}"
    );
}

#[test]
fn parts_of_the_project_are_opened_and_closed() {
    let seen = binds(&body(|spec| {
        spec.writable = vec!["/work/project/src".into()];
        spec.protected = vec!["/work/project/src/.git".into()];
    }));
    let tail: Vec<&str> = seen.iter().map(String::as_str).collect();
    for bind in [
        "/state/layers/one/tree -> /work/project",
        "/state/layers/one/tree/src -> /work/project/src (writable)",
        "/state/layers/one/tree/src/.git -> /work/project/src/.git",
    ] {
        assert!(tail.contains(&bind), "{bind} in {tail:?}");
    }
}

#[test]
fn hidden_paths_are_covered_and_what_holds_them_stays_in_place() {
    let mut plan = plan(|spec| spec.hidden = vec!["/work/project/conf/key".into()]);
    // Until somebody has looked, nothing can cover it.
    let error = body_of(&plan, Brand::Docker, Source::Host).unwrap_err();
    assert!(matches!(error, ShapeError::Outside { .. }), "{error}");
    for (seen, cover) in [
        (HiddenKind::File, "/own/hidden-file"),
        (HiddenKind::Directory, "/own/hidden-directory"),
    ] {
        for mount in &mut plan.late {
            if let Mount::Hide { kind, .. } = mount {
                *kind = seen;
            }
        }
        let seen = binds(&body_of(&plan, Brand::Docker, Source::Host).unwrap());
        for bind in [
            "/state/layers/one/tree/conf -> /work/project/conf (writable)".to_owned(),
            format!("{cover} -> /work/project/conf/key"),
        ] {
            assert!(seen.contains(&bind), "{bind} in {seen:?}");
        }
    }
}

#[test]
fn a_named_image_keeps_its_own_users_but_no_names_of_hosts() {
    let body = body_of(&plan(|_| {}), Brand::Podman, Source::Image).unwrap();
    let seen = binds(&body);
    assert!(
        !seen.iter().any(|bind| bind.contains("/etc/passwd")),
        "{seen:?}"
    );
    assert!(
        seen.iter().any(|bind| bind.contains("/etc/hosts")),
        "{seen:?}"
    );
}

#[test]
fn podman_gets_volumes_that_limit_files() {
    let plan = plan(|_| {});
    let config = body_of(&plan, Brand::Podman, Source::Host).unwrap();
    let config = config.host_config.unwrap();
    assert_eq!(config.tmpfs.unwrap().len(), 0);
    let mounts = config.mounts.unwrap();
    let volumes = mounts
        .iter()
        .filter(|mount| mount.typ == Some(MountType::VOLUME));
    let mut inside: Vec<_> = volumes.map(|mount| mount.target.clone().unwrap()).collect();
    inside.sort();
    let expected = ["/dev/shm", "/home/fluffy", "/run", "/tmp", "/var/tmp"];
    assert_eq!(inside, expected);
    let labels = HashMap::from([(OWNER_LABEL.to_owned(), "me".to_owned())]);
    for (space, name) in crate::spaces::of_plan(&plan, Brand::Podman)
        .iter()
        .zip(crate::spaces::names(plan.sandbox, Brand::Podman))
    {
        assert_eq!(space.name, name);
        let request = space.request(&labels);
        assert_eq!(request.labels.as_ref(), Some(&labels));
        let options = &request.driver_opts.unwrap()["o"];
        assert!(
            options.contains("nr_inodes=") && options.contains("nr_blocks="),
            "{options}"
        );
        // Podman takes `size` for a quota of the disk.
        assert!(!options.contains("size="), "{options}");
    }
    assert!(crate::spaces::names(plan.sandbox, Brand::Docker).is_empty());
}

#[test]
fn a_path_that_would_be_read_as_options_is_refused() {
    for evil in ["a,ro=false", "a:rw", "a\"b", "a\\b", "a\nb"] {
        let path = PathBuf::from(format!("/work/project/{evil}"));
        let plan = plan(|spec| spec.protected = vec![path.clone()]);
        let error = body_of(&plan, Brand::Podman, Source::Host).unwrap_err();
        assert!(matches!(error, ShapeError::Path { .. }), "{evil}: {error}");
    }
}

#[test]
fn an_overlay_is_refused() {
    let mut plan = plan(|_| {});
    plan.late = vec![Mount::Overlay {
        lower: "/work/project".into(),
        upper: "/state/layers/one/upper".into(),
        work: "/state/layers/one/work".into(),
        inside: "/work/project".into(),
    }];
    let error = body_of(&plan, Brand::Docker, Source::Host).unwrap_err();
    assert_eq!(error, ShapeError::Overlay);
}

#[test]
fn the_user_inside_can_write_the_layer_and_is_never_the_hosts_root() {
    let user = |user| User { user, group: user };
    let inside = |ownership, launcher| user_inside(ownership, user(launcher)).user;
    assert_eq!(inside(Ownership::Shared, 0), INSIDE_ID);
    assert_eq!(inside(Ownership::Shared, 4321), 4321);
    // The user nought of an ordinary user's engine is that user.
    assert_eq!(inside(Ownership::Rootless, 4321), 0);
    assert_eq!(inside(Ownership::Remapped, 0), INSIDE_ID);
}

#[test]
fn generated_files_name_the_user_inside() {
    let user = User { user: 5, group: 6 };
    let passwd =
        "fluffy:x:1000:1000:fluffy:/home/fluffy:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n";
    let text = file_content(Path::new("/etc/passwd"), passwd, user);
    assert_eq!(
        text,
        "fluffy:x:5:6:fluffy:/home/fluffy:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n"
    );
    let hosts = "127.0.0.1 localhost\n";
    assert_eq!(file_content(Path::new("/etc/hosts"), hosts, user), hosts);
}
