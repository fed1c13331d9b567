//! A host in memory, for tests of plugins: one for each thread.
//!
//! Gives what a test put into it and refuses what a test denied; decides
//! nothing else. What policy really says, `fluffy plugin test` shows.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::Error;
use super::egress::{Request, Response};
use super::log::Level;

#[derive(Default)]
struct Double {
    values: BTreeMap<String, Vec<u8>>,
    files: BTreeMap<String, Vec<u8>>,
    answers: BTreeMap<String, Response>,
    lines: Vec<(Level, String)>,
    configuration: Option<Value>,
    denied: Vec<String>,
}

thread_local! {
    static HOST: RefCell<Double> = RefCell::default();
}

fn with<T>(work: impl FnOnce(&mut Double) -> T) -> T {
    HOST.with(|host| work(&mut host.borrow_mut()))
}

/// Refuses a capability from now on; one that ends with `*` means every one
/// that begins so.
pub fn deny(capability: &str) {
    with(|host| host.denied.push(capability.to_owned()));
}

/// Puts a file where the plugin may read it: `/docs/a.md`, `@data/a`.
pub fn put_file(path: &str, content: &[u8]) {
    with(|host| host.files.insert(path.to_owned(), content.to_owned()));
}

/// What is answered to requests to this address.
pub fn answer(url: &str, response: Response) {
    with(|host| host.answers.insert(url.to_owned(), response));
}

/// What a person configured.
pub fn configure(configuration: Value) {
    with(|host| host.configuration = Some(configuration));
}

/// What the plugin wrote into its log.
#[must_use]
pub fn lines() -> Vec<(Level, String)> {
    with(|host| host.lines.clone())
}

fn allowed(host: &Double, capability: &str) -> Result<(), Error> {
    let covers = |denied: &String| match denied.strip_suffix('*') {
        Some(beginning) => capability.starts_with(beginning),
        None => denied == capability,
    };
    match host.denied.iter().any(covers) {
        true => Err(Error::Denied(format!("`{capability}` is not permitted"))),
        false => Ok(()),
    }
}

pub(super) fn kv_get(key: &str) -> Result<Option<Vec<u8>>, Error> {
    with(|host| {
        allowed(host, &format!("kv.get.{key}"))?;
        Ok(host.values.get(key).cloned())
    })
}

pub(super) fn kv_set(key: &str, value: &[u8]) -> Result<(), Error> {
    with(|host| {
        allowed(host, &format!("kv.set.{key}"))?;
        host.values.insert(key.to_owned(), value.to_owned());
        Ok(())
    })
}

pub(super) fn kv_delete(key: &str) -> Result<(), Error> {
    with(|host| {
        allowed(host, &format!("kv.delete.{key}"))?;
        host.values.remove(key);
        Ok(())
    })
}

pub(super) fn kv_list(prefix: &str, after: &str) -> Result<Vec<String>, Error> {
    with(|host| {
        allowed(host, &format!("kv.list.{prefix}"))?;
        let keys = host.values.keys();
        let keys = keys.filter(|key| key.starts_with(prefix) && key.as_str() > after);
        Ok(keys.take(1_000).cloned().collect())
    })
}

pub(super) fn config_get() -> Result<String, Error> {
    with(|host| {
        allowed(host, "config.read.self")?;
        let configuration = host.configuration.as_ref().map(Value::to_string);
        Ok(configuration.unwrap_or_else(|| "{}".to_owned()))
    })
}

pub(super) fn log_write(level: Level, text: &str) -> Result<(), Error> {
    with(|host| {
        allowed(host, "log.write")?;
        host.lines.push((level, text.to_owned()));
        Ok(())
    })
}

pub(super) fn fs_read(path: &str) -> Result<Vec<u8>, Error> {
    with(|host| {
        allowed(host, &format!("fs.read.{path}"))?;
        let content = host.files.get(path).cloned();
        content.ok_or_else(|| Error::NotFound(format!("there is no `{path}`")))
    })
}

pub(super) fn fs_list(path: &str) -> Result<Vec<String>, Error> {
    with(|host| {
        allowed(host, &format!("fs.list.{path}"))?;
        let below = format!("{}/", path.trim_end_matches('/'));
        let names = host.files.keys().filter_map(|file| {
            let rest = file.strip_prefix(&below)?;
            Some(match rest.split_once('/') {
                Some((folder, _)) => format!("{folder}/"),
                None => rest.to_owned(),
            })
        });
        let names: BTreeSet<String> = names.collect();
        match names.is_empty() {
            true => Err(Error::NotFound(format!("there is no `{path}`"))),
            false => Ok(names.into_iter().collect()),
        }
    })
}

pub(super) fn fs_write(path: &str, content: &[u8]) -> Result<(), Error> {
    with(|host| {
        allowed(host, &format!("fs.write.{path}"))?;
        if !path.starts_with("@data/") {
            let why = format!("`{path}` is not below `@data/`");
            return Err(Error::Invalid(why));
        }
        host.files.insert(path.to_owned(), content.to_owned());
        Ok(())
    })
}

pub(super) fn egress_fetch(request: &Request) -> Result<Response, Error> {
    with(|host| {
        let (address, port) = match request.url.split_once("://") {
            Some(("https", rest)) => (rest, 443),
            Some(("http", rest)) => (rest, 80),
            _ => return Err(Error::Invalid(format!("`{}` is no address", request.url))),
        };
        let address = address.split(['/', '?']).next().unwrap_or_default();
        let address = match address.contains(':') {
            true => address.to_owned(),
            false => format!("{address}:{port}"),
        };
        allowed(host, &format!("net.connect.{address}"))?;
        let answer = host.answers.get(&request.url).cloned();
        answer.ok_or_else(|| Error::Failed(format!("nobody answers at `{}`", request.url)))
    })
}
