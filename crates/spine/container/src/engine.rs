//! Talks to Docker or Podman: the few calls that sandboxes need.
//!
//! Works with everything from API 1.40 on, which Podman speaks too. Decides
//! nothing, and never follows a name it did not make: containers are removed by
//! the id the engine gave. Next: `shape` says what a container is.

mod words;

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::errors::Error as ApiError;
use bollard::models::{ContainerCreateBody, VolumeCreateRequest};
use bollard::query_parameters::{
    CreateContainerOptions, CreateImageOptions, ListContainersOptions, ListVolumesOptions,
    RemoveContainerOptions, RemoveVolumeOptions, StatsOptions,
};
use bollard::{API_DEFAULT_VERSION, ClientVersion, Docker, body_full};
use fluffy_contract::isolation::Stats;
use fluffy_sandbox::protocol::{Failure, FailureKind};
use futures_util::StreamExt;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use self::words::{PlainInspection, figures, is_status, ownership, said, understood, with_tag};

/// How long the engine may take for one call.
const CALL_LIMIT: u64 = 60;

/// How often a removal that failed is tried again.
const REMOVALS: u32 = 10;

/// How long before the next attempt, times the attempts so far.
const REMOVAL_PAUSE: Duration = Duration::from_millis(10);

/// Which program answers; they differ in small things.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Brand {
    /// Docker, or what calls itself nothing else.
    Docker,
    /// Podman.
    Podman,
}

/// Who the engine's containers are on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ownership {
    /// Users inside are the host's users of the same number.
    Shared,
    /// The user nought inside is whoever runs the engine.
    Rootless,
    /// All users inside are others outside.
    Remapped,
}

/// A connection to an engine.
#[derive(Debug, Clone)]
pub(crate) struct Engine {
    api: Docker,
    socket: PathBuf,
    brand: Brand,
    version: String,
    ownership: Ownership,
}

/// A container or a volume as it is listed.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Listed {
    /// The engine's id or name.
    #[serde(rename = "Id")]
    pub(crate) id: String,
    /// Its labels.
    #[serde(rename = "Labels", default)]
    pub(crate) labels: HashMap<String, String>,
}

/// What came of a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Removal {
    /// It was there and is not any more.
    Done,
    /// It was not there. Docker sometimes lists what is long gone.
    Needless,
}

/// A container as it runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Condition {
    /// Its first process, in the host's numbers, while it runs.
    pub(crate) process: Option<i32>,
    /// Whether the kernel ended a process of it for want of memory.
    pub(crate) out_of_memory: bool,
}

/// Why the engine did not do something.
#[derive(Debug, thiserror::Error)]
#[error("the engine at `{}` could not {operation}", socket.display())]
pub(crate) struct EngineError {
    /// Where it listens.
    pub(crate) socket: PathBuf,
    /// What it was asked to do.
    pub(crate) operation: &'static str,
    /// What it said.
    #[source]
    pub(crate) source: Box<ApiError>,
}

impl Engine {
    /// Connects and finds out what the engine is.
    ///
    /// # Errors
    /// Nobody answers, or not in the engine's words.
    pub(crate) async fn connect(socket: &Path) -> Result<Self, EngineError> {
        let wrap = |operation| {
            let socket = socket.to_owned();
            move |source| EngineError {
                socket,
                operation,
                source: Box::new(source),
            }
        };
        let address = socket.to_string_lossy();
        let connect = |version: &ClientVersion| {
            Docker::connect_with_unix(&address, CALL_LIMIT, version).map_err(wrap("answer"))
        };
        let newest = connect(API_DEFAULT_VERSION)?;
        let version = newest.version().await.map_err(wrap("tell its version"))?;
        let components = version.components.unwrap_or_default();
        let podman = components.iter().any(|part| part.name.contains("Podman"));
        let api = connect(&understood(version.api_version.as_deref()))?;
        let ownership = if podman {
            // Its socket is its user's own; asking it takes a second.
            match std::fs::metadata(socket).map_or(0, |socket| socket.uid()) {
                0 => Ownership::Shared,
                _ => Ownership::Rootless,
            }
        } else {
            let info = api.info().await.map_err(wrap("tell about itself"))?;
            ownership(&info.security_options.unwrap_or_default())
        };
        Ok(Self {
            api,
            socket: socket.to_owned(),
            brand: if podman { Brand::Podman } else { Brand::Docker },
            version: version.version.unwrap_or_default(),
            ownership,
        })
    }

    /// Which program it is.
    pub(crate) fn brand(&self) -> Brand {
        self.brand
    }

    /// Its own version.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// Who its containers are on the host.
    pub(crate) fn ownership(&self) -> Ownership {
        self.ownership
    }

