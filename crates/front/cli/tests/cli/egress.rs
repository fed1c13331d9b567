//! What a sandbox reaches with `--allow`, and what it never does.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fluffy_test_kit::wait_for;

use crate::site::Site;

/// Answers every plain request with one word, until the test ends.
fn greeter() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(stream);
            let mut line = String::new();
            while reader.read_line(&mut line).is_ok_and(|length| length > 2) {
                line.clear();
            }
            let answer = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nhello\n";
            let _ = reader.get_mut().write_all(answer.as_bytes());
        }
    });
    port
}

fn curl(site: &Site, allow: &[&str], arguments: &[&str]) -> (i32, String) {
    let mut words = vec!["sandbox", "run", "--discard"];
    for host in allow {
        words.extend(["--allow", host]);
    }
    words.extend(["--", "curl", "-sS", "--max-time", "20"]);
    words.extend(arguments);
    let finished = site.run(&words);
    (finished.code.unwrap(), finished.stdout + &finished.stderr)
}

#[test]
fn an_allowed_host_is_reached_and_no_other() {
    let site = Site::empty();
    let port = greeter();
    let allow = format!("greeter.test:{port}=127.0.0.1");
    let address = format!("http://greeter.test:{port}/");
    assert_eq!(
        curl(&site, &[&allow], &[&address]),
        (0, "hello\n".to_owned())
    );
    let (code, said) = curl(&site, &[&allow], &["-f", "http://other.test/"]);
    assert_ne!(code, 0, "{said}");
    // Around the proxy there is nothing at all.
    let direct = format!("http://127.0.0.1:{port}/");
    let (code, said) = curl(&site, &[&allow], &["--noproxy", "*", &direct]);
    assert_eq!(code, 7, "{said}");
    let log = site.succeeds(&["audit", "log", "--type", "egress.request", "--json"]);
    assert!(log.contains("\"verdict\":\"allowed\""), "{log}");
    assert!(log.contains("\"verdict\":\"refused\""), "{log}");
}

#[test]
fn a_deny_is_stronger_than_the_flag() {
    let site = Site::empty();
    let port = greeter();
    site.context
        .write(
            "deny.yaml",
            &format!(
                "version: 1\ncapabilities:\n\
                 - {{ name: run, match: {{ action: [sandbox.create, shell.exec] }}, do: allow }}\n\
                 - {{ name: never, match: {{ action: net.connect, host: [\"greeter.test:{port}\"] }}, do: deny, reason: no }}\n"
            ),
        )
        .unwrap();
    site.succeeds(&["init"]);
    site.succeeds(&["policy", "apply", "deny.yaml", "--yes"]);
    let allow = format!("greeter.test:{port}=127.0.0.1");
    let address = format!("http://greeter.test:{port}/");
    let (code, said) = curl(&site, &[&allow], &["-f", &address]);
    assert_ne!(code, 0);
    assert!(!said.contains("hello"), "{said}");
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn tls_goes_through_untouched() {
    let site = Site::empty();
    let folder = site.context.home();
    let made = Command::new("openssl")
        .args([
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
        ])
        .args([
            "-subj",
            "/CN=secure.test",
            "-addext",
            "subjectAltName=DNS:secure.test",
        ])
        .args(["-keyout", "key.pem", "-out", "certificate.pem"])
        .current_dir(&folder)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let certificate = std::fs::read_to_string(folder.join("certificate.pem")).unwrap();
    site.context.write("certificate.pem", &certificate).unwrap();
    // A port that was free a moment ago; the server says if it is not any more.
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let server = Command::new("openssl")
        .args([
            "s_server",
            "-quiet",
            "-www",
            "-key",
            "key.pem",
            "-cert",
            "certificate.pem",
        ])
        .args(["-accept", &format!("127.0.0.1:{port}")])
        .current_dir(&folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let _server = Server(server);
    let listens = || {
        std::net::TcpStream::connect(("127.0.0.1", port))
            .ok()
            .map(drop)
    };
    wait_for("the TLS server", Duration::from_secs(30), listens).unwrap();
    let allow = format!("secure.test:{port}=127.0.0.1");
    let address = format!("https://secure.test:{port}/");
    let (code, said) = curl(&site, &[&allow], &["--cacert", "certificate.pem", &address]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("s_server"), "{said}");
}
