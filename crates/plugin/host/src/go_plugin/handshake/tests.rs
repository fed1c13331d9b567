//! Lines of plugins, good and bad.

use proptest::prelude::*;

use super::*;

fn refused(line: &str) -> String {
    parse(line.as_bytes()).unwrap_err().to_string()
}

#[test]
fn a_line_of_go_plugin_is_read() {
    let certificate = STANDARD_NO_PAD.encode([7; 600]);
    let plain = Handshake {
        socket: "/m/plugin123".into(),
        certificate: None,
    };
    for line in [
        "1|1|unix|/m/plugin123|grpc|",
        "1|1|unix|/m/plugin123|grpc",
        "  1|1|unix|/m/plugin123|grpc|\r",
        "1|1|unix|/m/plugin123|grpc|not a certificate",
        "1|1|unix|/m/plugin123|grpc||false",
    ] {
        assert_eq!(parse(line.as_bytes()).as_ref(), Ok(&plain), "{line}");
    }
    let line = format!("1|1|unix|/m/plugin123|grpc|{certificate}");
    assert_eq!(
        parse(line.as_bytes()).unwrap().certificate,
        Some(vec![7; 600])
    );
}

#[test]
fn whatever_was_not_offered_is_refused_by_name() {
    let long = "=".repeat(51);
    let cases = [
        ("", "no handshake"),
        ("hello", "no handshake but `hello`"),
        ("1|1|unix", "no handshake"),
        ("a|b|c|d", "no handshake"),
        ("\u{1b}[31m|||", "\\u{1b}[31m"),
        ("2|1|unix|/m/s|grpc|", "version `2` of go-plugin's core"),
        ("1|2|unix|/m/s|grpc|", "version `2` of the contract"),
        ("1|x|unix|/m/s|grpc|", "version `x` of the contract"),
        ("1|1|unix|/m/s", "net/rpc"),
        ("1|1|unix|/m/s|netrpc|", "net/rpc"),
        ("1|1|unix|/m/s|http|", "speaks `http`"),
        ("1|1|udp|127.0.0.1:1|grpc|", "network `udp`"),
        (
            "1|1|tcp|0.0.0.0:1234|grpc|",
            "not an address of the loopback",
        ),
        (
            "1|1|tcp|10.0.0.1:1234|grpc|",
            "not an address of the loopback",
        ),
        (
            "1|1|tcp|localhost:1234|grpc|",
            "not an address of the loopback",
        ),
        ("1|1|tcp|127.0.0.1:1234|grpc|", "nobody else can reach"),
        ("1|1|tcp|[::1]:1234|grpc|", "nobody else can reach"),
        ("1|1|unix|m/s|grpc|", "no absolute path"),
        ("1|1|unix||grpc|", "no absolute path"),
        ("1|1|unix|@abstract|grpc|", "no absolute path"),
        ("1|1|unix|/m/\0s|grpc|", "no absolute path"),
        ("1|1|unix|/m/s|grpc||true", "multiplexes"),
    ];
    for (line, why) in cases {
        let said = refused(line);
        assert!(said.contains(why), "{line:?}: {said}");
    }
    let bad = format!("1|1|unix|/m/s|grpc|{long}!");
    assert!(refused(&bad).contains("certificate"), "{}", refused(&bad));
    let over = "x".repeat(MAX_LINE + 1);
    assert_eq!(parse(over.as_bytes()), Err(HandshakeError::TooLong));
    assert!(refused(&over[1..]).len() < 200);
}

proptest! {
    /// Nothing a plugin prints does more than be refused, in few harmless words.
    #[test]
    fn no_line_is_trouble(
        start in "(1\\|)?(1\\|)?(unix\\||tcp\\|)?",
        rest in proptest::collection::vec(any::<u8>(), 0..400),
    ) {
        let mut line = start.into_bytes();
        line.extend(rest);
        match parse(&line) {
            Ok(handshake) => prop_assert!(handshake.socket.is_absolute()),
            Err(error) => {
                let words = error.to_string();
                prop_assert!(words.len() < 1_200, "{words}");
                prop_assert!(words.is_ascii(), "{words}");
            }
        }
    }
}
