//! Errors for people (what, why, fix), exit codes, and the printer.
//!
//! [`Printer`] is the only place in the product that writes to standard output
//! and standard error. Nothing here decides what an error means: the command
//! builds a [`Report`] from a typed error and picks its [`ExitCode`].
//! Every piece of text from outside passes [`sanitize`] on its way to a
//! terminal; start with [`report`] for the shape of an error, [`printer`] for
//! where it goes, [`table`], [`tree`] and [`text`] for the pictures.

#![forbid(unsafe_code)]

pub mod exit;
pub mod footer;
pub mod json;
pub mod printer;
pub mod report;
pub mod sanitize;
pub mod style;
pub mod table;
pub mod text;
pub mod tree;

mod excerpt;
mod wrap;

pub use excerpt::Excerpt;
pub use exit::ExitCode;
pub use footer::Footer;
pub use json::sorted;
pub use printer::{
    ColorWish, Format, PrintError, Printer, PrinterOptions, SharedWriter, Verbosity,
};
pub use report::Report;
pub use sanitize::{sanitize_for_terminal, sanitize_line};
pub use style::{Styling, Tone};
pub use table::{Cell, Column, Table};
pub use text::Text;
pub use tree::Tree;
