//! What a request may and may not become.

use fluffy_contract::isolation::{PluginMount, SmallerLimits};

use super::*;

fn settings() -> Settings {
    Settings {
        templates: Template::builtin(ByteSize(16 << 30)),
        projects: vec!["/home/ada/work".into()],
        plugins: Some("/home/ada/.local/state/fluffy/plugins".into()),
        layers: "/home/ada/.local/state/fluffy/layers".into(),
        state: "/home/ada/.local/state/fluffy".into(),
        tools: vec!["/home/ada/.cargo".into()],
        engine: Engine::Native,
    }
}

fn spec() -> SandboxSpec {
    SandboxSpec {
        template: "code-executor".to_owned(),
        project: Some("/home/ada/work".into()),
        layer: Some(LayerMount::Overlay {
            upper: "/home/ada/.local/state/fluffy/layers/one/upper".into(),
            work: "/home/ada/.local/state/fluffy/layers/one/work".into(),
        }),
        ..SandboxSpec::default()
    }
}

fn derive(spec: &SandboxSpec) -> Result<Plan, PlanError> {
    Plan::derive(SandboxId::from_bits(1), spec, &settings(), &Host::default())
}

#[test]
fn the_project_is_seen_at_its_own_path_with_the_layer_over_it() {
    let plan = derive(&spec()).unwrap();
    assert!(matches!(
        plan.late.as_slice(),
        [Mount::Overlay { lower, inside, .. }] if lower == inside && inside == Path::new("/home/ada/work")
    ));
    assert_eq!(plan.directory, Path::new("/home/ada/work"));
}

#[test]
fn paths_outside_the_roots_are_refused() {
    let layer = |upper: &str| SandboxSpec {
        layer: Some(LayerMount::Tree { tree: upper.into() }),
        ..spec()
    };
    let outside = [
        SandboxSpec {
            project: Some("/home/ada".into()),
            ..spec()
        },
        SandboxSpec {
            project: Some("/home/ada/work2".into()),
            ..spec()
        },
        SandboxSpec {
            read: vec!["/home/ada/.ssh".into()],
            ..spec()
        },
        SandboxSpec {
            writable: vec!["/home/ada/elsewhere".into()],
            ..spec()
        },
        SandboxSpec {
            project: None,
            ..spec()
        },
        layer("/home/ada/.local/state/fluffy/layers"),
        layer("/home/ada/work"),
    ];
    for spec in &outside {
        assert!(
            matches!(derive(spec), Err(PlanError::Outside { .. })),
            "{spec:?}"
        );
    }
    for path in [
        "work",
        "/home/ada/work/../work",
        "/home/ada/./work",
        "/home/ada//work",
        "/home/ada/work/",
    ] {
        let spec = SandboxSpec {
            project: Some(path.into()),
            ..spec()
        };
        assert!(
            matches!(derive(&spec), Err(PlanError::NotNormal { .. })),
            "{path}"
        );
    }
}

#[test]
fn a_project_cannot_be_the_machine_or_hold_our_state() {
    for path in ["/", "/usr", "/usr/src/x", "/etc/nginx", "/home/ada"] {
        let settings = Settings {
            projects: vec![path.into()],
            ..settings()
        };
        let spec = SandboxSpec {
            project: Some(path.into()),
            ..spec()
        };
        let made = Plan::derive(SandboxId::from_bits(1), &spec, &settings, &Host::default());
        assert!(matches!(made, Err(PlanError::Project { .. })), "{path}");
    }
}

#[test]
fn loader_variables_are_refused_and_others_passed() {
    for name in ["LD_PRELOAD", "DYLD_INSERT_LIBRARIES", "", "A=B", "N\0"] {
        let mut spec = spec();
        spec.environment.insert(name.to_owned(), "x".to_owned());
        assert!(
            matches!(derive(&spec), Err(PlanError::Variable { .. })),
            "{name}"
        );
    }
    let mut spec = spec();
    spec.environment
        .insert("RUST_LOG".to_owned(), "debug".to_owned());
    let plan = derive(&spec).unwrap();
    assert_eq!(
        plan.environment.get("RUST_LOG").map(String::as_str),
        Some("debug")
    );
    assert!(!plan.environment.contains_key("HTTP_PROXY"));
}

#[test]
fn a_restricted_network_names_the_proxy_in_both_cases_of_letters() {
    let spec = SandboxSpec {
        template: "integration-test".to_owned(),
        ..spec()
    };
    let plan = derive(&spec).unwrap();
    let get = |name: &str| plan.environment.get(name).map(String::as_str);
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        assert_eq!(get(name), Some("http://127.0.0.1:3128"));
        assert_eq!(get(&name.to_lowercase()), get(name));
    }
    assert!(get("NO_PROXY").unwrap().contains("127.0.0.1"));
    assert_eq!(get("no_proxy"), get("NO_PROXY"));
    // Without it Node's own `fetch` would not look at the others.
    assert_eq!(get("NODE_USE_ENV_PROXY"), Some("1"));
}

