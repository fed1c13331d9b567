//! What happens to people and what they may do, in a history nobody planned.
//!
//! Members, tokens, service principals, grants, rules, approvals and projects
//! come and go; whether each is allowed is for the real doors to say.

use fluffy_api::Operation;
use fluffy_base::id::{OrgId, PrincipalId, TokenId};
use fluffy_control::access::Notice as AccessNotice;
use fluffy_control::call::NewCredential;
use fluffy_control::{Material, Notice};
use serde_json::{Value, json};

use super::History;

/// Rules under which a project waits for a second person, and none.
const RULES: [&str; 2] = [
    "version: 1\ncapabilities:\n  - { name: ask, match: { action: project.manage }, do: require_review, reason: two people }\n",
    "version: 1\n",
];

impl History {
    /// Somebody comes, goes, or may do something else.
    pub(super) fn people(&mut self, org: &str) {
        match self.random.below(10) {
            0 => self.member(org),
            1 => self.member_changes(org),
            2 => self.token(org),
            3 => self.principal(org),
            4..=5 => self.principal_changes(org),
            6 => self.grant(org),
            7 => self.rules(org),
            8 => self.approvals(org),
            _ => self.project(org),
        }
    }

    /// Asks with credentials that were prepared.
    fn ask_issuing(
        &mut self,
        operation: Operation,
        path: &[&str],
        (body, id): (Value, String),
    ) -> Option<Value> {
        let mut request = self.world.request(operation, path, body);
        let email_hash = (operation == Operation::AddMember).then(|| format!("hash of {id}"));
        request.material = Material::Credential(NewCredential {
            issued: vec![id],
            email_hash,
            shown: None,
        });
        self.ask_with(&request)
    }

    fn bits(&self) -> u128 {
        self.world.mint.bits(self.world.now)
    }

    fn id_of(&self, org: &str) -> Option<OrgId> {
        self.world.state.access.names.org(org)
    }

    fn member(&mut self, org: &str) {
        let role = self.random.pick(&["viewer", "developer", "admin"]).unwrap();
        let email = format!("{}@example.org", self.name());
        let id = TokenId::from_bits(self.bits()).to_string();
        let body = json!({"email": email, "role": role});
        self.ask_issuing(Operation::AddMember, &[org], (body, id));
    }

    fn member_changes(&mut self, org: &str) {
        let of = self.id_of(org);
        let members = self.world.state.access.members.iter();
        let here = members.filter(|(_, it)| it.owner.org == of);
        let ids: Vec<_> = here.map(|(id, _)| *id).collect();
        let Some(id) = self.random.pick(&ids) else {
            return;
        };
        let id = id.to_string();
        if self.random.one_in(2) {
            self.ask(Operation::RemoveMember, &[org, &id], json!({}));
        } else {
            let role = self.random.pick(&["viewer", "developer"]).unwrap();
            self.ask(Operation::UpdateMember, &[org, &id], json!({"role": role}));
        }
    }

    fn token(&mut self, org: &str) {
        let of = self.id_of(org);
        let tokens = self.world.state.access.tokens.iter();
        let live = tokens.filter(|(_, it)| it.org == of && it.revoked.is_none());
        let ids: Vec<_> = live.map(|(id, _)| *id).collect();
        match self.random.pick(&ids) {
            Some(id) if self.random.one_in(2) => {
                self.ask(Operation::RevokeToken, &[org, &id.to_string()], json!({}));
            }
            _ => {
                let id = TokenId::from_bits(self.bits()).to_string();
                let body = json!({"kind": "api", "ttl_seconds": 3600});
                self.ask_issuing(Operation::CreateToken, &[org], (body, id));
            }
        }
    }

    fn principal(&mut self, org: &str) {
        // Few names, so that some are taken and some were deleted just now.
        let name = format!("robot-{}", self.random.below(12));
        let id = PrincipalId::from_bits(self.bits()).to_string();
        let body = json!({"name": name, "grants": []});
        self.ask_issuing(Operation::CreatePrincipal, &[org], (body, id));
    }

    fn principals(&self, org: &str) -> Vec<PrincipalId> {
        let of = self.id_of(org);
        let services = self.world.state.access.services.iter();
        let here = services.filter(|(_, it)| Some(it.org) == of);
        here.map(|(id, _)| *id).collect()
    }

    fn principal_changes(&mut self, org: &str) {
        let principals = self.principals(org);
        let Some(id) = self.random.pick(&principals) else {
            return;
        };
        let path = [org, &id.to_string()];
        match self.random.below(3) {
            0 => {
                let body = json!({"grants": [format!("env.deploy.{org}/shop/*")]});
                self.ask(Operation::UpdatePrincipal, &path, body);
            }
            1 => {
                let rotation = TokenId::from_bits(self.bits()).to_string();
                self.ask_issuing(Operation::RotatePrincipal, &path, (json!({}), rotation));
            }
            _ => {
                self.ask(Operation::DeletePrincipal, &path, json!({}));
            }
        }
    }

    fn grant(&mut self, org: &str) {
        let of = self.id_of(org);
        let grants = self.world.state.access.grants.iter();
        let here = grants.filter(|(_, it)| Some(it.org) == of);
        let ids: Vec<_> = here.map(|(id, _)| *id).collect();
        let principals = self.principals(org);
        if let Some(id) = self.random.pick(&ids)
            && self.random.one_in(2)
        {
            self.ask(Operation::RemoveGrant, &[org, &id.to_string()], json!({}));
        } else if let Some(to) = self.random.pick(&principals) {
            let body = json!({
                "principal_id": to.to_string(),
                "pattern": format!("env.deploy.{org}/shop/*"),
                "ttl_seconds": 3600,
            });
            self.ask(Operation::CreateGrant, &[org], body);
        }
    }

    fn rules(&mut self, org: &str) {
        let Some(of) = self.id_of(org) else { return };
        let policy = &self.world.state.access.orgs[&of].policy;
        let version = policy.as_ref().map_or(0, |it| it.version);
        let rules = self.random.pick(&RULES).unwrap();
        let body = json!({"rules": rules, "expected_version": version});
        self.ask(Operation::SetPolicy, &[org], body);
    }

    fn approvals(&mut self, org: &str) {
        let of = self.id_of(org);
        let approvals = self.world.state.access.approvals.iter();
        let waiting = approvals.filter(|(_, it)| Some(it.org) == of && it.status == "pending");
        let ids: Vec<_> = waiting.map(|(id, _)| *id).collect();
        if let Some(id) = self.random.pick(&ids) {
            let body = json!({"outcome": "deny"});
            self.ask(Operation::DecideApproval, &[org, &id.to_string()], body);
        }
        let expired = Notice::Access(AccessNotice::ApprovalsExpired);
        self.world.say_any(&expired);
    }

    fn project(&mut self, org: &str) {
        let of = self.id_of(org);
        let projects = self.world.state.runtime.projects.iter();
        let here = projects.filter(|(_, it)| Some(it.org) == of);
        let ids: Vec<_> = here.map(|(id, _)| *id).collect();
        match self.random.pick(&ids) {
            Some(id) if self.random.one_in(3) => {
                let path = [org, &id.to_string()];
                let body = json!({"display_name": self.name()});
                self.ask(Operation::UpdateProject, &path, body);
            }
            Some(id) if self.random.one_in(2) => {
                self.ask(Operation::DeleteProject, &[org, &id.to_string()], json!({}));
            }
            _ => {
                let body = json!({"name": self.name()});
                self.ask(Operation::CreateProject, &[org], body);
            }
        }
    }
}
