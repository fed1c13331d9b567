//! The platform's roles: named grants, expanded to explicit lists.
//!
//! A role has no "except": what a role does not name it does not have. The
//! protection of environments is therefore part of the expansion, which takes
//! the environments of the scope and their flags. Exec is in no role.

use std::fmt;

/// A role of the platform.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Sees everything but logs and audit.
    Viewer,
    /// Deploys to environments that are not protected.
    Developer,
    /// Runs every environment of the scope.
    Operator,
    /// Also deletes, and manages people, credentials and policy.
    Admin,
    /// Also changes the organisation itself.
    Owner,
    /// Runs the machines; has no tenant's data.
    PlatformOperator,
}

/// Where a role is bound: an organisation, an app or an environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    /// `org`, `org/app` or `org/app/env`.
    pub object: String,
    /// The environments inside it.
    pub environments: Vec<Environment>,
}

/// An environment, as far as roles care.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    /// `org/app/env`.
    pub object: String,
    /// Whether only operators, or explicit grants, may change it.
    pub protected: bool,
}

const VIEWER: &[&str] = &[
    "app.read",
    "env.read",
    "events.read",
    "instance.read",
    "org.read",
    "project.read",
    "release.read",
    "route.read",
    "secret.list",
    "volume.read",
];

/// What a developer may do to environments, where they are not protected.
const DEVELOPER_ON_ENVIRONMENTS: &[&str] = &[
    "env.deploy",
    "env.rollback",
    "env.scale",
    "instance.restart",
    "logs.read",
    "secret.write",
];

const DEVELOPER: &[&str] = &["release.create"];

const OPERATOR: &[&str] = &[
    "app.create",
    "app.update",
    "env.create",
    "env.update",
    "ipv4.manage",
    "project.manage",
    "release.block",
    "route.write",
    "volume.restore",
    "volume.write",
];

const ADMIN: &[&str] = &[
    "app.delete",
    "approval.decide",
    "audit.read",
    "env.delete",
    "env.protect",
    "grant.manage",
    "member.manage",
    "policy.manage",
    "principal.manage",
    "token.manage",
    "volume.delete",
];

const OWNER: &[&str] = &["org.admin"];

/// On no tenant's object: these name machines, limits and the ledger itself.
const PLATFORM_OPERATOR: &[&str] = &[
    "key.admin",
    "ledger.admin",
    "node.enroll.*",
    "node.manage.*",
    "node.read.*",
    "org.create.*",
    "quota.set.*",
];

impl Role {
    /// All roles, least first.
    pub const ALL: [Self; 6] = [
        Self::Viewer,
        Self::Developer,
        Self::Operator,
        Self::Admin,
        Self::Owner,
        Self::PlatformOperator,
    ];

    /// The role's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Developer => "developer",
            Self::Operator => "operator",
            Self::Admin => "admin",
            Self::Owner => "owner",
            Self::PlatformOperator => "platform_operator",
        }
    }

    /// The capability patterns that the role means in this scope.
    #[must_use]
    pub fn patterns(self, scope: &Scope) -> Vec<String> {
        if self == Self::PlatformOperator {
            return PLATFORM_OPERATOR
                .iter()
                .map(|text| (*text).to_owned())
                .collect();
        }
        let mut patterns = Vec::new();
        // Each role contains the ones before it.
        for (role, actions) in [
            (Self::Viewer, VIEWER),
            (Self::Developer, DEVELOPER),
            (Self::Operator, OPERATOR),
            (Self::Operator, DEVELOPER_ON_ENVIRONMENTS),
            (Self::Admin, ADMIN),
            (Self::Owner, OWNER),
        ] {
            if role <= self {
                grant_on(&mut patterns, actions, &scope.object);
            }
        }
        if self == Self::Developer {
            let open = scope.environments.iter().filter(|each| !each.protected);
            for environment in open {
                grant_on(
                    &mut patterns,
                    DEVELOPER_ON_ENVIRONMENTS,
                    &environment.object,
                );
            }
        }
        patterns
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Each action on the object itself and on everything below it.
fn grant_on(patterns: &mut Vec<String>, actions: &[&str], object: &str) {
    for action in actions {
        patterns.push(format!("{action}.{object}"));
        patterns.push(format!("{action}.{object}/*"));
    }
}

#[cfg(test)]
mod tests {
    use crate::action::{self, ACTIONS};
    use crate::capability::matches;

    use super::*;

    fn scope() -> Scope {
        let environment = |object: &str, protected| Environment {
            object: object.into(),
            protected,
        };
        Scope {
            object: "acme".into(),
            environments: vec![
                environment("acme/shop/dev", false),
                environment("acme/shop/prod", true),
            ],
        }
    }

    fn holds(role: Role, capability: &str) -> bool {
        role.patterns(&scope())
            .iter()
            .any(|pattern| matches(pattern, capability))
    }

    #[test]
    fn roles_name_known_actions_only() {
        let lists = [
            VIEWER,
            DEVELOPER,
            DEVELOPER_ON_ENVIRONMENTS,
            OPERATOR,
            ADMIN,
            OWNER,
            PLATFORM_OPERATOR,
        ];
        for name in lists.into_iter().flatten() {
            assert!(
                action::find(name.trim_end_matches(".*")).is_some(),
                "{name}"
            );
        }
    }

    #[test]
    fn a_viewer_sees_all_but_logs_and_audit() {
        for action in ACTIONS
            .iter()
            .filter(|action| action.name.ends_with(".read"))
        {
            let object = format!("{}.acme/shop/dev", action.name);
            let tenant = action.resource == crate::action::ResourceKind::Object;
            let open = !["logs.read", "audit.read"].contains(&action.name);
            assert_eq!(holds(Role::Viewer, &object), tenant && open, "{object}");
        }
    }

    #[test]
    fn a_developer_stays_out_of_protected_environments() {
        assert!(holds(Role::Developer, "env.deploy.acme/shop/dev"));
        assert!(!holds(Role::Developer, "env.deploy.acme/shop/prod"));
        assert!(!holds(Role::Developer, "logs.read.acme/shop/prod"));
        assert!(!holds(Role::Developer, "env.deploy.acme/shop/dev2"));
        assert!(holds(Role::Operator, "env.deploy.acme/shop/prod"));
    }

    #[test]
    fn no_role_reaches_another_tenant_or_a_shell() {
        for role in Role::ALL {
            assert!(!holds(role, "instance.exec.acme/shop/dev"), "{role}");
            assert!(!holds(role, "instance.exec_root.acme/shop/dev"), "{role}");
            assert!(!holds(role, "app.read.acme2/shop"), "{role}");
            assert!(!holds(role, "app.read.other"), "{role}");
        }
        assert!(!holds(Role::PlatformOperator, "app.read.acme/shop"));
        assert!(!holds(Role::Owner, "node.manage.node_1"));
    }
}
