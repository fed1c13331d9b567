//! The layers of a policy, read from where they live and compiled.
//!
//! Organisation and user files are trusted to be there; the project's counts
//! only as its pinned copy. If one cannot be read or is invalid, nothing is
//! loaded: a policy with a part missing could allow what that part denies.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use fluffy_base::{Clock, Digest, Timestamp};
use fluffy_policy::diagnostic::RefusedText;
use fluffy_policy::extension::{Answer, Extensions};
use fluffy_policy::trial::Side;
use fluffy_policy::{Engine, Request, Sources};
use fluffy_script::{
    ExtensionReport, ExtensionSource, Health, Limits, LoadExtensionsError, ScriptHost,
    WorkerCommand,
};

use crate::bundle::{Bundle, ReadBundleError, read_text};
use crate::pin::{PinStore, ReadPinError};

/// Where the layers of a policy live, and how extensions are run.
#[derive(Debug, Clone)]
pub struct PolicyPlaces {
    /// The organisation's file.
    pub organisation: PathBuf,
    /// The user's own file.
    pub user: PathBuf,
    /// The reviewed copies of this project's policy; none outside a project.
    pub pins: Option<PinStore>,
    /// What starts a worker for an extension.
    pub worker: WorkerCommand,
}

/// Why a policy could not be loaded; what held before still holds.
#[derive(Debug, thiserror::Error)]
pub enum LoadPolicyError {
    /// A file could not be read.
    #[error("a policy file cannot be read")]
    Read(#[from] ReadBundleError),
    /// The pinned copy cannot be trusted.
    #[error("the pinned policy cannot be used")]
    Pin(#[from] ReadPinError),
    /// A file is not a valid policy.
    #[error("`{}` is not a valid policy", path.display())]
    Refused {
        /// Which file.
        path: PathBuf,
        /// Its text, to show the place.
        text: String,
        /// What is wrong.
        #[source]
        refused: Box<RefusedText>,
    },
    /// An extension cannot be used.
    #[error("an extension of the policy cannot be used")]
    Extensions(#[from] LoadExtensionsError),
}

/// A compiled policy with its running extensions.
pub struct LoadedPolicy {
    /// What decides.
    pub engine: Engine,
    /// What this was made from, to notice a change.
    pub(crate) fingerprint: Digest,
    /// The digest of the pinned bundle; none while the starter holds.
    pub pinned: Option<Digest>,
    scripts: Option<ScriptHost>,
}

impl fmt::Debug for LoadedPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("LoadedPolicy");
        shown
            .field("digest", &self.engine.digest())
            .field("pinned", &self.pinned);
        shown.finish_non_exhaustive()
    }
}

/// The texts of all layers, before they mean anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Texts {
    organisation: Option<String>,
    user: Option<String>,
    project: Option<Bundle>,
}

impl Texts {
    pub(crate) fn read(places: &PolicyPlaces) -> Result<Self, LoadPolicyError> {
        let mut texts = Self::read_around(places)?;
        let pinned = places.pins.as_ref().map(PinStore::current).transpose()?;
        texts.project = pinned.flatten();
        Ok(texts)
    }

    /// Every layer but the project's own.
    fn read_around(places: &PolicyPlaces) -> Result<Self, LoadPolicyError> {
        Ok(Self {
            organisation: read_text(&places.organisation)?,
            user: read_text(&places.user)?,
            project: None,
        })
    }

    /// The same layers with another policy of the project.
    pub(crate) fn with_project(self, project: Bundle) -> Self {
        Self {
            project: Some(project),
            ..self
        }
    }

    pub(crate) fn fingerprint(&self) -> Digest {
        let of = |text: &Option<String>| {
            text.as_ref()
                .map_or(Digest([0; 32]), |text| Digest::of(text.as_bytes()))
        };
        let project = self
            .project
            .as_ref()
            .map_or(Digest([0; 32]), Bundle::digest);
        let parts = [of(&self.organisation), of(&self.user), project];
        Digest::of_parts(&parts.each_ref().map(|part| part.as_bytes().as_slice()))
    }
}

