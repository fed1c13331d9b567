//! The calls of one answer: checked, ordered, made, recorded.
//!
//! Calls that do not touch each other run beside each other; steps of the
//! workflow run alone. Every call ends in exactly one recorded result.

use std::time::Instant;

use fluffy_contract::model::ToolCall;
use fluffy_contract::tool::{Access, Area, CallPlan, Touch};
use fluffy_policy::word::Mode;
use fluffy_tools::budget::Charge;
use fluffy_tools::call::Call;
use fluffy_tools::paths::shown;
use fluffy_tools::refusal::Refusal;
use fluffy_tools::registry::Checked;
use fluffy_tools::turn::TurnPlan;
use futures_util::future::join_all;

use super::{Agent, DriveError};
use crate::event::AgentEvent;
use crate::router::{RouteError, Routed, refused};
use crate::session::{CallFinished, Fact};

/// A call after the schema and the budget looked at it.
enum Prepared {
    Fits(Checked),
    Refused(Box<Refusal>),
}

impl Prepared {
    /// Whether files of the layer can be others after it.
    fn may_change(&self) -> bool {
        match self {
            Self::Fits(checked) => matches!(
                checked.call,
                Call::Write(_)
                    | Call::Replace(_)
                    | Call::Patch(_)
                    | Call::Remove(_)
                    | Call::Shell(_)
                    | Call::Debug(_)
                    | Call::Foreign(_)
            ),
            Self::Refused(_) => false,
        }
    }
}

impl Agent {
    /// Makes all open calls of the last answer.
    pub(super) async fn calls(&mut self, calls: Vec<ToolCall>) -> Result<(), DriveError> {
        let prepared: Vec<Prepared> = calls.iter().map(|call| self.prepare(call)).collect();
        if prepared.iter().any(Prepared::may_change) {
            self.keep().await?;
        }
        let nothing = CallPlan {
            needs: Vec::new(),
            touches: Vec::new(),
        };
        let everything = CallPlan {
            needs: Vec::new(),
            touches: vec![Touch {
                access: Access::Write,
                area: Area::Everything,
            }],
        };
        let plans: Vec<&CallPlan> = prepared
            .iter()
            .map(|one| match one {
                Prepared::Refused(_) => &nothing,
                Prepared::Fits(checked) if self.is_step(&checked.call) => &everything,
                Prepared::Fits(checked) => &checked.plan,
            })
            .collect();
        let order = TurnPlan::of(&plans);
        let mut ended = vec![false; calls.len()];
        while ended.iter().any(|ended| !ended) {
            let ready: Vec<usize> = (0..calls.len())
                .filter(|at| !ended.get(*at).copied().unwrap_or(true))
                .filter(|at| order.is_ready(*at, &ended))
                .collect();
            if ready.is_empty() {
                // A plan always has a first; this only bounds the loop.
                break;
            }
            let wave: Vec<(&ToolCall, &Prepared)> = ready
                .iter()
                .filter_map(|at| Some((calls.get(*at)?, prepared.get(*at)?)))
                .collect();
            self.wave(&wave).await?;
            for at in ready {
                if let Some(flag) = ended.get_mut(at) {
                    *flag = true;
                }
            }
        }
        Ok(())
    }

    /// Whether a call runs alone, because it can change what the workflow
    /// allows the calls after it, or because a person looks at it.
    fn is_step(&self, call: &Call) -> bool {
        match call {
            Call::Shell(_) => self.session.workflow.mode() == Mode::Debug,
            Call::Test(_)
            | Call::Debug(_)
            | Call::GitCommit(_)
            | Call::CompletePlan(_)
            | Call::RequestExemption(_)
            | Call::Transition(_)
            | Call::TestIsWrong(_)
            | Call::SetMode(_) => true,
            _ => false,
        }
    }

    fn prepare(&mut self, call: &ToolCall) -> Prepared {
        if let Err(spent) = self.budget.charge(Charge::Call) {
            return Prepared::Refused(Box::new(Refusal::of_budget(&call.name, spent)));
        }
        match self.ground.registry.check(&call.name, &call.arguments) {
            Ok(checked) => Prepared::Fits(checked),
            Err(error) => Prepared::Refused(Box::new(Refusal::of_check(&call.name, &error))),
        }
    }

    /// Calls that may run beside each other.
    async fn wave(&mut self, wave: &[(&ToolCall, &Prepared)]) -> Result<(), DriveError> {
        for (call, one) in wave {
            let (tool, subject) = match one {
                Prepared::Fits(checked) => (checked.tool.clone(), subject(checked)),
                Prepared::Refused(refusal) => (refusal.tool.clone(), String::new()),
            };
            self.publish(AgentEvent::ToolStarted {
                call: call.id.clone(),
                tool,
                subject,
            });
        }
        let began = Instant::now();
        if let [(call, Prepared::Fits(checked))] = wave
            && self.is_step(&checked.call)
        {
            let routed = self.kernel_call(call, checked).await?;
            return self.finish(call, &checked.tool, routed, began).await;
        }
        let done = {
            let course = self.course();
            let router = self.router(&course);
            let router = &router;
            let calls = wave.iter().map(|(call, one)| async move {
                match one {
                    Prepared::Refused(refusal) => Ok(refused(refusal)),
                    Prepared::Fits(checked) => router.route(&call.id, checked).await,
                }
            });
            join_all(calls).await
        };
        for ((call, one), routed) in wave.iter().zip(done) {
            let routed = routed.map_err(|error| match error {
                RouteError::NotRecorded(error) => DriveError::Route(error),
                RouteError::Refused(refusal) => DriveError::Route(refusal.for_people().into()),
            })?;
            let tool = match one {
                Prepared::Fits(checked) => &checked.tool,
                Prepared::Refused(refusal) => &refusal.tool,
            };
            self.finish(call, tool, routed, began).await?;
        }
        Ok(())
    }

    /// Records how a call ended.
    pub(super) async fn finish(
        &mut self,
        call: &ToolCall,
        tool: &str,
        routed: Routed,
        began: Instant,
    ) -> Result<(), DriveError> {
        let took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let Routed {
            outcome,
            content,
            original,
            summary,
        } = routed;
        self.record(Fact::Finished(CallFinished {
            call: call.id.clone(),
            tool: tool.to_owned(),
            outcome,
            content,
            original,
            took_ms,
        }))
        .await?;
        self.publish(AgentEvent::ToolFinished {
            call: call.id.clone(),
            tool: tool.to_owned(),
            outcome,
            took_ms,
            summary,
        });
        Ok(())
    }
}

/// What a call acts on, in a few words.
fn subject(checked: &Checked) -> String {
    const MOST: usize = 80;
    let text = match &checked.call {
        Call::Shell(run) | Call::Debug(run) => run.command.clone(),
        Call::Grep(search) => search.pattern.clone(),
        Call::Glob(find) => find.pattern.clone(),
        Call::CompletePlan(plan) => plan.summary.clone(),
        _ => {
            let first = checked.plan.needs.first();
            let resource = first.and_then(|need| need.resource.as_deref());
            resource.map(shown).unwrap_or_default().to_owned()
        }
    };
    let line = text.lines().next().unwrap_or_default();
    line.chars().take(MOST).collect()
}
