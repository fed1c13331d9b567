//! Failures that the sandbox caused, not the code.
//!
//! They are reported as what they are and never count as red.

/// Whether a test failed because it could not reach a server.
///
/// Only shapes that a language's own errors have count, so that a test about
/// error messages is not mistaken for one that hit the network.
pub(super) fn is_refused_socket(message: &str) -> bool {
    const SHAPES: &[&str] = &[
        // Rust.
        "kind: ConnectionRefused",
        "kind: NetworkUnreachable",
        "kind: HostUnreachable",
        "Connection refused (os error ",
        "Network is unreachable (os error ",
        "failed to lookup address information",
        // Python.
        "ConnectionRefusedError: [Errno",
        "OSError: [Errno 101] Network is unreachable",
        "OSError: [Errno 113] No route to host",
        "socket.gaierror: [Errno",
        "NewConnectionError(",
        "urllib.error.URLError: <urlopen error [Errno",
        // Node.
        "connect ECONNREFUSED",
        "connect ENETUNREACH",
        "connect EHOSTUNREACH",
        "connect EPERM",
        "connect EACCES",
        "getaddrinfo ENOTFOUND",
        "getaddrinfo EAI_AGAIN",
        // Go.
        ": connect: connection refused",
        ": connect: network is unreachable",
        ": socket: operation not permitted",
        ": no such host",
        ": server misbehaving",
    ];
    SHAPES.iter().any(|shape| message.contains(shape))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_sockets_are_told_from_words_about_them() {
        for message in [
            "called `Result::unwrap()` on an `Err` value: Os { code: 111, kind: ConnectionRefused, message: \"Connection refused\" }",
            "ConnectionRefusedError: [Errno 111] Connection refused",
            "error: 'connect ECONNREFUSED 127.0.0.1:1'",
            "config_test.go:29: dial tcp 127.0.0.1:1: connect: connection refused",
            "socket.gaierror: [Errno -3] Temporary failure in name resolution",
        ] {
            assert!(is_refused_socket(message), "{message}");
        }
        for message in [
            "AssertionError: assert 'Connection refused' in 'ok'",
            "left: \"refused\" right: \"connection refused\"",
            "network is unreachable",
        ] {
            assert!(!is_refused_socket(message), "{message}");
        }
    }
}
