//! One plan that the tests of several modules change to their needs.

use fluffy_base::id::SandboxId;
use fluffy_base::{ByteSize, Span};

use super::{Engine, Limits, Plan, Reach};
use crate::guard::Guards;
use crate::template::{Lifetime, Network, Profile};

/// A plan without mounts and without reach.
pub(crate) fn plan(engine: Engine) -> Plan {
    Plan {
        sandbox: SandboxId::from_bits(1),
        template: "code-executor".to_owned(),
        engine,
        mounts: vec![],
        late: vec![],
        environment: [("SECRET".to_owned(), "value".to_owned())].into(),
        directory: "/work".into(),
        limits: Limits {
            memory: ByteSize(1 << 30),
            cpu_milli: None,
            pids: 100,
            user_pids: 101,
            time: Lifetime::Total(Span { millis: 1_000 }),
            disk: ByteSize(1 << 30),
            file_size: ByteSize(1 << 30),
        },
        network: Network::Loopback,
        seccomp: Profile::Standard,
        reach: Reach::default(),
        watched: None,
        scratch: None,
        without: Guards::NONE,
    }
}
