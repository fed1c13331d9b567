//! A plugin whose secrets do not come out again.
//!
//! Stands before every connection of a plugin that was given secrets: what it
//! answers, how it describes itself and how it fails is freed of them before
//! anybody else sees it. One that encodes a secret first gets it through: this
//! keeps slips out, the sandbox and policy keep a plugin in.

use std::sync::Arc;
use std::time::Duration;

use fluffy_base::id::SandboxId;
use fluffy_contract::BoxFuture;
use fluffy_contract::tool::{ForeignTool, ToolOutput};
use fluffy_secret::Redactor;
use serde_json::Value;

use crate::connection::{CallPluginError, Connection, Gone, StartPluginError};
use crate::go_plugin::Channel;

/// A connection behind a redactor.
pub(crate) struct Guarded {
    pub(crate) inner: Arc<dyn Connection>,
    pub(crate) redactor: Arc<Redactor>,
}

impl Connection for Guarded {
    fn sandbox(&self) -> SandboxId {
        self.inner.sandbox()
    }

    fn tools(&self) -> Vec<ForeignTool> {
        let mut tools = self.inner.tools();
        for tool in &mut tools {
            free(&self.redactor, &mut tool.name);
            free(&self.redactor, &mut tool.summary);
            free_value(&self.redactor, &mut tool.parameters);
        }
        tools
    }

    fn call<'a>(
        &'a self,
        tool: &'a str,
        arguments: &'a Value,
    ) -> BoxFuture<'a, Result<ToolOutput, CallPluginError>> {
        Box::pin(async move {
            match self.inner.call(tool, arguments).await {
                Ok(mut output) => {
                    free(&self.redactor, &mut output.content);
                    Ok(output)
                }
                Err(error) => Err(self.freed(error)),
            }
        })
    }

    fn channel(&self) -> Option<Channel> {
        self.inner.channel()
    }

    fn free(&self, said: &mut String) {
        free(&self.redactor, said);
    }

    fn health(&self) -> BoxFuture<'_, Result<(), CallPluginError>> {
        Box::pin(async { self.inner.health().await.map_err(|error| self.freed(error)) })
    }

    fn stop(&self, grace: Duration) -> BoxFuture<'_, ()> {
        self.inner.stop(grace)
    }

    fn gone(&self) -> BoxFuture<'_, Gone> {
        Box::pin(async {
            let mut gone = self.inner.gone().await;
            if let Gone::Crashed { how } = &mut gone {
                free(&self.redactor, how);
            }
            gone
        })
    }
}

impl Guarded {
    fn freed(&self, mut error: CallPluginError) -> CallPluginError {
        match &mut error {
            CallPluginError::NoSuchTool { tool: text }
            | CallPluginError::Refused { text }
            | CallPluginError::Nonsense { what: text }
            | CallPluginError::Trapped { how: text }
            | CallPluginError::Gone { how: text } => free(&self.redactor, text),
            CallPluginError::Late { .. } | CallPluginError::Limit { .. } => {}
        }
        error
    }
}

/// Why a plugin did not start, without its secrets.
pub(crate) fn freed(redactor: &Redactor, mut error: StartPluginError) -> StartPluginError {
    match &mut error {
        StartPluginError::Ended { how: text } | StartPluginError::Protocol { what: text, .. } => {
            free(redactor, text);
        }
        StartPluginError::Sandbox { .. } | StartPluginError::Late { .. } => {}
    }
    error
}

fn free(redactor: &Redactor, text: &mut String) {
    let redacted = redactor.redact(text);
    if redacted.count > 0 {
        *text = redacted.text;
    }
}

fn free_value(redactor: &Redactor, value: &mut Value) {
    match value {
        Value::String(text) => free(redactor, text),
        Value::Array(items) => items.iter_mut().for_each(|item| free_value(redactor, item)),
        Value::Object(fields) => {
            let old = std::mem::take(fields);
            for (mut name, mut value) in old {
                free(redactor, &mut name);
                free_value(redactor, &mut value);
                fields.insert(name, value);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
