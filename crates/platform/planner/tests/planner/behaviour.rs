//! Single cases: a state, some seconds, and what must have become of it.

mod deploys;
mod desk;
mod isolation;
mod nodes;
mod shares;
