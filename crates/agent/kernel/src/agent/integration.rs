//! Tests that may need more than their own loopback: by a rule, and apart.
//!
//! They run after the other tests and over the same layer, in the template
//! `integration-test`. Where that is not allowed they are not run, which is
//! told and is never a failing test. Their only way out is the egress proxy,
//! which asks policy about every connection. Next: `testing`.

use std::sync::Arc;

use fluffy_contract::isolation::Finished;
use fluffy_egress::{ByGate, ProxyHandle, Settings, ToLedger, serve};
use fluffy_layer::HeldLayer;
use fluffy_ledger::{Actor, ActorKind, Domain};
use fluffy_policy::Context;
use fluffy_tools::refusal::{Refusal, RefusedBy};
use fluffy_workflow::project::detect::TestCommand;

use super::Agent;
use super::testing::{Tested, add, read};
use crate::course::Course;
use crate::event::AgentEvent;
use crate::router::{RouteError, Router};
use crate::workshop::Booth;

/// The template in which they run.
const TEMPLATE: &str = "integration-test";

/// Integration tests that were not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NotRun {
    /// Which.
    pub(super) name: String,
    /// Why not.
    refusal: Box<Refusal>,
}

impl NotRun {
    /// In a line, for the model and for people.
    pub(super) fn line(&self) -> String {
        let Self { name, refusal } = self;
        let why = refusal.for_people();
        format!("integration tests `{name}` did not run and prove nothing: {why}")
    }
}

impl Agent {
    /// Runs the project's integration tests over the layer of a test run.
    pub(super) async fn integrate(
        &self,
        router: &Router<'_>,
        course: &Course,
        trial: &HeldLayer,
        mut tested: Tested,
    ) -> Result<Tested, RouteError> {
        let context = Context {
            template: Some(TEMPLATE.to_owned()),
            ..router.context.clone()
        };
        let router = Router {
            context,
            freezer: router.freezer.clone(),
            ..self.router(course)
        };
        let project = self.ground.workshop.premises().project.clone();
        for (name, one) in &self.layout.integration {
            match self.run_integration(&router, trial, one).await {
                Ok(finished) => {
                    let line = one.command.join(" ");
                    add(&mut tested.printed, &line, &finished);
                    let root = project.to_string_lossy();
                    let report = read(&line, &root, one.format, &finished);
                    tested.report = tested.report.beside(name, report);
                }
                Err(RouteError::Refused(refusal)) => {
                    let name = name.clone();
                    let not_run = NotRun { name, refusal };
                    tested.printed.push_str(&format!("{}\n", not_run.line()));
                    tested.not_run.push(not_run);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(tested)
    }

    /// Tells what was not run, unless that is known.
    pub(super) fn tell_not_run(&mut self, tested: &Tested) {
        let names: Vec<String> = tested.not_run.iter().map(|one| one.name.clone()).collect();
        if self.evidence.not_run != names {
            for not_run in &tested.not_run {
                let text = not_run.line();
                self.publish(AgentEvent::Note { text });
            }
            self.evidence.not_run = names;
        }
    }

    async fn run_integration(
        &self,
        router: &Router<'_>,
        trial: &HeldLayer,
        one: &TestCommand,
    ) -> Result<Finished, RouteError> {
        let protected = router.course.protected(&self.ground.workshop);
        let booth = router.open_over("test.run", trial, protected).await?;
        let ran = self.with_network(router, &booth, one).await;
        booth.close().await;
        ran
    }

    async fn with_network(
        &self,
        router: &Router<'_>,
        booth: &Booth,
        one: &TestCommand,
    ) -> Result<Finished, RouteError> {
        let permit = self.permit_test(router, booth).await?;
        let proxy = self.proxy(booth, &router.context).await;
        let proxy = proxy.map_err(|error| {
            let reason = error.to_string();
            Refusal::without_way("test.run", RefusedBy::Sandbox { reason })
        })?;
        let finished = self.run_test(booth, permit, one).await;
        proxy.stop().await;
        Ok(finished)
    }

    /// The only way out of the sandbox.
    async fn proxy(
        &self,
        booth: &Booth,
        context: &Context,
    ) -> Result<ProxyHandle, Box<dyn std::error::Error + Send + Sync>> {
        let desk = self.ground.desk.inside(booth.id());
        let listener = booth.listen_for_proxy().await?;
        let decide = ByGate::new(
            Arc::clone(&desk.gate),
            desk.principal.clone(),
            context.clone(),
        );
        let actor = Actor::new(ActorKind::Agent, desk.principal.name.clone());
        let record = ToLedger::new(self.ground.ledger.clone(), Domain::Agent, actor);
        let settings = Settings::new(booth.id(), TEMPLATE, Arc::new(decide), Arc::new(record));
        let settings = Settings {
            network: Arc::clone(&self.ground.network),
            ..settings
        };
        Ok(serve(listener, settings)?)
    }
}
