//! Writes that are repeated at a server which hashes them another way.
//!
//! What is kept of a request is a hash that takes the master keys, so that
//! nobody guesses from it what was sent; a sealed server, which takes no
//! secrets in, keeps the plain one. Both are of the same request. Without the
//! keys nobody can tell one from another request, and nobody is told to send it
//! with a new key: it would be done twice. Next: `http::repeat`.

use fluffy_base::Digest;
use fluffy_control::{Outcome, Refusal};

use super::Control;
use crate::http::Asked;
use crate::machine::{Job, Reply};
use crate::sequencer::Answer;

/// That a key came with another request before.
const REUSE: &str = "idempotency_key_reuse";

impl Control {
    /// The hash of a request as it is kept; none while sealed.
    pub(super) fn print(&self, request: Digest) -> Option<Digest> {
        let safe = self.workshop.safe();
        safe.fingerprint("request", request.as_bytes())
    }

    /// Whether what is kept is of this request; none if it can't be told.
    pub(super) fn is_kept_of(&self, kept: Digest, request: Digest) -> Option<bool> {
        match kept == request {
            true => Some(true),
            false => Some(kept == self.print(request)?),
        }
    }

    /// Has a write decided, by the hash of a sealed server as well.
    pub(super) async fn submit_write(
        &self,
        asked: &Asked,
        job: Job,
    ) -> Result<Answer<Reply>, Refusal> {
        let mut plain = job.clone();
        let answer = self.submit(job).await?;
        let is_reuse = matches!(
            &answer.reply,
            Reply::Wrote(Outcome::Refused(refusal)) if refusal.code == REUSE
        );
        let (true, Some((_, hash))) = (is_reuse, &mut plain.idempotency) else {
            return Ok(answer);
        };
        if self.workshop.safe().is_sealed() {
            return Err(untold());
        }
        // At the same time of the clock the key is still in use: this is
        // either the repeat or refused again, and never done anew.
        *hash = asked.hash();
        self.submit(plain).await
    }
}

/// That it can't be told whether a request is the same.
pub(super) fn untold() -> Refusal {
    Refusal::new(
        "secrets_key_unavailable",
        "this key was used before, and without the master keys it can't be told whether for this \
         request",
        "send it again, with the same key, when the master keys are at hand",
    )
}
