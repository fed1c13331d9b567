//! From green to committed: review, merge, commit.
//!
//! Nothing merges on the model's word: the evidence is the workflow's, the
//! permission policy's or a person's, and both are in the ledger before the
//! first file of the project changes.

use std::collections::BTreeMap;
use std::time::Instant;

use fluffy_base::id::TaskId;
use fluffy_base::{Clock, Digest, SystemClock};
use fluffy_gate::Answer;
use fluffy_layer::{Body, Difference, LayerState, MergeReport, NodeKind, Shape, TreePath, View};
use fluffy_ledger::{Actor, ActorKind, Aggregate, Batch, Domain, Draft};
use fluffy_policy::word::State;
use fluffy_policy::{Context, Permit};
use fluffy_tasks::Kind;
use fluffy_tools::native::IgnoredPaths;
use fluffy_workflow::debt;
use fluffy_workflow::machine::{Approval, Input, Standing};
use serde_json::{Value, json};

use super::{Agent, DriveError};
use crate::commit::{CommitError, Committed, Committer, Entry, Order};
use crate::debts::{Counted, Debts};
use crate::event::AgentEvent;
use crate::merge::{Verdict, judge, whole};
use crate::person::{Question, Said};
use crate::router::told;
use crate::session::{Fact, Landing, NO_COMMIT};
use crate::slots::Work;

/// The longest first line of a commit.
const SUBJECT: usize = 72;

/// A yes to a merge, and who gave it.
struct Yes {
    permit: Permit,
    approval: Approval,
}

impl Agent {
    /// What the last commit may be called; nothing before one.
    pub(super) fn landed(&self) -> Option<Standing> {
        self.session.landed
    }

    /// Reviews, merges and commits what is green; after that task, if it was
    /// not proven in an earlier life of the session.
    pub(super) async fn land(&mut self, after: Option<TaskId>) -> Result<String, DriveError> {
        let difference = self.held.difference()?;
        let left_out = self.ignored(&difference)?;
        let difference = difference.without(&left_out);
        // Before anybody is asked: a yes does not wait for test runs.
        let coverage = self.coverage_of_commit().await?;
        let plan = match self.held.plan_merge() {
            Ok(plan) => plan.leave_out(&left_out),
            Err(error) => return self.reject(&super::steps::chain(&error)).await,
        };
        if !plan.is_clear() {
            let refusals = plan
                .refusals()
                .iter()
                .map(|one| format!("`{}`: {}", one.path, one.reason.sentence()));
            let conflicts = plan.conflicts().iter();
            let conflicts =
                conflicts.map(|one| format!("`{}` changed in the project too", one.path));
            let all: Vec<String> = refusals.chain(conflicts).take(10).collect();
            return self.reject(&all.join("; ")).await;
        }
        let context = Context {
            state: Some(State::Reviewing),
            ..self.context()
        };
        let desk = self.inside();
        let work = Work {
            after,
            ..self.work_of(Kind::Review, None)
        };
        let reviewed = work.id;
        // A person's answer is waited for outside: it takes no slot.
        let judging = || async { judge(&desk, &plan, &difference, &context) };
        let verdict = match self.ground.slots.run(work, judging).await {
            Ok(verdict) => verdict.map_err(|error| DriveError::Route(error.into()))?,
            Err(error) => return self.reject(&super::steps::chain(&error)).await,
        };
        let yes = match self.decide(verdict, &difference).await? {
            Ok(yes) => yes,
            Err(reason) => return self.reject(&reason).await,
        };
        let standing = self.session.workflow.standing();
        let landing = Landing {
            entries: Entry::all(&difference),
            message: self.commit_message(standing.unwrap_or(Standing::Unverified)),
            merged: lines_of(&difference),
            unreached: coverage.and_then(|_| self.unreached()),
            coverage,
        };
        self.record(Fact::Landing(landing)).await?;
        let approve = Input::ApproveMerge {
            approval: yes.approval,
        };
        if let Err(error) = self.step(approve).await? {
            return Ok(format!("Not merged: {error}"));
        }
        let facts = json!({
            "plan": plan.digest(),
            "steps": plan.steps().len(),
            "lines": difference.summary.weight,
        });
        self.note("merge.approved", facts).await?;
        match self.held.apply(yes.permit, &plan) {
            Ok(report) => self.applied(&report).await?,
            Err(error) => return Ok(format!("The merge broke off: {error}")),
        }
        self.commit(Some(reviewed)).await
    }

