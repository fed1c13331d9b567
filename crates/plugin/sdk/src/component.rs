//! The component: what the host calls, and what the host is asked.
//!
//! Only where the plugin is WebAssembly. The bindings are generated from the
//! published contract; everything else here only changes types.

#![allow(
    unsafe_code,
    missing_docs,
    missing_debug_implementations,
    clippy::all,
    reason = "generated bindings"
)]

wit_bindgen::generate!({
    path: "../host/wit",
    world: "tool-plugin",
    export_macro_name: "export_component",
    pub_export_macro: true,
});

use exports::fluffy::plugin::{lifecycle, tool};
use fluffy::plugin::types::HostError;
use fluffy::plugin::{config, egress, fs, kv, log};

use crate::host::Error;
use crate::host::egress::{Request, Response};
use crate::host::log::Level;
use crate::tool::{Outcome, Plugin};

impl<P: Plugin> lifecycle::Guest for P {
    fn init() -> Result<(), String> {
        <P as Plugin>::init()
    }

    fn health() -> Result<(), String> {
        <P as Plugin>::health()
    }

    fn shutdown() {
        <P as Plugin>::shutdown();
    }
}

impl<P: Plugin> tool::Guest for P {
    fn describe() -> Vec<tool::Description> {
        let described = <P as Plugin>::describe().into_iter();
        let described = described.map(|tool| tool::Description {
            name: tool.name.to_owned(),
            summary: tool.summary.to_owned(),
            parameters: tool.parameters.to_string(),
        });
        described.collect()
    }

    fn execute(name: String, arguments: String) -> Result<tool::Output, String> {
        let output = <P as Plugin>::call(&name, &arguments)?;
        Ok(tool::Output {
            content: output.content,
            outcome: match output.outcome {
                Outcome::Done => tool::Outcome::Done,
                Outcome::Failed => tool::Outcome::Failed,
            },
        })
    }
}

impl From<HostError> for Error {
    fn from(error: HostError) -> Self {
        match error {
            HostError::Denied(text) => Self::Denied(text),
            HostError::NotFound(text) => Self::NotFound(text),
            HostError::TooLarge(text) => Self::TooLarge(text),
            HostError::Full(text) => Self::Full(text),
            HostError::Invalid(text) => Self::Invalid(text),
            HostError::Failed(text) => Self::Failed(text),
        }
    }
}

pub(crate) fn kv_get(key: &str) -> Result<Option<Vec<u8>>, Error> {
    Ok(kv::get(key)?)
}

pub(crate) fn kv_set(key: &str, value: &[u8]) -> Result<(), Error> {
    Ok(kv::set(key, value)?)
}

pub(crate) fn kv_delete(key: &str) -> Result<(), Error> {
    Ok(kv::delete(key)?)
}

pub(crate) fn kv_list(prefix: &str, after: &str) -> Result<Vec<String>, Error> {
    Ok(kv::list(prefix, after)?)
}

pub(crate) fn config_get() -> Result<String, Error> {
    Ok(config::get()?)
}

pub(crate) fn log_write(level: Level, text: &str) -> Result<(), Error> {
    let level = match level {
        Level::Trace => log::Level::Trace,
        Level::Debug => log::Level::Debug,
        Level::Info => log::Level::Info,
        Level::Warn => log::Level::Warn,
        Level::Error => log::Level::Error,
    };
    Ok(log::write(level, text)?)
}

pub(crate) fn fs_read(path: &str) -> Result<Vec<u8>, Error> {
    Ok(fs::read(path)?)
}

pub(crate) fn fs_list(path: &str) -> Result<Vec<String>, Error> {
    Ok(fs::list(path)?)
}

pub(crate) fn fs_write(path: &str, content: &[u8]) -> Result<(), Error> {
    Ok(fs::write(path, content)?)
}

pub(crate) fn egress_fetch(request: &Request) -> Result<Response, Error> {
    let response = egress::fetch(&egress::Request {
        method: request.method.clone(),
        url: request.url.clone(),
        headers: request.headers.clone(),
        body: request.body.clone(),
    })?;
    Ok(Response {
        status: response.status,
        headers: response.headers,
        body: response.body,
    })
}
