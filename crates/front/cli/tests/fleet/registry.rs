//! A registry that has every image, in the clear, on this machine.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};

use fluffy_base::Digest;

const CONFIG: &str =
    r#"{"architecture":"amd64","os":"linux","config":{},"rootfs":{"type":"layers","diff_ids":[]}}"#;

/// Starts it; where it is. It ends with the process.
pub(crate) fn start() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer(stream));
        }
    });
    address
}

/// Another image for every name, by a note in its manifest.
fn manifest(name: &str) -> String {
    format!(
        r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:{}","size":{}}},"layers":[],"annotations":{{"name":"{name}"}}}}"#,
        Digest::of(CONFIG.as_bytes()),
        CONFIG.len()
    )
}

fn answer(stream: TcpStream) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).unwrap_or(0) == 0 {
                return;
            }
        }
        let mut words = head.split_whitespace();
        let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let (kind, body) = match path.rsplit_once('/') {
            Some((rest, _)) if rest.ends_with("/blobs") => {
                ("application/octet-stream", CONFIG.to_owned())
            }
            Some((rest, name)) if rest.ends_with("/manifests") => {
                ("application/vnd.oci.image.manifest.v1+json", manifest(name))
            }
            _ => ("application/json", "{}".to_owned()),
        };
        let shown = if method == "HEAD" { "" } else { body.as_str() };
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\
             docker-content-digest: sha256:{}\r\n\r\n{shown}",
            body.len(),
            Digest::of(body.as_bytes()),
        );
        if reader.get_mut().write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}