    /// Whether it has an image, so that nothing must be fetched.
    ///
    /// # Errors
    /// The engine failed.
    pub(crate) async fn has_image(&self, name: &str) -> Result<bool, EngineError> {
        match self.api.inspect_image(name).await {
            Ok(_) => Ok(true),
            Err(error) if is_status(&error, 404) => Ok(false),
            Err(error) => Err(self.error("look for an image", error)),
        }
    }

    /// Makes an image of this name from an archive of its files.
    ///
    /// # Errors
    /// The engine failed.
    pub(crate) async fn import_image(
        &self,
        name: &str,
        archive: Vec<u8>,
    ) -> Result<(), EngineError> {
        let options = CreateImageOptions {
            from_src: Some("-".to_owned()),
            repo: Some(name.to_owned()),
            ..CreateImageOptions::default()
        };
        let body = body_full(archive.into());
        let mut progress = self.api.create_image(Some(options), Some(body), None);
        while let Some(step) = progress.next().await {
            step.map_err(|error| self.error("make an image", error))?;
        }
        Ok(())
    }

    /// Fetches an image, telling each step.
    ///
    /// # Errors
    /// The registry or the engine failed.
    pub(crate) async fn pull_image(
        &self,
        name: &str,
        mut tell: impl FnMut(String),
    ) -> Result<(), EngineError> {
        let options = CreateImageOptions {
            from_image: Some(with_tag(name)),
            ..CreateImageOptions::default()
        };
        let mut progress = self.api.create_image(Some(options), None, None);
        while let Some(step) = progress.next().await {
            let step = step.map_err(|error| self.error("fetch an image", error))?;
            let amount = step
                .progress_detail
                .and_then(|detail| Some((detail.current?, detail.total?)))
                .filter(|(_, total)| *total > 0)
                .map(|(current, total)| format!(" {} %", current.saturating_mul(100) / total));
            let words = [step.id, step.status].into_iter().flatten();
            let words: Vec<String> = words.collect();
            tell(format!("{}{}", words.join(" "), amount.unwrap_or_default()));
        }
        Ok(())
    }

    /// Makes a container; the engine's id for it.
    ///
    /// # Errors
    /// The engine failed or refused.
    pub(crate) async fn create(
        &self,
        name: &str,
        body: ContainerCreateBody,
    ) -> Result<String, EngineError> {
        let options = CreateContainerOptions {
            name: Some(name.to_owned()),
            ..CreateContainerOptions::default()
        };
        let created = self.api.create_container(Some(options), body).await;
        created
            .map(|created| created.id)
            .map_err(|error| self.error("create a container", error))
    }

    /// Starts a container.
    ///
    /// # Errors
    /// The engine failed.
    pub(crate) async fn start(&self, id: &str) -> Result<(), EngineError> {
        let started = self.api.start_container(id, None).await;
        started.map_err(|error| self.error("start a container", error))
    }

    /// How a container is now.
    ///
    /// # Errors
    /// The engine failed, or there is no such container.
    pub(crate) async fn inspect(&self, id: &str) -> Result<Condition, EngineError> {
        let (pid, out_of_memory) = match self.api.inspect_container(id, None).await {
            Ok(found) => {
                let state = found.state.unwrap_or_default();
                (state.pid, state.oom_killed)
            }
            Err(error) => {
                let operation = "look at a container";
                let plain: PlainInspection = self.reread(error, operation)?;
                (Some(plain.state.pid), Some(plain.state.out_of_memory))
            }
        };
        let pid = pid.and_then(|pid| i32::try_from(pid).ok());
        Ok(Condition {
            process: pid.filter(|pid| *pid > 0),
            out_of_memory: out_of_memory.unwrap_or(false),
        })
    }

    /// Stops all processes of a container where they are.
    ///
    /// # Errors
    /// The engine failed. That it is paused already is no failure.
    pub(crate) async fn pause(&self, id: &str) -> Result<(), EngineError> {
        let paused = self.api.pause_container(id).await;
        self.unless_already(paused, "pause a container")
    }

    /// Lets them go on.
    ///
    /// # Errors
    /// The engine failed. That it is not paused is no failure.
    pub(crate) async fn resume(&self, id: &str) -> Result<(), EngineError> {
        let resumed = self.api.unpause_container(id).await;
        self.unless_already(resumed, "resume a container")
    }

    /// What a container uses.
    ///
    /// # Errors
    /// The engine failed.
    pub(crate) async fn stats(&self, id: &str) -> Result<Stats, EngineError> {
        let options = StatsOptions {
            stream: false,
            // Docker would otherwise wait a second for a second measurement.
            one_shot: self.brand == Brand::Docker,
        };
        let mut stream = self.api.stats(id, Some(options));
        match stream.next().await {
            Some(Ok(stats)) => Ok(figures(&stats)),
            Some(Err(error)) => Err(self.error("measure a container", error)),
            None => Ok(Stats::default()),
        }
    }

