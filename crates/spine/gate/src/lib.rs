//! The one door: loads policies, decides, records, and hands out permits.
//!
//! [`Gate::authorize`] is the way from a request to an effect: the pure engine
//! decides, the ledger remembers, and only then there is a permit. A decision
//! that cannot be recorded is a refusal.
//!
//! - [`bundle`]: a project's rules and extensions as one thing
//! - [`pin`]: the reviewed copy, which is the only one that counts
//! - [`load`]: the layers of a policy, compiled
//! - [`gate`]: decide and record
//! - [`desk`]: one principal's questions and their answers
//! - [`update`]: try a new policy against history and put it in force
//! - [`watch`]: hot reload
//!
//! Nothing here decides by itself; rules belong to `fluffy-policy`.

pub mod bundle;
pub mod desk;
pub mod gate;
pub mod load;
pub mod pin;
pub mod update;
pub mod watch;

pub use bundle::{Bundle, ReadBundleError};
pub use desk::{Answer, Desk};
pub use gate::{ApproveError, Approved, AuthorizeError, Gate, Granted};
pub use load::{LoadPolicyError, LoadedPolicy, PolicyPlaces};
pub use pin::{PinStore, ReadPinError, WritePinError};
pub use update::{Proposal, ProposeError, UpdateError};
pub use watch::Watch;
