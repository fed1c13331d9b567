//! What a sandbox reaches: the policy's hosts, and those of the command line.
//!
//! The proxy asks for every request. A host on the command line is allowed
//! unless a rule denies it; every other host is the policy's business.

use std::sync::Arc;

use fluffy_base::id::SandboxId;
use fluffy_contract::BoxFuture;
use fluffy_egress::{
    AllowList, Allowed, ByGate, Decide, Denied, ProxyHandle, Question, Settings, ToLedger, serve,
};
use fluffy_ledger::{Domain, Ledger};
use fluffy_policy::Context;
use fluffy_report::{ExitCode, Report};
use fluffy_sandbox::client::SandboxHandle;

use crate::command::gate::Desk;
use crate::failure::Failure;

/// Who decides what a sandbox may reach.
#[derive(Debug)]
pub(super) struct Hosts {
    listed: AllowList,
    policy: ByGate,
}

impl Hosts {
    /// The hosts of the command line, below the policy's denies.
    pub(super) fn of(desk: &Desk, texts: &[String], context: Context) -> Result<Self, Failure> {
        let listed = AllowList::parse(texts).map_err(|error| {
            let fix = "write it as HOST:PORT, such as `index.crates.io:443` or `*.example.org:443`";
            Failure::from(Report::from_error(ExitCode::Usage, &error).fix(fix))
        })?;
        let policy = ByGate::new(Arc::clone(&desk.gate), desk.principal.clone(), context);
        Ok(Self {
            listed: listed.below(Arc::clone(&desk.gate)),
            policy,
        })
    }

    /// Starts the proxy on the sandbox's own loopback.
    pub(super) async fn serve(
        self,
        sandbox: &SandboxHandle,
        template: &str,
        record: Recorder,
    ) -> Result<ProxyHandle, Failure> {
        let listener = sandbox.listen_for_proxy().await.map_err(|error| {
            let fix = "`fluffy doctor` says what this machine can do";
            Failure::of(ExitCode::Failure, &error, fix)
        })?;
        let settings = record.settings(sandbox.id(), template, self);
        serve(listener, settings).map_err(|error| {
            Failure::of(ExitCode::Transient, &error, "check the limit on open files")
        })
    }
}

impl Decide for Hosts {
    fn decide<'a>(&'a self, question: &'a Question) -> BoxFuture<'a, Result<Allowed, Denied>> {
        Box::pin(async move {
            match self.listed.decide(question).await {
                Ok(allowed) => Ok(allowed),
                // Not listed, or denied: the policy says which, and records it.
                Err(_) => self.policy.decide(question).await,
            }
        })
    }
}

/// Where requests are recorded.
#[derive(Debug)]
pub(super) struct Recorder {
    to: ToLedger,
}

impl Recorder {
    /// Into this ledger, in this person's name.
    pub(super) fn new(ledger: Ledger, desk: &Desk) -> Self {
        Self {
            to: ToLedger::new(ledger, Domain::Agent, desk.actor()),
        }
    }

    fn settings(self, sandbox: SandboxId, template: &str, hosts: Hosts) -> Settings {
        Settings::new(sandbox, template, Arc::new(hosts), Arc::new(self.to))
    }
}