impl LoadedPolicy {
    /// Reads and compiles every layer.
    ///
    /// # Errors
    /// Any layer that is unreadable, invalid or not what was reviewed.
    pub fn load(
        places: &PolicyPlaces,
        epoch: u64,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, LoadPolicyError> {
        Self::compile(Texts::read(places)?, places, epoch, clock)
    }

    /// The same layers with another policy of the project, which is not in
    /// force.
    ///
    /// # Errors
    /// As [`LoadedPolicy::load`].
    pub fn with_project(
        places: &PolicyPlaces,
        project: Bundle,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, LoadPolicyError> {
        let texts = Texts::read_around(places)?.with_project(project);
        Self::compile(texts, places, 0, clock)
    }

    /// The policy to replace a pinned copy under that cannot be trusted:
    /// nothing of the project's is allowed, and only a person can go on.
    ///
    /// # Errors
    /// The other layers are unreadable or invalid.
    pub(crate) fn closed(
        places: &PolicyPlaces,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, LoadPolicyError> {
        let nothing = Bundle::of_rules("version: 1\ncapabilities: []\n");
        let closed = Self::with_project(places, nothing, clock)?;
        Ok(Self {
            pinned: None,
            ..closed
        })
    }

    pub(crate) fn compile(
        texts: Texts,
        places: &PolicyPlaces,
        epoch: u64,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, LoadPolicyError> {
        let sources = Sources {
            organisation: texts.organisation.as_deref(),
            user: texts.user.as_deref(),
            project: texts.project.as_ref().map(|bundle| bundle.policy.as_str()),
        };
        let engine =
            Engine::load(&sources, epoch).map_err(|refused| locate(&texts, places, refused))?;
        let extensions: Vec<ExtensionSource> = texts
            .project
            .iter()
            .flat_map(|bundle| &bundle.extensions)
            .map(|(name, source)| ExtensionSource {
                name: name.clone(),
                source: source.clone(),
            })
            .collect();
        let scripts = if extensions.is_empty() {
            None
        } else {
            let (worker, clock) = (places.worker.clone(), Arc::clone(clock));
            Some(ScriptHost::start(
                worker,
                extensions,
                Limits::SPECIFIED,
                clock,
            )?)
        };
        Ok(Self {
            engine,
            fingerprint: texts.fingerprint(),
            pinned: texts.project.as_ref().map(Bundle::digest),
            scripts,
        })
    }

    /// This policy as one side of a trial.
    #[must_use]
    pub fn side(&self) -> Side<'_> {
        Side {
            engine: &self.engine,
            extensions: self,
        }
    }

    /// How each extension is doing.
    #[must_use]
    pub fn extensions(&self) -> Vec<ExtensionReport> {
        self.scripts
            .as_ref()
            .map(ScriptHost::report)
            .unwrap_or_default()
    }

    pub(crate) fn has_disabled(&self) -> bool {
        let disabled = |report: &ExtensionReport| matches!(report.health, Health::Disabled { .. });
        self.extensions().iter().any(disabled)
    }
}

impl Extensions for LoadedPolicy {
    fn ask(&self, request: &Request, now: Timestamp) -> Vec<Answer> {
        self.scripts
            .as_ref()
            .map(|scripts| scripts.ask(request, now))
            .unwrap_or_default()
    }
}

/// Finds the file that a refusal is about.
fn locate(texts: &Texts, places: &PolicyPlaces, refused: RefusedText) -> LoadPolicyError {
    let project = texts.project.as_ref().map(|bundle| bundle.policy.as_str());
    let pinned = || {
        places
            .pins
            .as_ref()
            .map(PinStore::current_file)
            .unwrap_or_default()
    };
    let (path, text) = match refused.file.as_str() {
        "organisation" => (places.organisation.clone(), texts.organisation.as_deref()),
        "user" => (places.user.clone(), texts.user.as_deref()),
        _ => (pinned(), project),
    };
    let (text, refused) = (text.unwrap_or_default().to_owned(), Box::new(refused));
    LoadPolicyError::Refused {
        path,
        text,
        refused,
    }
}
