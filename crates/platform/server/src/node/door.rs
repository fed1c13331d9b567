//! The door for nodes: the cluster's authority, the desk, and who serves them.
//!
//! The authority is kept beside the ledger, sealed by the master key; the first
//! replica that needs one makes it. Next: `service`, `control`.

use std::sync::Arc;
use std::time::Duration;

use fluffy_api::node::dial;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::ca::{Authority, AuthorityError, ReadAuthorityError};
use super::control::{ControlDesk, LocalEdge};
use super::service::{NodeServer, NodeServerError};
use crate::aside::{AsideError, Kind};
use crate::platform::Platform;
use crate::safe::{Safe, SafeError};

/// The authority, sealed.
pub(crate) const AUTHORITY: Kind = Kind::new("authority");

/// There is one.
const KEY: &str = "cluster";

/// What its seal is for.
pub(crate) const PURPOSE: &str = "fluffy-authority-v1";

/// How often it is looked at whether the authority is to be renewed.
const RENEWAL: Duration = Duration::from_secs(3600);

/// Everything that nodes need of a replica; to be cloned freely.
#[derive(Debug, Clone)]
pub struct NodeDoor {
    platform: Platform,
    safe: Safe,
    server: NodeServer,
    desk: Arc<ControlDesk>,
}

/// Why nodes cannot be let in.
#[derive(Debug, thiserror::Error)]
pub enum OpenNodeDoorError {
    /// The keys of the authority cannot be opened.
    #[error("the keys of the cluster's authority can't be opened")]
    Sealed(#[from] SafeError),
    /// The store beside the ledger failed.
    #[error("the cluster's authority can't be looked up")]
    Aside(#[from] AsideError),
    /// There is no randomness for its keys.
    #[error("the cluster's authority can't be made")]
    Make(#[from] AuthorityError),
    /// What is kept is something else.
    #[error("the cluster's authority can't be read")]
    Read(#[from] ReadAuthorityError),
    /// The server's own certificate cannot be made or used.
    #[error("nodes can't be served")]
    Serve(#[from] NodeServerError),
}

impl NodeDoor {
    /// Opens the door under these names and addresses of the server.
    ///
    /// # Errors
    /// See [`OpenNodeDoorError`]; nodes wait, and all else goes on.
    pub async fn open(
        platform: &Platform,
        safe: &Safe,
        names: &[String],
    ) -> Result<Self, OpenNodeDoorError> {
        let authority = authority(platform, safe).await?;
        let desk = ControlDesk::new(platform.clone(), safe.clone());
        let clock = Arc::clone(platform.clock());
        let asked = Arc::clone(&desk);
        let server = NodeServer::new(asked, clock, authority, names)?;
        Ok(Self {
            platform: platform.clone(),
            safe: safe.clone(),
            server,
            desk,
        })
    }

    /// Opens the door with a certificate of before, while the keys of the
    /// authority can't be opened.
    ///
    /// # Errors
    /// The certificate can't be used.
    pub fn open_sealed(
        platform: &Platform,
        safe: &Safe,
        own: dial::Identity,
        names: &[String],
    ) -> Result<Self, OpenNodeDoorError> {
        let desk = ControlDesk::new(platform.clone(), safe.clone());
        let clock = Arc::clone(platform.clock());
        let (asked, cluster) = (Arc::clone(&desk), platform.ledger().id());
        let server = NodeServer::sealed(asked, clock, cluster, own, names)?;
        Ok(Self {
            platform: platform.clone(),
            safe: safe.clone(),
            server,
            desk,
        })
    }

    /// Goes on with the authority, whose keys can be opened again.
    ///
    /// # Errors
    /// As [`NodeDoor::open`].
    pub async fn unseal(&self) -> Result<(), OpenNodeDoorError> {
        let authority = authority(&self.platform, &self.safe).await?;
        Ok(self.server.renew(authority)?)
    }

    /// A certificate of this server, for others than nodes.
    ///
    /// # Errors
    /// As [`NodeDoor::open`].
    pub async fn identity(&self, names: &[String]) -> Result<dial::Identity, OpenNodeDoorError> {
        let authority = authority(&self.platform, &self.safe).await?;
        Ok(authority.server(names, self.platform.clock().now())?)
    }

    /// Who serves nodes, opens exec sessions and has their logs.
    #[must_use]
    pub fn server(&self) -> &NodeServer {
        &self.server
    }

    /// A place for the edge of this process.
    #[must_use]
    pub fn seat(&self) -> LocalEdge {
        self.desk.seat()
    }

    /// Serves nodes until the replica ends.
    pub async fn run(self, listener: TcpListener, mut stop: watch::Receiver<bool>) {
        tokio::select! {
            () = self.server.serve(listener) => {}
            () = self.desk.run() => {}
            () = self.renew() => {}
            _ = stop.wait_for(|stop| *stop) => {}
        }
    }

    /// Keeps the authority young.
    async fn renew(&self) {
        loop {
            tokio::time::sleep(RENEWAL).await;
            let renewed = match authority(&self.platform, &self.safe).await {
                Ok(authority) => self.server.renew(authority).map_err(Into::into),
                Err(error) => Err(error),
            };
            if let Err(error) = renewed {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "certificates could not be renewed"
                );
            }
        }
    }
}

/// Has the cluster's authority sealed by the active master key.
///
/// # Errors
/// Its key is not at hand, or the store fails; it is as before.
pub(crate) async fn rewrap(platform: &Platform, safe: &Safe) -> Result<(), OpenNodeDoorError> {
    authority(platform, safe).await.map(drop)
}

/// The cluster's authority as it is kept, made if there is none, renewed if it
/// is time, and sealed again if there is a newer master key.
async fn authority(platform: &Platform, safe: &Safe) -> Result<Authority, OpenNodeDoorError> {
    let (aside, now) = (platform.aside(), platform.clock().now());
    let kept = match aside.get(AUTHORITY, KEY).await? {
        Some(entry) => entry.value,
        None => {
            let new = Authority::found(platform.ledger().id(), now)?;
            let sealed = safe.seal(PURPOSE, &new.to_bytes())?;
            if aside.put_new(AUTHORITY, KEY, sealed, None).await? {
                return Ok(new);
            }
            // Another replica was first.
            let entry = aside.get(AUTHORITY, KEY).await?;
            entry.ok_or(ReadAuthorityError)?.value
        }
    };
    let mut authority = Authority::from_bytes(&safe.unseal(PURPOSE, &kept)?)?;
    if authority.renew(now)? || !safe.is_current(&kept) {
        let sealed = safe.seal(PURPOSE, &authority.to_bytes())?;
        aside.put(AUTHORITY, KEY, sealed, None).await?;
    }
    Ok(authority)
}
