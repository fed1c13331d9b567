//! Taking hold of the layer of a session that goes on.

use std::time::Instant;

use fluffy_base::id::LayerId;
use fluffy_ipc::{ErrorCode, Failure as Refused};
use fluffy_layer::{FindLayerError, HeldLayer, HoldLayerError};

use super::{AGAIN, ENDING, Maker, internal};

impl Maker {
    /// A layer, if it is still there.
    pub(super) fn hold(&self, layer: LayerId) -> Result<Option<HeldLayer>, Refused> {
        self.try_hold(layer)?.map_or(Ok(None), held)
    }

    /// The same once it is free: the kernel that had it may still be ending,
    /// after its launcher or itself was killed.
    pub(super) async fn hold_when_free(
        &self,
        layer: LayerId,
    ) -> Result<Option<HeldLayer>, Refused> {
        let begun = Instant::now();
        loop {
            match self.try_hold(layer)? {
                None => return Ok(None),
                Some(Err(HoldLayerError::Busy { .. })) if begun.elapsed() < ENDING => {
                    tokio::time::sleep(AGAIN).await;
                }
                Some(tried) => return held(tried),
            }
        }
    }

    /// A layer of this project, or why it cannot be had now; nothing if there
    /// is none.
    fn try_hold(
        &self,
        layer: LayerId,
    ) -> Result<Option<Result<HeldLayer, HoldLayerError>>, Refused> {
        let found = match self.layers.find(&layer.to_string()) {
            Ok(found) => found,
            Err(FindLayerError::None { .. }) => return Ok(None),
            Err(error) => return Err(internal(&error)),
        };
        if found.project() != self.project {
            let why = format!("it belongs to the project `{}`", found.project().display());
            return Err(Refused::new(ErrorCode::Conflict, why));
        }
        Ok(Some(found.hold()))
    }
}

/// What became of it; a layer that was merged or dropped is none.
fn held(tried: Result<HeldLayer, HoldLayerError>) -> Result<Option<HeldLayer>, Refused> {
    match tried {
        Ok(held) => Ok(Some(held)),
        Err(HoldLayerError::Retired { .. } | HoldLayerError::Gone { .. }) => Ok(None),
        Err(error) => {
            let why = fluffy_kernel::agent::explain(&error);
            Err(Refused::new(ErrorCode::Conflict, why))
        }
    }
}
