//! Permits for tests, from a real engine and a policy that allows just that.

use std::sync::Arc;

use fluffy_base::Timestamp;
use fluffy_base::id::SandboxId;
use fluffy_policy::extension::NoExtensions;
use fluffy_policy::grant::{Grant, GrantLists};
use fluffy_policy::{Context, Engine, Permit, Principal, PrincipalKind, Request, Sources};

/// A permit for one action on one resource.
///
/// # Panics
/// When the engine does not allow it, which is a fault of the test.
#[expect(clippy::expect_used, reason = "a test with a wrong policy has to stop")]
pub fn permit(action: &str, resource: Option<&str>) -> Permit {
    let rules = format!(
        "version: 1\ncapabilities:\n  - {{ name: it, match: {{ action: {action} }}, do: allow }}\n"
    );
    let sources = Sources {
        project: Some(&rules),
        ..Sources::default()
    };
    let engine = Engine::load(&sources, 1).expect("the rule is well-formed");
    let all = || vec!["*".to_owned()];
    let grant = Grant::build(&GrantLists {
        capabilities: all(),
        deny_capabilities: vec![],
        workspace: all(),
        user: all(),
    })
    .expect("`*` is a pattern");
    let request = Request {
        principal: Principal {
            // Most effects are permitted only from inside one.
            sandbox: Some(SandboxId::from_bits(1)),
            ..Principal::new(PrincipalKind::User, "user", Arc::new(grant))
        },
        action: action.into(),
        resource: resource.map(str::to_owned),
        context: Context::default(),
    };
    engine
        .evaluate(&request, Timestamp::from_micros(0), &NoExtensions)
        .into_permit()
        .expect("the rule allows it")
}
