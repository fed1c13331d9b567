//! Which system calls exist inside a sandbox: filters, compiled from tables.
//!
//! What is not on the list does not exist (`ENOSYS`), what is known and refused
//! may not be (`EPERM`), and a call of another architecture ends the process. A
//! filter never looks at paths; mounts and `wall` do. Next: `profiles` has the
//! tables, `program` makes programs of them, `interpret` runs those.

mod calls;
mod interpret;
mod profiles;
mod program;

use std::collections::BTreeMap;
use std::io;

use self::profiles::{Place, Refusal};
use self::program::{Answer, Instruction, Verdict};
use crate::template::Profile;

pub use self::interpret::{Action, interpret};

/// What a call says that it is written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// 64-bit x86; its x32 calls say this too.
    X86_64,
    /// 64-bit Arm.
    Aarch64,
    /// 32-bit x86, which 64-bit kernels often still answer.
    I386,
    /// 32-bit Arm, the same.
    Arm,
}

impl Architecture {
    /// The one this program was compiled for.
    #[must_use]
    pub const fn native() -> Self {
        #[cfg(target_arch = "x86_64")]
        let native = Self::X86_64;
        #[cfg(target_arch = "aarch64")]
        let native = Self::Aarch64;
        native
    }

    /// The number of a call, where this architecture has it and a profile
    /// speaks of it.
    #[must_use]
    pub fn number(self, call: &str) -> Option<u32> {
        let call = calls::find(call)?;
        match self {
            Self::X86_64 => call.x86_64.map(u32::from),
            Self::Aarch64 => call.aarch64.map(u32::from),
            Self::I386 | Self::Arm => None,
        }
    }

    /// The kernel's own mark, as a filter sees it.
    fn audit(self) -> u32 {
        const LITTLE_ENDIAN: u32 = 0x4000_0000;
        const BITS_64: u32 = 0x8000_0000;
        match self {
            Self::X86_64 => 62 | LITTLE_ENDIAN | BITS_64,
            Self::Aarch64 => 183 | LITTLE_ENDIAN | BITS_64,
            Self::I386 => 3 | LITTLE_ENDIAN,
            Self::Arm => 40 | LITTLE_ENDIAN,
        }
    }
}

/// Why there is no filter.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// Nothing runs on it here.
    #[error("there are no filters for architecture `{architecture:?}`")]
    Architecture {
        /// Which.
        architecture: Architecture,
    },
    /// A table names a call that has no number.
    #[error("the tables know no call `{call}`")]
    Call {
        /// Its name.
        call: &'static str,
    },
    /// The kernel takes no longer ones.
    #[error("a filter of {length} instructions is too long")]
    Length {
        /// How many there are.
        length: usize,
    },
}

/// A compiled profile, ready to be put over a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    program: Vec<Instruction>,
    /// As the kernel wants to be told.
    length: u16,
}

impl Filter {
    /// A profile for processes that have namespaces of their own.
    ///
    /// # Errors
    /// For architectures that nothing runs on.
    pub fn compile(profile: Profile, architecture: Architecture) -> Result<Self, CompileError> {
        Rules::of(profile, Place::Namespaces).compile(architecture)
    }

    /// A profile for processes without namespaces: nothing that only a
    /// namespace would keep inside, so no sockets and no shared memory by name.
    ///
    /// # Errors
    /// For architectures that nothing runs on.
    pub fn compile_alone(
        profile: Profile,
        architecture: Architecture,
    ) -> Result<Self, CompileError> {
        Rules::of(profile, Place::Alone).compile(architecture)
    }

    /// What the kernel of the agent needs: files, unix sockets, workers.
    ///
    /// # Errors
    /// For architectures that nothing runs on.
    pub(crate) fn compile_kernel(architecture: Architecture) -> Result<Self, CompileError> {
        Rules::kernel().compile(architecture)
    }

    /// What [`seal`] leaves: any other call ends the process.
    ///
    /// # Errors
    /// For architectures that nothing runs on.
    pub fn compile_seal(architecture: Architecture) -> Result<Self, CompileError> {
        Rules::sealed().compile(architecture)
    }

    /// The program as other tools take it: the kernel's own instructions.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let bytes = |one: &Instruction| {
            let mut bytes = one.code.to_ne_bytes().to_vec();
            bytes.extend([one.if_true, one.if_false]);
            bytes.extend(one.value.to_ne_bytes());
            bytes
        };
        self.program.iter().flat_map(bytes).collect()
    }

    /// Puts the filter over the calling thread and all that it starts, for
    /// ever. Allocates nothing: it is called between `fork` and `execve`, after
    /// no-new-privileges.
    ///
    /// # Errors
    /// When the kernel has no filters, or without no-new-privileges.
    pub fn install(&self) -> io::Result<()> {
        self.install_for(Threads::Calling)
    }

    fn install_for(&self, threads: Threads) -> io::Result<()> {
        let flags: libc::c_ulong = match threads {
            Threads::Calling => 0,
            Threads::All => libc::SECCOMP_FILTER_FLAG_TSYNC,
        };
        let program = libc::sock_fprog {
            len: self.length,
            filter: self.program.as_ptr().cast::<libc::sock_filter>().cast_mut(),
        };
        #[expect(unsafe_code, reason = "there is no safe wrapper")]
        // SAFETY: `program` names `length` instructions of the kernel's own
        // layout, which live until the call returns; the kernel only reads them.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                flags,
                &raw const program,
            )
        };
        match answer {
            0 => Ok(()),
            -1 => Err(io::Error::last_os_error()),
            // The number of a thread that could not be brought along.
            _ => Err(io::ErrorKind::ResourceBusy.into()),
        }
    }
}

