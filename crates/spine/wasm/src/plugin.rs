//! Plugins: components of the published contract, called again and again.
//!
//! [`PluginTier::prepare`] compiles one, or takes what was compiled before;
//! [`Plugin::instantiate`] makes an [`Instance`] of it in a slot of a pool, and
//! an instance carries out calls, each under its own [`Limits`]. A plugin
//! reaches its [`Host`] and nothing else. All of it belongs into a sandboxed
//! worker process: engines have had escapes. Next: `plugin/instance.rs`.

mod bindings;
mod host;
mod instance;
mod language;

use std::fmt;
use std::hash::{Hash as _, Hasher};
use std::sync::Arc;

use fluffy_base::Digest;
use wasmtime::component::{Component, HasSelf, Linker};
use wasmtime::{
    Engine, InstanceAllocationStrategy, InstancePre, Module, PoolingAllocationConfig, Precompiled,
};

pub use host::{ASKS_MAX, Ask, Fault, Host, Level, Reply, Request, Response};
pub use instance::{CallFault, Description, Instance, Metered, Outcome, Output};
pub use language::Language;

use crate::examine::{Shape, examine};
use crate::guest::Guest;
use crate::limits::Bounds;
use crate::program::{PrepareError, check_resources, does_not_compile, missing_import};
use crate::ticker::Ticker;
use crate::tier::{StartTierError, configuration};
use bindings::{ToolPlugin, ToolPluginPre};
use host::System;

/// How many instances there may be at once.
pub const INSTANCES_MAX: u32 = 32;

/// Core instances, memories and tables that all of them share.
const CORE_INSTANCES: u32 = 1024;
const MEMORIES: u32 = 64;
const TABLES: u32 = 256;

/// The largest table, and the tables of one module.
const TABLE_ELEMENTS: usize = 100_000;
const TABLES_OF_A_MODULE: u32 = 8;

/// Compiles plugins and holds the pool that their instances live in.
pub struct PluginTier {
    engine: Engine,
    bounds: Bounds,
    components: Linker<Guest<System>>,
    modules: wasmtime::Linker<Guest<System>>,
    ticker: Arc<Ticker>,
}

/// A plugin that is ready to be instantiated.
#[derive(Clone)]
pub struct Plugin {
    engine: Engine,
    bounds: Bounds,
    ticker: Arc<Ticker>,
    form: Form,
    language: Language,
}

#[derive(Clone)]
enum Form {
    /// A component of the contract.
    Component(ToolPluginPre<Guest<System>>),
    /// A core module without imports, whose functions are its tools.
    Library(InstancePre<Guest<System>>),
}

/// Compiled code. Loading it means running what is in it.
#[derive(Clone, PartialEq, Eq)]
pub struct Compiled(Vec<u8>);

/// A plugin, and what was compiled if that had to be done.
#[derive(Debug)]
pub struct Prepared {
    /// The plugin.
    pub plugin: Plugin,
    /// For the next time.
    pub compiled: Option<Compiled>,
}

impl PluginTier {
    /// Starts the engine and reserves the pool.
    ///
    /// # Errors
    /// The engine does not work on this machine, or no thread is to be had.
    pub fn start(bounds: Bounds) -> Result<Self, StartTierError> {
        let fails = |source: wasmtime::Error| StartTierError::Engine {
            source: source.into_boxed_dyn_error(),
        };
        let mut configuration = configuration();
        configuration.allocation_strategy(InstanceAllocationStrategy::Pooling(pool(&bounds)));
        let engine = Engine::new(&configuration).map_err(fails)?;
        let mut components = Linker::new(&engine);
        wasmtime_wasi::p2::add_to_linker_async(&mut components).map_err(fails)?;
        ToolPlugin::add_to_linker::<_, HasSelf<_>>(&mut components, |guest| guest)
            .map_err(fails)?;
        let ticker =
            Ticker::start(engine.clone()).map_err(|source| StartTierError::Thread { source })?;
        Ok(Self {
            modules: wasmtime::Linker::new(&engine),
            components,
            ticker: Arc::new(ticker),
            engine,
            bounds,
        })
    }

    /// Names the engine's version and configuration; compiled code fits only
    /// an engine of the same identity.
    #[must_use]
    pub fn identity(&self) -> Digest {
        let mut bytes = Bytes(Vec::new());
        self.engine.precompile_compatibility_hash().hash(&mut bytes);
        // What was compiled within other bounds was not examined for these.
        let bounds = format!("{:?}", self.bounds);
        Digest::of_parts(&[&bytes.0, bounds.as_bytes()])
    }