    /// Ends and removes a container with everything in it.
    ///
    /// # Errors
    /// The engine failed. That it is gone already is no failure.
    pub(crate) async fn remove(&self, id: &str) -> Result<Removal, EngineError> {
        let options = RemoveContainerOptions {
            force: true,
            v: true,
            link: false,
        };
        let mut attempts = 0;
        loop {
            match self.api.remove_container(id, Some(options.clone())).await {
                Ok(()) => return Ok(Removal::Done),
                // Gone, or somebody is removing it this moment.
                Err(error) if is_status(&error, 404) || is_status(&error, 409) => {
                    return Ok(Removal::Needless);
                }
                // Podman fails when a container ends while it is removed.
                Err(error) if is_status(&error, 500) && attempts < REMOVALS => {
                    attempts += 1;
                    tokio::time::sleep(REMOVAL_PAUSE * attempts).await;
                }
                Err(error) => return Err(self.error("remove a container", error)),
            }
        }
    }

    /// All containers, also stopped ones, that have this label.
    ///
    /// # Errors
    /// The engine failed.
    pub(crate) async fn list(&self, label: &str) -> Result<Vec<Listed>, EngineError> {
        let options = ListContainersOptions {
            all: true,
            filters: Some(HashMap::from([(
                "label".to_owned(),
                vec![label.to_owned()],
            )])),
            ..ListContainersOptions::default()
        };
        match self.api.list_containers(Some(options)).await {
            Ok(listed) => Ok(listed
                .into_iter()
                .filter_map(|container| {
                    Some(Listed {
                        id: container.id?,
                        labels: container.labels.unwrap_or_default(),
                    })
                })
                .collect()),
            Err(error) => self.reread(error, "list its containers"),
        }
    }

    /// Reads an answer once more that the library does not understand: Podman
    /// has states of its own, such as `stopped`.
    fn reread<T: DeserializeOwned>(
        &self,
        error: ApiError,
        operation: &'static str,
    ) -> Result<T, EngineError> {
        if let ApiError::JsonDataError { contents, .. } = &error
            && let Ok(read) = serde_json::from_str(contents)
        {
            return Ok(read);
        }
        Err(self.error(operation, error))
    }

    /// Makes a volume.
    ///
    /// # Errors
    /// The engine failed.
    pub(crate) async fn create_volume(
        &self,
        request: VolumeCreateRequest,
    ) -> Result<(), EngineError> {
        let made = self.api.create_volume(request).await;
        made.map(drop)
            .map_err(|error| self.error("make a volume", error))
    }

    /// Removes a volume.
    ///
    /// # Errors
    /// The engine failed. That there is none is no failure.
    pub(crate) async fn remove_volume(&self, name: &str) -> Result<(), EngineError> {
        let options = RemoveVolumeOptions { force: true };
        match self.api.remove_volume(name, Some(options)).await {
            Err(error) if !is_status(&error, 404) => Err(self.error("remove a volume", error)),
            _ => Ok(()),
        }
    }

    /// All volumes that have this label: names and labels.
    ///
    /// # Errors
    /// The engine failed.
    pub(crate) async fn list_volumes(&self, label: &str) -> Result<Vec<Listed>, EngineError> {
        let options = ListVolumesOptions {
            filters: Some(HashMap::from([(
                "label".to_owned(),
                vec![label.to_owned()],
            )])),
        };
        let listed = self.api.list_volumes(Some(options)).await;
        let listed = listed.map_err(|error| self.error("list its volumes", error))?;
        let volumes = listed.volumes.unwrap_or_default().into_iter();
        Ok(volumes
            .map(|volume| Listed {
                id: volume.name,
                labels: volume.labels,
            })
            .collect())
    }

    fn unless_already(
        &self,
        result: Result<(), ApiError>,
        operation: &'static str,
    ) -> Result<(), EngineError> {
        match result {
            Ok(()) => Ok(()),
            // Docker answers 409 and Podman 500 or 409 for a state it is in.
            Err(ApiError::DockerResponseServerError {
                status_code: 409 | 500,
                message,
            }) if message.contains("already paused") || message.contains("not paused") => Ok(()),
            Err(error) => Err(self.error(operation, error)),
        }
    }

    fn error(&self, operation: &'static str, source: ApiError) -> EngineError {
        EngineError {
            socket: self.socket.clone(),
            operation,
            source: Box::new(source),
        }
    }
}

impl EngineError {
    /// Whether something that it needs is not there.
    pub(crate) fn is_missing(&self) -> bool {
        is_status(&self.source, 404)
    }

    /// The same for people.
    pub(crate) fn failure(&self) -> Failure {
        let missing = self.is_missing();
        Failure {
            kind: match missing {
                true => FailureKind::Ended,
                false => FailureKind::System,
            },
            what: self.to_string(),
            why: said(&self.source),
            fix: None,
        }
    }
}
