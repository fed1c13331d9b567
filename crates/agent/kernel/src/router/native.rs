//! Reads inside the kernel, on a thread that may block.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fluffy_contract::tool::{CallToolError, ToolOutput};
use fluffy_gate::Desk;
use fluffy_layer::View;
use fluffy_policy::{Context, Permit};
use fluffy_tools::call::Call;
use fluffy_tools::native::{
    Scope, ask_path, find_files, list_directory, read_file, search_text_output,
};

/// One read with everything it needs.
pub(super) struct Reading {
    pub(super) call: Call,
    pub(super) view: View,
    pub(super) permit: Permit,
    pub(super) desk: Desk,
    pub(super) context: Context,
    pub(super) stop: Arc<AtomicBool>,
}

impl Reading {
    pub(super) fn read(self) -> Result<ToolOutput, CallToolError> {
        // Not recorded one by one: a search asks for thousands of files, and
        // what it was permitted is recorded as the search.
        let may_read = |resource: &str| {
            let request = self.desk.request("fs.read", Some(resource), &self.context);
            self.desk.gate.would_allow(&request)
        };
        let scope = Scope {
            may_read: &may_read,
            stop: &self.stop,
        };
        match &self.call {
            Call::Read(arguments) => read_file(self.permit, &self.view, arguments),
            Call::List(arguments) => list_directory(self.permit, &self.view, arguments),
            Call::Exists(arguments) => ask_path(self.permit, &self.view, arguments),
            Call::Grep(arguments) => search_text_output(self.permit, &self.view, arguments, scope),
            Call::Glob(arguments) => find_files(self.permit, &self.view, arguments, scope),
            _ => Ok(super::failed("this is no read")),
        }
    }
}
