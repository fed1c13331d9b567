//! A filter's answer without a kernel: a small interpreter of its program.
//!
//! For tests, and for attacks that this machine's kernel cannot show. What it
//! does not understand ends the process. Next: `program` makes what is run.

use super::program::{
    AND, ANSWER, ARCHITECTURE_OFFSET, ARGUMENTS_OFFSET, AT_LEAST, Answer, EQUAL, Instruction, JUMP,
    LOAD, NUMBER_OFFSET,
};
use super::{Architecture, Filter};

/// What happens to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The kernel carries it out.
    Allow,
    /// It fails with this error number.
    Errno(i32),
    /// The whole process is ended.
    KillProcess,
}

/// What the kernel would do with this call under this filter.
#[must_use]
pub fn interpret(
    filter: &Filter,
    architecture: Architecture,
    number: u32,
    arguments: [u64; 6],
) -> Action {
    let call = Call {
        number,
        architecture: architecture.audit(),
        arguments,
    };
    match run(&filter.program, &call) {
        Some(libc::SECCOMP_RET_ALLOW) => Action::Allow,
        Some(answer) if answer & libc::SECCOMP_RET_ACTION_FULL == libc::SECCOMP_RET_ERRNO => {
            Action::Errno(i32::try_from(answer & libc::SECCOMP_RET_DATA).unwrap_or(libc::EPERM))
        }
        Some(_) | None => Action::KillProcess,
    }
}

struct Call {
    number: u32,
    architecture: u32,
    arguments: [u64; 6],
}

impl Call {
    /// The four bytes at this offset of what a filter sees.
    fn word(&self, offset: u32) -> Option<u32> {
        if offset == NUMBER_OFFSET {
            return Some(self.number);
        }
        if offset == ARCHITECTURE_OFFSET {
            return Some(self.architecture);
        }
        let offset = offset.checked_sub(ARGUMENTS_OFFSET)?;
        let argument = self.arguments.get(usize::try_from(offset / 8).ok()?)?;
        match offset % 8 {
            0 => u32::try_from(argument & u64::from(u32::MAX)).ok(),
            4 => u32::try_from(argument >> 32).ok(),
            _ => None,
        }
    }
}

/// The program's answer; nothing when it is not a program that can end.
fn run(program: &[Instruction], call: &Call) -> Option<Answer> {
    let mut accumulator = 0_u32;
    let mut at = 0_usize;
    // Jumps only go forward, so this ends.
    loop {
        let instruction = program.get(at)?;
        let value = instruction.value;
        let branch = |holds: bool| {
            usize::from(if holds {
                instruction.if_true
            } else {
                instruction.if_false
            })
        };
        let further = match instruction.code {
            LOAD => {
                accumulator = call.word(value)?;
                0
            }
            AND => {
                accumulator &= value;
                0
            }
            JUMP => usize::try_from(value).ok()?,
            EQUAL => branch(accumulator == value),
            AT_LEAST => branch(accumulator >= value),
            ANSWER => return Some(value),
            _ => return None,
        };
        at = at.checked_add(1)?.checked_add(further)?;
    }
}
