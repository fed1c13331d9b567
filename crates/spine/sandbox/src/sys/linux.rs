//! Linux: namespaces, mounts, privileges.
//!
//! Each file carries out a part of a plan and decides nothing.

pub(crate) mod call;
pub(crate) mod mounts;
pub(crate) mod privileges;
