//! A compiled program: examined, compiled and linked once, run many times.
//!
//! Compiling takes milliseconds to seconds and can't be interrupted, so it has
//! its own step and is never part of a call. A program is linked to WASI's
//! interfaces and nothing else; one that wants more is refused here, by name.

use std::fmt;
use std::sync::Arc;

use fluffy_base::Digest;
use wasmtime::component::Component;
use wasmtime::{Engine, ExternType, InstancePre, Linker, Module, ResourcesRequired};
use wasmtime_wasi::p2::bindings::CommandPre;

use crate::examine::{ExamineError, Shape, examine};
use crate::guest::{Plain, Wasi};
use crate::limits::Bounds;

/// A program that is ready to run.
#[derive(Clone)]
pub struct Program {
    compiled: Arc<Compiled>,
}

struct Compiled {
    digest: Digest,
    size: usize,
    command: Option<CommandForm>,
    library: Option<InstancePre<Plain>>,
}

/// How a program is run as a command.
#[derive(Clone)]
pub(crate) enum CommandForm {
    /// A core module with `_start`, against WASI preview 1.
    Module(InstancePre<Wasi>),
    /// A component with `wasi:cli/run`, against WASI preview 2.
    Component(CommandPre<Wasi>),
}

/// Why a program can't be made ready.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// It is too large or no WebAssembly; the compiler has not seen it.
    #[error("the program `{digest}` is not given to the compiler")]
    Examine {
        /// Which program.
        digest: Digest,
        /// Why not.
        #[source]
        source: ExamineError,
    },
    /// The compiler refused it.
    #[error("the program `{digest}` does not compile")]
    Compile {
        /// Which program.
        digest: Digest,
        /// What the compiler says.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// It imports what nobody offers.
    #[error("the program `{digest}` imports something that is not offered")]
    Import {
        /// Which program.
        digest: Digest,
        /// Which import.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// It is neither a command nor a collection of plain functions.
    #[error(
        "the program `{digest}` exports neither `_start` nor `wasi:cli/run`, and is no \
         module of plain functions"
    )]
    NotRunnable {
        /// Which program.
        digest: Digest,
    },
    /// It does not export what a plugin of its type has to.
    #[error("the program `{digest}` does not export `fluffy:plugin/lifecycle` and `tool`")]
    NotAPlugin {
        /// Which program.
        digest: Digest,
    },
}

impl Program {
    /// The digest of the bytes it was compiled from.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.compiled.digest
    }

    /// How many bytes it was compiled from.
    pub(crate) fn size(&self) -> usize {
        self.compiled.size
    }

    pub(crate) fn command(&self) -> Option<&CommandForm> {
        self.compiled.command.as_ref()
    }

    pub(crate) fn library(&self) -> Option<&InstancePre<Plain>> {
        self.compiled.library.as_ref()
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program")
            .field("digest", &self.compiled.digest)
            .finish_non_exhaustive()
    }
}

/// Makes programs ready; holds everything a program can be linked to.
pub(crate) struct Workshop {
    engine: Engine,
    bounds: Bounds,
    plain: Linker<Plain>,
    modules: Linker<Wasi>,
    components: wasmtime::component::Linker<Wasi>,
}

impl Workshop {
    pub(crate) fn new(engine: Engine, bounds: Bounds) -> wasmtime::Result<Self> {
        let mut modules = Linker::new(&engine);
        wasmtime_wasi::p1::add_to_linker_async(&mut modules, Wasi::system)?;
        let mut components = wasmtime::component::Linker::new(&engine);
        wasmtime_wasi::p2::add_to_linker_async(&mut components)?;
        Ok(Self {
            plain: Linker::new(&engine),
            modules,
            components,
            engine,
            bounds,
        })
    }

    /// Examines, compiles and links a program.
    pub(crate) fn prepare(&self, digest: Digest, bytes: &[u8]) -> Result<Program, PrepareError> {
        let refused = |source| PrepareError::Examine { digest, source };
        let (command, library) = match examine(bytes, &self.bounds).map_err(refused)? {
            Shape::Module => self.module(digest, bytes)?,
            Shape::Component => (Some(self.component(digest, bytes)?), None),
        };
        if command.is_none() && library.is_none() {
            return Err(PrepareError::NotRunnable { digest });
        }
        let compiled = Arc::new(Compiled {
            digest,
            size: bytes.len(),
            command,
            library,
        });
        Ok(Program { compiled })
    }

    fn module(&self, digest: Digest, bytes: &[u8]) -> Result<Forms, PrepareError> {
        let module = Module::from_binary(&self.engine, bytes)
            .map_err(|source| does_not_compile(digest, source))?;
        check_resources(digest, &module.resources_required(), &self.bounds)?;
        let missing = |source| missing_import(digest, source);
        let command = match is_command(&module) {
            true => Some(self.modules.instantiate_pre(&module).map_err(missing)?),
            false => None,
        };
        let library = match module.imports().len() {
            0 => Some(self.plain.instantiate_pre(&module).map_err(missing)?),
            _ => None,
        };
        Ok((command.map(CommandForm::Module), library))
    }

    fn component(&self, digest: Digest, bytes: &[u8]) -> Result<CommandForm, PrepareError> {
        let component = Component::from_binary(&self.engine, bytes)
            .map_err(|source| does_not_compile(digest, source))?;
        // Nothing that could be instantiated is ever imported, so the engine
        // always knows; a component where it does not, is not for us.
        let Some(needs) = component.resources_required() else {
            return Err(PrepareError::NotRunnable { digest });
        };
        check_resources(digest, &needs, &self.bounds)?;
        let linked = self
            .components
            .instantiate_pre(&component)
            .map_err(|source| missing_import(digest, source))?;
        let command = CommandPre::new(linked).map_err(|_| PrepareError::NotRunnable { digest })?;
        Ok(CommandForm::Component(command))
    }
}

pub(crate) fn check_resources(
    digest: Digest,
    needs: &ResourcesRequired,
    bounds: &Bounds,
) -> Result<(), PrepareError> {
    let checks = [
        ("memories", needs.num_memories, bounds.memories),
        ("tables", needs.num_tables, bounds.tables),
    ];
    for (what, found, limit) in checks {
        if found > limit {
            let (found, limit) = (u64::from(found), u64::from(limit));
            let source = ExamineError::TooMany { what, found, limit };
            return Err(PrepareError::Examine { digest, source });
        }
    }
    Ok(())
}

/// What a core module can be used as.
type Forms = (Option<CommandForm>, Option<InstancePre<Plain>>);

fn is_command(module: &Module) -> bool {
    match module.get_export("_start") {
        Some(ExternType::Func(start)) => start.params().len() == 0 && start.results().len() == 0,
        _ => false,
    }
}

pub(crate) fn does_not_compile(digest: Digest, source: wasmtime::Error) -> PrepareError {
    let source = source.into_boxed_dyn_error();
    PrepareError::Compile { digest, source }
}

pub(crate) fn missing_import(digest: Digest, source: wasmtime::Error) -> PrepareError {
    let source = source.into_boxed_dyn_error();
    PrepareError::Import { digest, source }
}
