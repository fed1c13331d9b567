//! What every attempt's file needs, and nothing else.
//!
//! Next: any file of any family; they are all alike.

pub(crate) use crate::attack::{Attack, Family};
pub(crate) use crate::guard::Guard;
pub(crate) use crate::outcome::Outcome;
pub(crate) use crate::stage::Stage;
