//! Compiled programs that were used last, in memory, by digest.
//!
//! Bounded by count and by the size of what they were compiled from; the one
//! not used for longest goes first. Nothing is kept on disk: reading compiled
//! code back means running whatever is in the file.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use fluffy_base::{ByteSize, Digest};

use crate::program::Program;

/// Compiled programs that were used last.
#[derive(Debug)]
pub(crate) struct Cache {
    /// The one used last is at the end.
    programs: Mutex<VecDeque<Program>>,
    count_max: usize,
    size_max: ByteSize,
}

impl Cache {
    pub(crate) const fn new(count_max: usize, size_max: ByteSize) -> Self {
        Self {
            programs: Mutex::new(VecDeque::new()),
            count_max,
            size_max,
        }
    }

    /// The program of this digest, now the one used last.
    pub(crate) fn get(&self, digest: Digest) -> Option<Program> {
        let mut programs = self.lock();
        let found = programs.iter().position(|one| one.digest() == digest)?;
        let program = programs.remove(found)?;
        programs.push_back(program.clone());
        Some(program)
    }

    /// Keeps a program, and drops what no longer fits.
    pub(crate) fn put(&self, program: Program) {
        let mut programs = self.lock();
        programs.retain(|one| one.digest() != program.digest());
        programs.push_back(program);
        while programs.len() > self.count_max || total(&programs) > self.size_max.0 {
            programs.pop_front();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Program>> {
        // A list of handles, whole at any moment.
        self.programs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn total(programs: &VecDeque<Program>) -> u64 {
    let sizes = programs.iter().map(Program::size);
    u64::try_from(sizes.sum::<usize>()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Bounds;
    use crate::program::Workshop;

    /// A program of about this many bytes; different sizes are different.
    fn program(workshop: &Workshop, size: usize) -> Program {
        let text = format!("(module (@custom \"x\" \"{}\"))", "y".repeat(size));
        let bytes = wat::parse_str(&text).unwrap();
        workshop.prepare(Digest::of(&bytes), &bytes).unwrap()
    }

    fn workshop() -> Workshop {
        let engine = wasmtime::Engine::new(&crate::tier::configuration()).unwrap();
        Workshop::new(engine, Bounds::default()).unwrap()
    }

    #[test]
    fn the_one_not_used_for_longest_goes_first() {
        let workshop = workshop();
        let cache = Cache::new(2, ByteSize(1 << 20));
        let [one, two, three] = [1, 2, 3].map(|size| program(&workshop, size));
        cache.put(one.clone());
        cache.put(two.clone());
        assert!(cache.get(one.digest()).is_some());
        cache.put(three.clone());
        assert!(cache.get(two.digest()).is_none());
        assert!(cache.get(one.digest()).is_some() && cache.get(three.digest()).is_some());
    }

    #[test]
    fn large_programs_push_out_more() {
        let workshop = workshop();
        let cache = Cache::new(10, ByteSize(1_000));
        let [one, two, three] = [300, 301, 600].map(|size| program(&workshop, size));
        cache.put(one.clone());
        cache.put(two.clone());
        cache.put(three.clone());
        assert!(cache.get(one.digest()).is_none());
        assert!(cache.get(two.digest()).is_some() && cache.get(three.digest()).is_some());
        let huge = program(&workshop, 2_000);
        cache.put(huge.clone());
        assert!(cache.get(huge.digest()).is_none());
    }
}
