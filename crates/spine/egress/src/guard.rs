//! The checks by name, so that a test can show what happens without one.
//!
//! In the product every guard always stands: leaving one out is compiled only
//! into this crate's own tests, where it is the control of an attack.

/// One check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guard {
    /// Hosts have one spelling and no odd bytes.
    Names,
    /// `Host` agrees with the target.
    HostAgrees,
    /// A body has one clear length.
    Framing,
    /// Addresses that are not public are refused.
    Addresses,
    /// What was checked is what is connected to.
    OneLookup,
    /// The name in TLS is the name that was allowed.
    ServerName,
    /// A head has to arrive in time.
    HeadTime,
}

/// Which guards stand: all, but for a control.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Guards {
    #[cfg(test)]
    pub(crate) without: Option<Guard>,
}

impl Guards {
    /// Whether this check is made.
    pub(crate) fn stand(self, guard: Guard) -> bool {
        #[cfg(test)]
        return self.without != Some(guard);
        #[cfg(not(test))]
        {
            let _ = guard;
            true
        }
    }
}
