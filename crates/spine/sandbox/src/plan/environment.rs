//! The variables of a sandbox: an allow-list, never the caller's own.
//!
//! Those that name the proxy are a convenience and not the guard: a program
//! that ignores them finds a network without a way out.

use std::collections::BTreeMap;

use fluffy_contract::isolation::SandboxSpec;

use super::{HOME, Host, PROXY_PORT, PlanError, Settings};
use crate::template::Network;

/// Variables that change what code a program loads are never passed on.
pub(crate) fn forbidden(name: &str) -> bool {
    name.is_empty()
        || name.len() > 256
        || name.contains(['=', '\0'])
        || name.starts_with("LD_")
        || name.starts_with("DYLD_")
}

/// The whole environment of a sandbox's processes, from an allow-list.
pub(super) fn of(
    spec: &SandboxSpec,
    settings: &Settings,
    host: &Host,
    network: Network,
) -> Result<BTreeMap<String, String>, PlanError> {
    let mut path: Vec<&str> = host
        .path
        .iter()
        .filter(|entry| settings.tools.iter().any(|tool| entry.starts_with(tool)))
        .filter_map(|entry| entry.to_str())
        .filter(|entry| !entry.contains(':'))
        .collect();
    path.extend([
        "/usr/local/bin",
        "/usr/bin",
        "/bin",
        "/usr/local/sbin",
        "/usr/sbin",
        "/sbin",
    ]);
    let mut variables: BTreeMap<String, String> = [
        ("HOME", HOME),
        ("LANG", "C.UTF-8"),
        ("LOGNAME", "fluffy"),
        ("PATH", &path.join(":")),
        ("SHELL", "/bin/sh"),
        ("TMPDIR", "/tmp"),
        ("USER", "fluffy"),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .collect();
    if network == Network::Restricted {
        variables.extend(proxy_variables(PROXY_PORT));
    }
    for (name, value) in &spec.environment {
        if forbidden(name) || value.contains('\0') {
            return Err(PlanError::Variable { name: name.clone() });
        }
        variables.insert(name.clone(), value.clone());
    }
    Ok(variables)
}

/// What is reached without the proxy: the sandbox's own loopback.
const DIRECT: &str = "localhost,127.0.0.1,::1";

/// The variables that lead programs to a proxy on this port of the loopback.
pub fn proxy_variables(port: u16) -> impl Iterator<Item = (String, String)> {
    let proxy = format!("http://127.0.0.1:{port}");
    // curl reads `http_proxy` in small letters only, because a CGI program's
    // `HTTP_PROXY` can come from a request's `Proxy` header; others read only
    // the capitals. `ALL_PROXY` is an HTTP proxy too, since nothing here
    // speaks SOCKS. git, pip, npm, cargo and Go all read these.
    [
        ("HTTP_PROXY", proxy.clone()),
        ("HTTPS_PROXY", proxy.clone()),
        ("ALL_PROXY", proxy),
        ("NO_PROXY", DIRECT.to_owned()),
    ]
    .into_iter()
    .flat_map(|(name, value)| {
        [
            (name.to_owned(), value.clone()),
            (name.to_ascii_lowercase(), value),
        ]
    })
    // Node's own `fetch` looks at the variables above only when told to.
    .chain([("NODE_USE_ENV_PROXY".to_owned(), "1".to_owned())])
}