    /// After a crash between the commit and its record: all that is left is to
    /// say it.
    pub(super) async fn tell_landed(&mut self) -> Result<(), DriveError> {
        if let Some(landing) = self.session.landing.clone() {
            self.remember(&landing);
        }
        self.evidence.commit.clone_from(&self.session.commit);
        let text = match &self.session.commit {
            Some(name) => format!("Merged and committed as {name}."),
            None => "Merged.".to_owned(),
        };
        for call in self.session.pending() {
            self.publish(AgentEvent::ToolStarted {
                call: call.id.clone(),
                tool: call.name.clone(),
                subject: String::new(),
            });
            let result = told(text.clone());
            self.finish(&call, &call.name, result, Instant::now())
                .await?;
        }
        Ok(())
    }

    /// Ends a merge and its commit after a crash in the middle.
    pub(super) async fn finish_landing(&mut self) -> Result<String, DriveError> {
        // Another layer than the session's means that its own was merged.
        if self.held.layer().id() == self.session.layer {
            match self.finish_merge()? {
                Ok(report) => self.applied(&report).await?,
                Err(why) => return Ok(format!("The merge cannot be ended: {why}")),
            }
        }
        self.commit(None).await
    }

    fn finish_merge(&mut self) -> Result<Result<MergeReport, String>, DriveError> {
        let context = Context {
            state: Some(State::Committing),
            ..self.context()
        };
        let desk = self.inside();
        let request = whole(&desk, &context, None);
        let asked = desk.ask(&request);
        let permit = match asked.map_err(|error| DriveError::Route(error.into()))? {
            Answer::Granted(granted) => granted.permit,
            Answer::Review(refusal) | Answer::Denied(refusal) => {
                return Ok(Err(refusal.to_string()));
            }
        };
        let report = if self.held.layer().state() == LayerState::Merging {
            self.held.resume(permit)
        } else {
            let difference = self.held.difference()?;
            let left_out = self.ignored(&difference)?;
            match self.held.plan_merge() {
                Ok(plan) => self.held.apply(permit, &plan.leave_out(&left_out)),
                Err(error) => return Ok(Err(super::steps::chain(&error))),
            }
        };
        Ok(report.map_err(|error| super::steps::chain(&error)))
    }

    async fn applied(&self, report: &MergeReport) -> Result<(), DriveError> {
        let facts = json!({"applied": report.applied.len(), "troubles": report.troubles.len()});
        self.note("merge.applied", facts).await
    }

    /// The yes of a rule or a person, or why there is none.
    async fn decide(
        &self,
        verdict: Verdict,
        difference: &Difference,
    ) -> Result<Result<Yes, String>, DriveError> {
        let sensitive = self.session.workflow.sensitive();
        let (reviews, permit) = match verdict {
            Verdict::Denied(denied) => {
                let reasons = denied
                    .iter()
                    .flat_map(|one| one.refusal.decision().reasons());
                let reasons: Vec<&str> = reasons.take(5).collect();
                return Ok(Err(format!("policy denies it: {}", reasons.join("; "))));
            }
            Verdict::Allowed(permit) if sensitive.is_empty() => {
                let rule = "merge.apply".to_owned();
                let approval = Approval::Automatic { rule };
                return Ok(Ok(Yes { permit, approval }));
            }
            Verdict::Allowed(permit) => (None, Some(permit)),
            Verdict::Review(reviews) => (Some(reviews), None),
        };
        let rules = reviews.iter().flat_map(|reviews| reviews.open());
        let rules = rules.flat_map(|one| one.refusal.decision().reasons());
        let mut reasons: Vec<String> = rules.map(str::to_owned).collect();
        reasons.extend(sensitive.iter().map(|path| {
            format!("`{path}` was a test before the session, or configures how tests run")
        }));
        reasons.dedup();
        let question = Question {
            text: "Merge this into the project?".to_owned(),
            reasons,
            shown: Some(difference.to_string()),
        };
        match self.ground.person.ask(question).await {
            Said::Yes => {}
            Said::No => return Ok(Err("a person said no".to_owned())),
            Said::Nobody => {
                self.unanswered
                    .store(true, std::sync::atomic::Ordering::Relaxed);
                return Ok(Err(
                    "a person has to look at it, and nobody is there".to_owned()
                ));
            }
        }
        self.reviewed
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let approval = self.person();
        let Approval::Person { name } = &approval else {
            return Ok(Err("nobody approved it".to_owned()));
        };
        let permit = match (reviews, permit) {
            (_, Some(permit)) => permit,
            (Some(reviews), None) => match reviews.approve(&self.inside(), name) {
                Ok(permit) => permit,
                Err(error) => return Err(DriveError::Route(error.into())),
            },
            (None, None) => return Ok(Err("nothing permits it".to_owned())),
        };
        Ok(Ok(Yes { permit, approval }))
    }

