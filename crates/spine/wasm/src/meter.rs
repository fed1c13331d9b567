//! Counts what one call takes and refuses what is too much.
//!
//! The engine asks it before every growth. A growth past the limit ends the
//! call, as a memory limit ends a process: a program that is told "no" and
//! fails somewhere later would hide the reason. The first limit that was hit is
//! kept, so nothing has to be read out of an error's text.

use wasmtime::ResourceLimiter;

use crate::limits::{Bounds, Limits};
use crate::stop::Stop;

/// Counts what one call takes.
#[derive(Debug)]
pub(crate) struct Meter {
    limits: Limits,
    bounds: Bounds,
    memory: Count,
    elements: Count,
    exceeded: Option<Stop>,
}

/// One amount that only grows, and the growth that may still fail.
#[derive(Debug, Default)]
struct Count {
    total: u64,
    pending: u64,
}

impl Meter {
    pub(crate) fn new(limits: Limits, bounds: Bounds) -> Self {
        Self {
            limits,
            bounds,
            memory: Count::default(),
            elements: Count::default(),
            exceeded: None,
        }
    }

    /// The limit that ended the call, if one did.
    pub(crate) fn exceeded(&self) -> Option<&Stop> {
        self.exceeded.as_ref()
    }

    /// Bytes of all memories together; they never shrink.
    pub(crate) fn memory(&self) -> u64 {
        self.memory.total
    }

    pub(crate) fn refuse(&mut self, stop: Stop) -> wasmtime::Error {
        self.exceeded.get_or_insert_with(|| stop.clone());
        wasmtime::Error::from(stop)
    }
}

impl ResourceLimiter for Meter {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        if maximum.is_some_and(|maximum| desired > maximum) {
            // The program's own maximum: the growth fails by the rules.
            return Ok(false);
        }
        let limit = self.limits.memory;
        match self.memory.grow(current, desired, limit.0) {
            true => Ok(true),
            false => Err(self.refuse(Stop::Memory { limit })),
        }
    }

    fn memory_grow_failed(&mut self, _error: wasmtime::Error) -> wasmtime::Result<()> {
        self.memory.give_back();
        Ok(())
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        let limit = self.limits.table_elements;
        match self.elements.grow(current, desired, as_u64(limit)) {
            true => Ok(true),
            false => Err(self.refuse(Stop::Table { limit })),
        }
    }

    fn table_grow_failed(&mut self, _error: wasmtime::Error) -> wasmtime::Result<()> {
        self.elements.give_back();
        Ok(())
    }

    fn instances(&self) -> usize {
        as_usize(self.bounds.instances)
    }

    fn tables(&self) -> usize {
        as_usize(self.bounds.tables)
    }

    fn memories(&self) -> usize {
        as_usize(self.bounds.memories)
    }
}

impl Count {
    fn grow(&mut self, current: usize, desired: usize, limit: u64) -> bool {
        let more = as_u64(desired.saturating_sub(current));
        let total = self.total.saturating_add(more);
        if total > limit {
            return false;
        }
        self.total = total;
        self.pending = more;
        true
    }

    fn give_back(&mut self) {
        self.total = self.total.saturating_sub(self.pending);
        self.pending = 0;
    }
}

fn as_u64(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

fn as_usize(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use fluffy_base::ByteSize;

    use super::*;

    fn meter() -> Meter {
        let limits = Limits {
            memory: ByteSize(100),
            table_elements: 10,
            ..Limits::default()
        };
        Meter::new(limits, Bounds::default())
    }

    #[test]
    fn all_memories_count_together() {
        let mut meter = meter();
        assert!(meter.memory_growing(0, 60, None).unwrap());
        assert!(meter.memory_growing(0, 40, None).unwrap());
        assert!(meter.memory_growing(40, 41, None).is_err());
        let limit = ByteSize(100);
        assert_eq!(meter.exceeded(), Some(&Stop::Memory { limit }));
        assert_eq!(meter.memory(), 100);
    }

    #[test]
    fn a_growth_that_failed_is_given_back() {
        let mut meter = meter();
        assert!(meter.memory_growing(0, 60, None).unwrap());
        meter
            .memory_grow_failed(wasmtime::Error::msg("no"))
            .unwrap();
        assert!(meter.memory_growing(0, 100, None).unwrap());
        assert!(meter.table_growing(0, 10, None).unwrap());
        meter.table_grow_failed(wasmtime::Error::msg("no")).unwrap();
        assert!(meter.table_growing(0, 10, None).unwrap());
    }

    #[test]
    fn past_its_own_maximum_a_program_is_told_no_and_goes_on() {
        let mut meter = meter();
        assert!(!meter.memory_growing(0, 60, Some(50)).unwrap());
        assert!(!meter.table_growing(0, 6, Some(5)).unwrap());
        assert_eq!(meter.exceeded(), None);
        assert_eq!(meter.memory(), 0);
    }

    #[test]
    fn the_first_limit_is_the_reason() {
        let mut meter = meter();
        assert!(meter.table_growing(0, 11, None).is_err());
        assert!(meter.memory_growing(0, 101, None).is_err());
        assert_eq!(meter.exceeded(), Some(&Stop::Table { limit: 10 }));
    }
}