    /// Makes a plugin ready; compiles it unless `compiled` is what an engine of
    /// this identity made of the same bytes.
    ///
    /// Takes milliseconds to seconds and blocks; never do it on a call's way.
    ///
    /// # Errors
    /// The plugin is too large, invalid, imports what nobody offers, or does
    /// not fulfil the contract.
    pub fn prepare(
        &self,
        bytes: &[u8],
        compiled: Option<&Compiled>,
    ) -> Result<Prepared, PrepareError> {
        let digest = Digest::of(bytes);
        let refused = |source| PrepareError::Examine { digest, source };
        let shape = examine(bytes, &self.bounds).map_err(refused)?;
        let (form, compiled) = match shape {
            Shape::Component => self.component(digest, bytes, compiled)?,
            Shape::Module => self.module(digest, bytes, compiled)?,
        };
        let plugin = Plugin {
            engine: self.engine.clone(),
            bounds: self.bounds,
            ticker: Arc::clone(&self.ticker),
            form,
            language: Language::of(bytes),
        };
        Ok(Prepared { plugin, compiled })
    }

    fn component(
        &self,
        digest: Digest,
        bytes: &[u8],
        compiled: Option<&Compiled>,
    ) -> Result<(Form, Option<Compiled>), PrepareError> {
        let fails = |source| does_not_compile(digest, source);
        let known = compiled.and_then(|compiled| compiled.component(&self.engine));
        let (component, fresh) = match known {
            Some(component) => (component, None),
            None => {
                let component = Component::from_binary(&self.engine, bytes).map_err(fails)?;
                let fresh = Compiled(component.serialize().map_err(fails)?);
                (component, Some(fresh))
            }
        };
        // Nothing that could be instantiated is ever imported, so the engine
        // always knows; a component where it does not, is not for us.
        let Some(needs) = component.resources_required() else {
            return Err(PrepareError::NotAPlugin { digest });
        };
        check_resources(digest, &needs, &self.bounds)?;
        let linked = self
            .components
            .instantiate_pre(&component)
            .map_err(|source| missing_import(digest, source))?;
        let plugin = ToolPluginPre::new(linked).map_err(|_| PrepareError::NotAPlugin { digest })?;
        Ok((Form::Component(plugin), fresh))
    }

    fn module(
        &self,
        digest: Digest,
        bytes: &[u8],
        compiled: Option<&Compiled>,
    ) -> Result<(Form, Option<Compiled>), PrepareError> {
        let fails = |source| does_not_compile(digest, source);
        let known = compiled.and_then(|compiled| compiled.module(&self.engine));
        let (module, fresh) = match known {
            Some(module) => (module, None),
            None => {
                let module = Module::from_binary(&self.engine, bytes).map_err(fails)?;
                let fresh = Compiled(module.serialize().map_err(fails)?);
                (module, Some(fresh))
            }
        };
        check_resources(digest, &module.resources_required(), &self.bounds)?;
        let linked = self
            .modules
            .instantiate_pre(&module)
            .map_err(|source| missing_import(digest, source))?;
        Ok((Form::Library(linked), fresh))
    }
}

impl Plugin {
    /// What it was probably written in.
    #[must_use]
    pub fn language(&self) -> Language {
        self.language
    }
}

#[expect(
    unsafe_code,
    reason = "the engine runs what it loads here, and cannot check it"
)]
impl Compiled {
    /// What [`PluginTier::prepare`] gave out before, kept by someone else.
    ///
    /// # Safety
    /// The bytes must be those of [`Self::as_bytes`], unchanged: they are run
    /// as machine code. Whoever kept them has to know that nobody else could
    /// write them.
    #[must_use]
    pub unsafe fn kept(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// The bytes, to be kept where nobody else can write.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Nothing when it is of another kind, version or configuration.
    fn component(&self, engine: &Engine) -> Option<Component> {
        match Engine::detect_precompiled(&self.0) {
            // SAFETY: the bytes come from an engine, unchanged: see `kept`.
            Some(Precompiled::Component) => unsafe { Component::deserialize(engine, &self.0).ok() },
            _ => None,
        }
    }

    fn module(&self, engine: &Engine) -> Option<Module> {
        match Engine::detect_precompiled(&self.0) {
            // SAFETY: the bytes come from an engine, unchanged: see `kept`.
            Some(Precompiled::Module) => unsafe { Module::deserialize(engine, &self.0).ok() },
            _ => None,
        }
    }
}

fn pool(bounds: &Bounds) -> PoolingAllocationConfig {
    let mut pool = PoolingAllocationConfig::default();
    pool.total_component_instances(INSTANCES_MAX)
        .total_core_instances(CORE_INSTANCES)
        .total_memories(MEMORIES)
        .total_tables(TABLES)
        .total_stacks(INSTANCES_MAX)
        .max_core_instances_per_component(bounds.instances)
        .max_memories_per_component(bounds.memories)
        .max_tables_per_component(bounds.tables)
        .max_tables_per_module(TABLES_OF_A_MODULE)
        .table_elements(TABLE_ELEMENTS);
    pool
}

/// Collects what is hashed, for a digest that is the same tomorrow.
struct Bytes(Vec<u8>);

impl Hasher for Bytes {
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn finish(&self) -> u64 {
        0
    }
}

impl fmt::Debug for PluginTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PluginTier")
            .field("bounds", &self.bounds)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plugin")
            .field("language", &self.language)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Compiled({} bytes)", self.0.len())
    }
}
