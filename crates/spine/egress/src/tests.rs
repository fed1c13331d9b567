//! The whole proxy against real sockets, with and without its guards.
//!
//! Public addresses lead to servers on this machine through `Names`, which
//! only these tests have. `carrying` is about what works, `limits` about what
//! ends it, `attacks` about what must not work, each with a control in which
//! one guard is missing and the same attack does work. Start in `support`.

mod attacks;
mod carrying;
mod limits;
mod names;
mod support;
