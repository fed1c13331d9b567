//! Single cases: a state, some seconds, and what must have become of it.

mod deploys;
mod desk;
mod nodes;
mod shares;
