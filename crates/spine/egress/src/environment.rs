//! The variables that lead programs in a sandbox to the proxy.
//!
//! They are a convenience, never the guard: a program that ignores them finds
//! a network without a way out. Who starts the sandbox sets them.

/// What is reached without the proxy: the sandbox's own loopback.
const DIRECT: &str = "localhost,127.0.0.1,::1";

/// The variables for a proxy on this port of the sandbox's loopback.
#[must_use]
pub fn environment(port: u16) -> Vec<(&'static str, String)> {
    let proxy = format!("http://127.0.0.1:{port}");
    // curl reads `http_proxy` in small letters only, because a CGI program's
    // `HTTP_PROXY` can come from a request's `Proxy` header; others read only
    // the capitals. `ALL_PROXY` is an HTTP proxy too, since nothing here
    // speaks SOCKS. git, pip, npm, cargo and Go all read these.
    let names = [
        "HTTP_PROXY",
        "http_proxy",
        "HTTPS_PROXY",
        "https_proxy",
        "ALL_PROXY",
        "all_proxy",
    ];
    let mut variables: Vec<_> = names.map(|name| (name, proxy.clone())).into();
    variables.push(("NO_PROXY", DIRECT.to_owned()));
    variables.push(("no_proxy", DIRECT.to_owned()));
    // Node's own `fetch` looks at the variables above only when told to.
    variables.push(("NODE_USE_ENV_PROXY", "1".to_owned()));
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_proxy_variable_is_there_in_both_cases() {
        let variables = environment(3128);
        let get = |name: &str| variables.iter().find(|(each, _)| *each == name);
        for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"] {
            let upper = get(name).map(|(_, value)| value);
            assert!(upper.is_some());
            assert_eq!(upper, get(&name.to_lowercase()).map(|(_, value)| value));
        }
        assert_eq!(get("https_proxy").unwrap().1, "http://127.0.0.1:3128");
    }
}