    async fn reject(&mut self, reason: &str) -> Result<String, DriveError> {
        self.note("merge.rejected", json!({"reason": reason}))
            .await?;
        let reject = Input::RejectMerge {
            reason: reason.to_owned(),
        };
        if let Err(error) = self.step(reject).await? {
            return Ok(format!("Not merged: {reason}; {error}"));
        }
        Ok(format!("Not merged: {reason}"))
    }

    /// Counts what the commit adds to or takes from the project's debt.
    async fn count(&mut self, landing: &Landing) -> Result<(), DriveError> {
        let coverage = landing.coverage;
        let green = self.session.green.as_ref();
        let commit = match self.session.workflow.standing() {
            Some(Standing::Verified) => debt::Commit::Verified {
                coverage,
                fail_to_pass: green.map_or(0, |green| green.fail_to_pass().len()),
            },
            Some(Standing::Exempt { .. }) => debt::Commit::Exempt,
            Some(Standing::Unverified) | None => debt::Commit::Unverified { coverage },
        };
        let debts = Debts::new(self.ground.ledger.clone());
        let project = self.held.layer().project();
        let counted = Counted {
            landing: Digest::of(&serde_json::to_vec(landing).unwrap_or_default()),
            commit,
            unreached: landing.unreached.clone(),
        };
        debts.count(project, self.session.id, &counted).await?;
        self.known = debts.of(self.held.layer().project())?;
        self.say_debt(commit);
        Ok(())
    }

    async fn commit(&mut self, after: Option<TaskId>) -> Result<String, DriveError> {
        let landing = self.session.landing.clone();
        let landing = landing.unwrap_or_else(|| Landing {
            entries: Vec::new(),
            message: self.commit_message(Standing::Unverified),
            merged: BTreeMap::new(),
            coverage: None,
            unreached: None,
        });
        self.remember(&landing);
        let order = Order {
            entries: landing.entries.clone(),
            message: landing.message.clone(),
            author: self.ground.author.clone(),
            moment: SystemClock.now(),
        };
        let committer = Committer {
            workshop: &self.ground.workshop,
            store: &self.ground.layers,
            kind: self.ground.kind,
            hidden: &self.hidden,
            desk: &self.ground.desk,
            context: self.context(),
        };
        let twice = || async {
            match committer.commit(&order).await {
                Err(error) if !matches!(error, CommitError::NotRecorded(_)) => {
                    // Asked twice it commits once, and what was killed may
                    // work now.
                    committer.commit(&order).await
                }
                committed => committed,
            }
        };
        let work = Work {
            after,
            ..self.work_of(Kind::Commit, None)
        };
        let committed = match self.ground.slots.run(work, twice).await {
            Ok(committed) => committed,
            Err(error) => {
                let text = format!("merged, but not committed: {}", super::steps::chain(&error));
                self.stuck = Some(text.clone());
                return Ok(text);
            }
        };
        let (name, text) = match committed {
            Ok(Committed::As(name)) => {
                let text = format!("Merged and committed as {name}.");
                (name, text)
            }
            Ok(Committed::Nothing) => {
                let text = "Merged; the newest commit has it already.".to_owned();
                (NO_COMMIT.to_owned(), text)
            }
            Ok(Committed::NoRepository) => {
                let text = "Merged; the project is no git repository.".to_owned();
                (NO_COMMIT.to_owned(), text)
            }
            Err(error @ CommitError::NotRecorded(_)) => {
                return Err(DriveError::Route(error.into()));
            }
            Err(error) => {
                // It stays where it is, so that going on commits it.
                let text = format!("merged, but not committed: {}", super::steps::chain(&error));
                self.stuck = Some(text.clone());
                return Ok(text);
            }
        };
        if name != NO_COMMIT {
            self.evidence.commit = Some(name.clone());
        }
        self.count(&landing).await?;
        if let Err(error) = self.step(Input::FinishCommit { commit: name }).await? {
            return Ok(format!("{text} {error}"));
        }
        Ok(text)
    }