/// Takes from the whole calling process everything but computing and the
/// descriptors it has. For workers of our own, after they have started: from
/// here on opening, connecting or starting something ends the process.
///
/// # Errors
/// When the kernel has no filters, or not for all threads of the process.
pub fn seal() -> io::Result<()> {
    let filter = Filter::compile_seal(Architecture::native()).map_err(io::Error::other)?;
    rustix::thread::set_no_new_privs(true)?;
    filter.install_for(Threads::All)
}

/// The names of the calls that a profile allows, for engines whose own filter
/// has to stand around ours.
pub fn allowed(profile: Profile) -> impl Iterator<Item = &'static str> {
    profiles::allowed(profile)
        .iter()
        .copied()
        .flatten()
        .copied()
}

/// Which threads of the calling process.
#[derive(Debug, Clone, Copy)]
enum Threads {
    Calling,
    All,
}

/// What a filter is made from.
struct Rules {
    allowed: &'static [&'static [&'static str]],
    unknown: Answer,
    refused: Vec<Refusal>,
    refusal: Answer,
}

impl Rules {
    fn of(profile: Profile, place: Place) -> Self {
        Self {
            allowed: profiles::allowed(profile),
            unknown: fail_with(libc::ENOSYS),
            refused: profiles::refused(profile, place),
            refusal: fail_with(libc::EPERM),
        }
    }

    fn kernel() -> Self {
        Self {
            allowed: profiles::allowed(Profile::Standard),
            unknown: fail_with(libc::ENOSYS),
            refused: profiles::refused_to_kernel(),
            refusal: fail_with(libc::EPERM),
        }
    }

    fn sealed() -> Self {
        Self {
            allowed: profiles::SEALED,
            unknown: libc::SECCOMP_RET_KILL_PROCESS,
            refused: profiles::refused(Profile::Strict, Place::Alone),
            refusal: libc::SECCOMP_RET_KILL_PROCESS,
        }
    }

    fn compile(&self, architecture: Architecture) -> Result<Filter, CompileError> {
        const LONGEST: u16 = 4_096;
        if matches!(architecture, Architecture::I386 | Architecture::Arm) {
            return Err(CompileError::Architecture { architecture });
        }
        let verdicts: Vec<(u32, Verdict)> = self.verdicts(architecture)?.into_iter().collect();
        let program = program::assemble(architecture, &verdicts, self.unknown);
        let length = u16::try_from(program.len())
            .ok()
            .filter(|length| *length <= LONGEST)
            .ok_or(CompileError::Length {
                length: program.len(),
            })?;
        Ok(Filter { program, length })
    }

    fn verdicts(&self, architecture: Architecture) -> Result<BTreeMap<u32, Verdict>, CompileError> {
        let mut verdicts = BTreeMap::new();
        for call in self.allowed.iter().copied().flatten() {
            if let Some(number) = number(call, architecture)? {
                verdicts.insert(number, Verdict::Always(libc::SECCOMP_RET_ALLOW));
            }
        }
        for refusal in &self.refused {
            let Some(number) = number(refusal.call, architecture)? else {
                continue;
            };
            let verdict = verdicts
                .entry(number)
                .or_insert(Verdict::Always(self.unknown));
            self.refuse(verdict, refusal);
        }
        Ok(verdicts)
    }

    /// No tests at all means always, whatever else is said of the call.
    fn refuse(&self, verdict: &mut Verdict, refusal: &Refusal) {
        if refusal.tests.is_empty() {
            *verdict = Verdict::Always(self.refusal);
            return;
        }
        match verdict {
            Verdict::Always(answer) if *answer == self.refusal => {}
            Verdict::Always(answer) => {
                *verdict = Verdict::Depends {
                    rules: vec![refusal.tests],
                    refusal: self.refusal,
                    otherwise: *answer,
                };
            }
            Verdict::Depends { rules, .. } => rules.push(refusal.tests),
        }
    }
}

/// The number of a call on this architecture; nothing where it has none.
fn number(call: &'static str, architecture: Architecture) -> Result<Option<u32>, CompileError> {
    if calls::find(call).is_none() {
        return Err(CompileError::Call { call });
    }
    Ok(architecture.number(call))
}

fn fail_with(errno: i32) -> Answer {
    libc::SECCOMP_RET_ERRNO | errno.unsigned_abs()
}

#[cfg(test)]
mod tests;
