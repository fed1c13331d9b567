//! Sends a node a blob of an image that was deployed from files.
//!
//! Reads only from the shelf, by digest, and no faster than the node does.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use fluffy_api::node::{refusal, v1};
use fluffy_base::Digest;
use tokio::task::spawn_blocking;
use tonic::{Code, Status};

use super::service::Shared;
use super::session::wrong;
use super::stream::Inlet;

/// The most bytes of one message.
const PIECE: usize = 64 << 10;

/// Sends it, or says why not.
pub(super) async fn send(
    shared: Arc<Shared>,
    request: v1::BlobRequest,
    told: Inlet<v1::BlobPiece>,
) {
    if let Err(why) = sent(&shared, &request, &told).await {
        told.end(why).await;
    }
}

async fn sent(
    shared: &Shared,
    request: &v1::BlobRequest,
    told: &Inlet<v1::BlobPiece>,
) -> Result<(), Status> {
    let digest = request.digest.strip_prefix("sha256:");
    let digest: Option<Digest> = digest.and_then(|hex| hex.parse().ok());
    let digest = digest.ok_or_else(|| wrong("a blob is named by its digest"))?;
    let none = || {
        let words = "the server has no such blob; deploy the image again";
        refusal(Code::NotFound, "not_found", words)
    };
    let shelf = shared.shelf.get().ok_or_else(none)?;
    let shelf = Arc::clone(shelf);
    let file = blocking(move || shelf.open_blob(digest)).await?;
    let mut file = file.ok_or_else(none)?;
    let mut at = request.from;
    loop {
        let (back, bytes) = blocking(move || read(file, at)).await?;
        file = back;
        if bytes.is_empty() {
            return Ok(());
        }
        at = at.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        told.say(v1::BlobPiece { bytes }).await?;
    }
}

fn read(file: File, at: u64) -> io::Result<(File, Vec<u8>)> {
    let mut bytes = vec![0; PIECE];
    let read = file.read_at(&mut bytes, at)?;
    bytes.truncate(read);
    Ok((file, bytes))
}

/// Reads where that keeps nobody else waiting.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Status> {
    let unavailable = || {
        let words = "the blob cannot be read now; try again";
        refusal(Code::Unavailable, "unavailable", words)
    };
    let done = spawn_blocking(work).await.map_err(|_| unavailable())?;
    done.map_err(|_| unavailable())
}