    fn commit_message(&self, standing: Standing) -> String {
        let own = self.message.as_deref().unwrap_or(&self.session.task);
        let mut lines = own.trim().lines();
        let subject: String = lines
            .next()
            .unwrap_or_default()
            .chars()
            .take(SUBJECT)
            .collect();
        let body: Vec<&str> = lines.collect();
        let body = body.join("\n");
        let word = match standing {
            Standing::Verified => "verified".to_owned(),
            Standing::Unverified => "unverified".to_owned(),
            Standing::Exempt { category } => format!("exempt:{category}"),
        };
        let body = body.trim();
        let gap = if body.is_empty() { "" } else { "\n\n" };
        format!(
            "{subject}{gap}{body}\n\nFluffy-Session: {}\nFluffy-Evidence: {word}\n",
            self.session.id
        )
    }

    /// What goes into the summary.
    fn remember(&mut self, landing: &Landing) {
        if let Some(green) = &self.session.green {
            self.evidence.fail_to_pass = green.fail_to_pass().to_vec();
            self.evidence.pass_to_pass = green.pass_to_pass();
        }
        self.evidence.merged.clone_from(&landing.merged);
        self.evidence.coverage = landing.coverage;
    }

    /// What commands left behind that no repository keeps: everything that
    /// the tests did not see either, by the project's own ignore files.
    pub(super) fn ignored(&self, difference: &Difference) -> Result<Vec<TreePath>, DriveError> {
        let tested = self.course().written(&self.held)?;
        let project = View::of_project(self.held.layer().project())
            .map_err(fluffy_layer::ReadLayerError::from)?;
        let mut ignored = IgnoredPaths::new(&project);
        let mut found = Vec::new();
        for file in &difference.files {
            let path = &file.change.path;
            let shape = file.change.after.or(file.change.before);
            let kind = shape.map_or(NodeKind::File, |shape| shape.kind);
            let was_tested = tested.iter().any(|one| one.path.is_within(path));
            if !was_tested && ignored.contains(path, kind) {
                found.push(path.clone());
            }
        }
        Ok(found)
    }

    /// Writes of a session come out of its sandboxes.
    fn inside(&self) -> fluffy_gate::Desk {
        match self.ground.workshop.last() {
            Some(sandbox) => self.ground.desk.inside(sandbox),
            None => self.ground.desk.clone(),
        }
    }

    /// Records how much of the project the session's commands cannot open.
    pub(super) async fn note_hidden(&self) -> Result<(), DriveError> {
        let hidden = self.hidden.paths().len();
        let payload = json!({"hidden": hidden, "entries": self.hidden.entries()});
        self.note("session.hidden", payload).await
    }

    pub(super) async fn note(&self, event_type: &str, payload: Value) -> Result<(), DriveError> {
        let actor = Actor::new(ActorKind::Agent, self.session.id.to_string());
        let layer = Aggregate::new("layer", self.held.layer().id().to_string());
        let draft = Draft::new(Domain::Agent, layer, event_type, actor).payload(payload);
        self.ground.ledger.append(Batch::from(draft)).await?;
        Ok(())
    }
}

/// The files of a difference, with lines added and removed.
fn lines_of(difference: &Difference) -> BTreeMap<String, (u64, u64)> {
    let is_file = |shape: Option<Shape>| shape.is_some_and(|shape| shape.kind == NodeKind::File);
    let files = difference.files.iter();
    let files = files.filter(|file| is_file(file.change.before) || is_file(file.change.after));
    let lines = files.map(|file| {
        let lines = match &file.body {
            Body::Text { added, removed, .. } => (*added as u64, *removed as u64),
            Body::Whole { .. } | Body::Link { .. } | Body::Bare => (0, 0),
        };
        (file.change.path.to_string(), lines)
    });
    lines.collect()
}
