//! Plugins of fluffy in Rust: a tool is a function, its arguments a struct.
//!
//! Compiled for `wasm32-wasip2` it is a component that fluffy runs. Compiled
//! for anything else, as `cargo test` does, the host is a double in memory.
//! Never does anything that the host was not asked for. Next: [`host`].
//!
//! ```
//! use fluffy_plugin_sdk::{Answer, Arguments, Plugin, Tool, tool, tools};
//!
//! #[derive(Arguments)]
//! struct Count {
//!     /// What to count the words of.
//!     text: String,
//! }
//!
//! /// Counts the words of a text.
//! #[tool]
//! fn count(arguments: Count) -> Answer {
//!     Ok(arguments.text.split_whitespace().count().to_string())
//! }
//!
//! struct Words;
//!
//! impl Plugin for Words {
//!     const TOOLS: &'static [Tool] = tools![count];
//! }
//!
//! fluffy_plugin_sdk::export!(Words);
//!
//! # fn main() {
//! let output = Words::call("count", r#"{"text":"one two"}"#).unwrap();
//! assert_eq!(output.content, "2");
//! # }
//! ```

mod arguments;
#[cfg(target_family = "wasm")]
#[doc(hidden)]
pub mod component;
pub mod host;
mod tool;

pub use arguments::{Argument, Arguments, Fields, SchemaOf, choice_of};
pub use fluffy_plugin_sdk_macros::{Arguments, Choice, tool};
pub use serde_json;
pub use tool::{Answer, Described, Description, Failure, Outcome, Output, Plugin, Tool};

/// The tools of a plugin: `tools![count, put]`, each a function with `#[tool]`.
#[macro_export]
macro_rules! tools {
    ($($tool:ty),* $(,)?) => {
        &[$(<$tool as $crate::Described>::TOOL),*]
    };
}

/// Makes a type that is a [`Plugin`] the one that this library exports.
#[cfg(target_family = "wasm")]
#[macro_export]
macro_rules! export {
    ($plugin:ident) => {
        $crate::component::export_component!($plugin with_types_in $crate::component);
    };
}

/// Makes a type that is a [`Plugin`] the one that this library exports.
///
/// Outside of WebAssembly nobody imports it: this only checks that it is one.
#[cfg(not(target_family = "wasm"))]
#[macro_export]
macro_rules! export {
    ($plugin:ident) => {
        const _: &[$crate::Tool] = <$plugin as $crate::Plugin>::TOOLS;
    };
}
