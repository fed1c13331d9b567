//! Taking work back: the layer as it was before the last change.
//!
//! Before calls that may change the layer it is kept as it is, whatever makes
//! the change, a command included. Going back is recorded first; a crash in
//! the middle is made good when the session goes on. What was proven of the
//! work that is gone is void: the workflow says what that means.

use std::collections::BTreeMap;

use fluffy_base::Digest;
use fluffy_base::id::SnapshotId;
use fluffy_contract::tool::Need;
use fluffy_layer::{CopyError, SnapshotError};
use fluffy_policy::Permit;
use fluffy_policy::word::State;
use fluffy_tools::refusal::Refusal;
use fluffy_workflow::machine::Input;

use super::orders::{done, refused};
use super::{Agent, DriveError};
use crate::api::Reply;
use crate::course::{Texts, Written};
use crate::event::AgentEvent;
use crate::router::RouteError;
use crate::session::{Fact, Kept};

/// The largest layer that is kept before every change.
const MAX_BYTES: u64 = 64 << 20;

/// The most files that are named in an answer.
const NAMED: usize = 5;

impl Agent {
    /// Keeps the layer as it is, unless the newest kept state is the same.
    pub(super) async fn keep(&mut self) -> Result<(), DriveError> {
        let Ok(mark) = self.mark() else {
            // What cannot be read cannot be kept; the calls will say why.
            return Ok(());
        };
        if self.session.kept.last().map(|kept| kept.mark) == Some(mark) {
            return Ok(());
        }
        let snapshot = match self.held.snapshot_within(MAX_BYTES) {
            Ok(snapshot) => snapshot.id,
            Err(error) => {
                self.not_kept(&error);
                return Ok(());
            }
        };
        self.record(Fact::Kept(Kept { snapshot, mark })).await?;
        let known = |id: SnapshotId| self.session.kept.iter().any(|kept| kept.snapshot == id);
        for old in self.held.snapshots()? {
            if !known(old.id) {
                // What cannot be removed now is tried again the next time.
                let _ = self.held.forget(old.id);
            }
        }
        Ok(())
    }

    /// Said once: work goes on all the same.
    fn not_kept(&mut self, error: &SnapshotError) {
        if std::mem::replace(&mut self.told_not_kept, true) {
            return;
        }
        let why = match error {
            SnapshotError::Copy(CopyError::TooLarge { .. }) => format!(
                "the layer holds more than {} MiB, with what commands left in it",
                MAX_BYTES >> 20
            ),
            other => super::steps::chain(other),
        };
        let text = format!("changes from here on cannot be undone: {why}");
        self.publish(AgentEvent::Note { text });
    }

    /// Goes back to before the last change.
    pub(super) async fn undo(&mut self) -> Result<Reply, DriveError> {
        if matches!(
            self.session.workflow.state(),
            State::Idle | State::Committing
        ) {
            let text = "nothing is open: what was done is in the project already";
            return Ok(refused(text.to_owned()));
        }
        // What goes back is written by nobody meanwhile.
        self.end_running().await;
        let before = self.course().written(&self.held)?;
        let now = mark_of(&before);
        let last = self.session.kept.iter().rev().find(|kept| kept.mark != now);
        let Some(Kept { snapshot, .. }) = last.copied() else {
            return Ok(refused("no turn has changed anything".to_owned()));
        };
        if !self.held.snapshots()?.iter().any(|one| one.id == snapshot) {
            let text = "what was kept is gone; `fluffy session diff` shows what there is";
            return Ok(refused(text.to_owned()));
        }
        let permit = match self.permit_restore().await? {
            Ok(permit) => permit,
            Err(refusal) => return Ok(refused(refusal.for_people())),
        };
        self.record(Fact::Undone { snapshot }).await?;
        if let Err(why) = self.restore(permit, snapshot).await? {
            return Ok(refused(why));
        }
        let after = self.course().written(&self.held)?;
        let state = self.session.workflow.state();
        let text = format!(
            "taken back: {}; the state is {state}",
            differing(&before, &after)
        );
        Ok(done(text))
    }

    /// Ends an undo that a crash interrupted.
    pub(super) async fn finish_undo(&mut self) -> Result<(), DriveError> {
        let Some(snapshot) = self.session.undoing else {
            return Ok(());
        };
        let restored = match self.permit_restore().await? {
            Ok(permit) => self.restore(permit, snapshot).await?,
            Err(refusal) => Err(refusal.for_people()),
        };
        if let Err(why) = restored {
            let text = format!("the last undo could not be ended: {why}");
            self.publish(AgentEvent::Note { text });
        }
        Ok(())
    }

    /// The work goes on from what the layer holds now.
    pub(super) async fn revise(&mut self) -> Result<(), DriveError> {
        let layout = crate::course::survey(&self.held.view()?, &self.ground.overrides)?;
        self.layout = std::sync::Arc::new(layout);
        let texts = Texts::of(&self.course().written(&self.held)?);
        let changes = texts.changes(&self.layout);
        // Out of place only where there is nothing to go back to.
        let _ = self.step(Input::Revise { changes }).await?;
        Ok(())
    }

    async fn restore(
        &mut self,
        permit: Permit,
        snapshot: SnapshotId,
    ) -> Result<Result<(), String>, DriveError> {
        let restored = self.held.restore(permit, snapshot);
        // Whether or not it worked: evidence is for what the layer holds.
        self.revise().await?;
        Ok(restored.map_err(|error| super::steps::chain(&error)))
    }

    async fn permit_restore(&self) -> Result<Result<Permit, Box<Refusal>>, DriveError> {
        let need = Need {
            action: fluffy_layer::permit::RESTORE.to_owned(),
            resource: Some(self.held.layer().id().to_string()),
        };
        let course = self.course();
        let router = self.router(&course);
        match router.permit(&self.ground.desk, "undo", &need).await {
            Ok(permit) => Ok(Ok(permit)),
            Err(RouteError::Refused(refusal)) => Ok(Err(refusal)),
            Err(RouteError::NotRecorded(error)) => Err(DriveError::Route(error)),
        }
    }

    fn mark(&self) -> Result<Digest, DriveError> {
        Ok(mark_of(&self.course().written(&self.held)?))
    }
}

/// What a layer changes, as one digest.
pub(super) fn mark_of(written: &[Written]) -> Digest {
    let line = |one: &Written| match &one.after {
        Some(bytes) => format!("{}\0{}\n", one.path, Digest::of(bytes)),
        None => format!("{}\0\n", one.path),
    };
    let lines: String = written.iter().map(line).collect();
    Digest::of(lines.as_bytes())
}

/// The files that are not the same, a few of them by name.
fn differing(before: &[Written], after: &[Written]) -> String {
    let by_path = |written: &[Written]| -> BTreeMap<String, Option<Vec<u8>>> {
        let entries = written.iter();
        entries
            .map(|one| (one.path.to_string(), one.after.clone()))
            .collect()
    };
    let (before, after) = (by_path(before), by_path(after));
    let paths: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let differ = |path: &&&String| before.get(**path) != after.get(**path);
    let paths: Vec<&String> = paths.iter().filter(differ).copied().collect();
    let named: Vec<String> = paths
        .iter()
        .take(NAMED)
        .map(|path| format!("`{path}`"))
        .collect();
    match paths.len().saturating_sub(NAMED) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}
