//! Sandboxes that wait: everything is made but the project's mount.
//!
//! A waiting sandbox serves one call and is destroyed. It is made for one
//! template and project, holds no layer, and has run nothing.

use std::collections::VecDeque;
use std::sync::Arc;

use fluffy_contract::isolation::{SandboxError, SandboxSpec};
use fluffy_policy::Permit;
use tokio::sync::Mutex;

use super::{LauncherHandle, SandboxHandle};
use crate::protocol::{Ask, Warm};

/// What a pool keeps.
#[derive(Debug, Clone)]
pub struct PoolSettings {
    /// What the sandboxes are made from, without a layer.
    pub spec: SandboxSpec,
    /// How many wait.
    pub size: usize,
}

/// Waiting sandboxes of one kind.
#[derive(Debug, Clone)]
pub struct Pool {
    launcher: LauncherHandle,
    settings: PoolSettings,
    waiting: Arc<Mutex<VecDeque<SandboxHandle>>>,
    /// Whoever fills: two at once would make one too many.
    filling: Arc<Mutex<()>>,
}

impl Pool {
    /// An empty pool; [`Pool::fill`] makes the sandboxes.
    #[must_use]
    pub fn new(launcher: LauncherHandle, mut settings: PoolSettings) -> Self {
        settings.spec.layer = None;
        settings.spec.hidden = Vec::new();
        Self {
            launcher,
            settings,
            waiting: Arc::default(),
            filling: Arc::default(),
        }
    }

    /// How many wait.
    pub async fn waiting(&self) -> usize {
        self.waiting.lock().await.len()
    }

    /// Ends those that wait.
    pub async fn end_waiting(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock().await);
        for sandbox in waiting {
            // When the launcher is gone, the system has ended it.
            let _ = sandbox.clean().await;
        }
    }

    /// Adds one waiting sandbox unless there are enough; the permit is for
    /// `sandbox.create`.
    ///
    /// # Errors
    /// As [`LauncherHandle::create`].
    pub async fn fill(&self, permit: Permit) -> Result<(), SandboxError> {
        let _filling = self.filling.lock().await;
        if self.waiting().await >= self.settings.size {
            return Ok(());
        }
        let spec = self.settings.spec.clone();
        let made = self.launcher.make(permit, spec, Warm::Waiting).await?;
        self.waiting.lock().await.push_back(made);
        Ok(())
    }

    /// A sandbox with this project and layer: a waiting one if there is one,
    /// else a new one. The permit is for `sandbox.create`.
    ///
    /// # Errors
    /// As [`LauncherHandle::create`].
    pub async fn take(
        &self,
        permit: Permit,
        spec: SandboxSpec,
    ) -> Result<SandboxHandle, SandboxError> {
        if !self.fits(&spec) {
            return self.launcher.create(permit, spec).await;
        }
        let Some(sandbox) = self.waiting.lock().await.pop_front() else {
            return self.launcher.create(permit, spec).await;
        };
        let template = spec.template.clone();
        let attach = Ask::Attach {
            sandbox: sandbox.id(),
            spec,
        };
        // Not waited for: its first command is refused unless this was done,
        // and asks for the answer then.
        sandbox.attach_ahead(attach)?;
        self.launcher
            .shared
            .journal
            .attached(&permit, sandbox.id(), &template);
        Ok(sandbox)
    }

    /// Whether a waiting sandbox can become this.
    fn fits(&self, spec: &SandboxSpec) -> bool {
        let comparable = SandboxSpec {
            layer: None,
            writable: Vec::new(),
            protected: Vec::new(),
            hidden: Vec::new(),
            ..spec.clone()
        };
        comparable == self.settings.spec
    }
}