#[test]
fn a_tier_is_raised_but_never_lowered() {
    let raised = SandboxSpec {
        tier: Some(Tier::Container),
        ..spec()
    };
    assert!(matches!(
        derive(&raised),
        Err(PlanError::Tier {
            needed: Tier::Container,
            ..
        })
    ));
    let lowered = SandboxSpec {
        tier: Some(Tier::Wasm),
        ..spec()
    };
    assert!(derive(&lowered).is_ok(), "the template's own tier holds");
}

#[test]
fn a_life_may_be_shorter_and_never_longer() {
    use fluffy_base::Span;
    let with = |millis| SandboxSpec {
        time: Some(Span { millis }),
        ..spec()
    };
    assert!(derive(&with(1_000)).is_ok());
    assert!(matches!(
        derive(&with(300_001)),
        Err(PlanError::Time { .. })
    ));
}

fn plugin(files: &str, data: &str, meeting: &str) -> SandboxSpec {
    let below = |name: &str| PathBuf::from("/home/ada/.local/state/fluffy/plugins").join(name);
    SandboxSpec {
        template: "plugin".to_owned(),
        plugin: Some(PluginMount {
            files: below(files),
            data: Some(below(data)),
            meeting: Some(below(meeting)),
        }),
        ..SandboxSpec::default()
    }
}

#[test]
fn a_plugin_reads_its_files_and_writes_its_own_folders() {
    let plan = derive(&plugin("a/files", "a/data", "m/1")).unwrap();
    let writable = |mount: &Mount| matches!(mount, Mount::Writable { .. });
    assert_eq!(plan.mounts.iter().filter(|one| writable(one)).count(), 2);
    assert!(plan.late.is_empty());
    let ends = |paths: &[PathBuf], end: &str| paths.iter().any(|path| path.ends_with(end));
    assert!(ends(&plan.reach.read, "a/files") && !ends(&plan.reach.write, "a/files"));
    assert!(ends(&plan.reach.write, "a/data") && ends(&plan.reach.write, "m/1"));
    assert!(plan.watched.is_some_and(|path| path.ends_with("a/data")));
}

#[test]
fn folders_of_a_plugin_are_its_own() {
    for (files, data, meeting) in [
        ("/home/ada/.ssh", "a/data", "m/1"),
        ("a/files", "/home/ada/.local/state/fluffy", "m/1"),
        ("a/files", "a/data", "/home/ada/.local/state/fluffy/plugins"),
        ("a/files", "a/files/data", "m/1"),
        ("a/files", "a", "m/1"),
        ("a/files", "a/files", "m/1"),
    ] {
        let derived = derive(&plugin(files, data, meeting));
        assert!(
            matches!(derived, Err(PlanError::Outside { .. })),
            "{files} {data}"
        );
    }
    let dots = derive(&plugin("a/../../files", "a/data", "m/1"));
    assert!(matches!(dots, Err(PlanError::NotNormal { .. })));
    let none = Settings {
        plugins: None,
        ..settings()
    };
    let spec = plugin("a/files", "a/data", "m/1");
    let made = Plan::derive(SandboxId::from_bits(1), &spec, &none, &Host::default());
    assert!(matches!(made, Err(PlanError::Outside { .. })));
}

#[test]
fn limits_can_be_smaller_and_never_larger() {
    let with = |limits| SandboxSpec {
        limits,
        ..plugin("a/files", "a/data", "m/1")
    };
    let small = SmallerLimits {
        memory: Some(ByteSize(1 << 20)),
        cpu_milli: Some(500),
        pids: Some(7),
    };
    let limits = derive(&with(small)).unwrap().limits;
    assert_eq!(
        (limits.memory, limits.cpu_milli),
        (ByteSize(1 << 20), Some(500))
    );
    assert_eq!((limits.pids, limits.user_pids), (7, 8));
    for large in [
        SmallerLimits {
            memory: Some(ByteSize(1 << 40)),
            ..small
        },
        SmallerLimits {
            pids: Some(100_000),
            ..small
        },
    ] {
        assert!(matches!(derive(&with(large)), Err(PlanError::Limit { .. })));
    }
    let provider = SandboxSpec {
        template: "ai-provider".to_owned(),
        limits: SmallerLimits {
            cpu_milli: Some(501),
            ..SmallerLimits::default()
        },
        ..SandboxSpec::default()
    };
    assert!(matches!(derive(&provider), Err(PlanError::Limit { .. })));
}
