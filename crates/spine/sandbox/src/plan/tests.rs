//! What a request may and may not become.

use super::*;

fn settings() -> Settings {
    Settings {
        templates: Template::builtin(ByteSize(16 << 30)),
        projects: vec!["/home/ada/work".into()],
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
