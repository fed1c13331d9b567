//! Tells a node how the registry of an instance's image is reached.
//!
//! Only for an instance that the node has, and with credentials only once that
//! is on record. What is told is read for this answer and kept nowhere.

use fluffy_api::node::{refusal, v1};
use fluffy_base::id::NodeId;
use fluffy_image::{Access, ImageSource, Manner, Place, Proof, Registries};
use tokio::task::spawn_blocking;
use tonic::{Code, Status};

use super::service::{Shared, of_desk};

/// How an image's registry is reached; nothing to say about one of files.
pub(super) async fn access(
    shared: &Shared,
    node: NodeId,
    request: v1::RegistryAccessRequest,
) -> Result<v1::RegistryAccess, Status> {
    let Some(image) = shared.desk.image_of(node, &request) else {
        let asked = shared.desk.registry(node, request, String::new()).await;
        asked.map_err(of_desk)?;
        // It became this node's own meanwhile.
        return Err(unavailable());
    };
    let Ok(ImageSource::Registry(reference)) = image.parse() else {
        return Ok(v1::RegistryAccess::default());
    };
    let registries = shared.registries.get().cloned().unwrap_or_default();
    let host = reference.registry().to_owned();
    let read = move || Registries::access(&registries, &reference);
    let read = spawn_blocking(read).await.map_err(|_| unavailable())?;
    let access = read.map_err(|error| {
        tracing::error!(
            error = &error as &dyn std::error::Error,
            "a node is not told how a registry is reached"
        );
        unavailable()
    })?;
    if access.has_credential() {
        let asked = shared.desk.registry(node, request, host).await;
        asked.map_err(of_desk)?;
    }
    Ok(told(&access))
}

fn unavailable() -> Status {
    let words = "how the registry is reached cannot be said now; try again";
    refusal(Code::Unavailable, "unavailable", words)
}

fn told(access: &Access) -> v1::RegistryAccess {
    v1::RegistryAccess {
        registry: Some(place(&access.registry)),
        mirrors: access.mirrors.iter().map(place).collect(),
        authorities: access.authorities.clone(),
    }
}

fn place(place: &Place) -> v1::RegistryPlace {
    let manner = match place.manner {
        Manner::Public => v1::RegistryManner::Unspecified,
        Manner::Internal => v1::RegistryManner::Internal,
        Manner::Clear => v1::RegistryManner::Clear,
    };
    let credential = place.credential.as_ref().map(|it| {
        let mut told = v1::RegistryCredential {
            realm: it.realm.clone().unwrap_or_default(),
            ..Default::default()
        };
        match &it.proof {
            Proof::Password { user, password } => {
                told.user.clone_from(user);
                told.password.clone_from(password.expose());
            }
            Proof::Identity(token) => told.identity_token.clone_from(token.expose()),
        }
        told
    });
    v1::RegistryPlace {
        host: place.host.clone(),
        manner: manner.into(),
        credential,
    }
}
