//! A registry with one image, whose only layer waits until it is let go.
//!
//! Speaks just enough of the registry's HTTP for a `pull`, on a port of its own.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

use fluffy_base::Digest;
use serde_json::json;

/// A registry that serves until the process ends.
pub struct Registry {
    address: SocketAddr,
    gate: Arc<(Mutex<bool>, Condvar)>,
}

impl Registry {
    /// Serves an image whose files are this archive.
    pub fn serve(archive: Vec<u8>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        let (layer, pages) = pages(archive);
        let site = Arc::new((layer, pages, Arc::clone(&gate)));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let site = Arc::clone(&site);
                // A client that goes away is its own affair.
                std::thread::spawn(move || answer(stream, &site.0, &site.1, &site.2).ok());
            }
        });
        Self { address, gate }
    }

    /// The image's name.
    pub fn image(&self) -> String {
        format!("{}/team/tool:1", self.address)
    }

    /// Lets the layer go out.
    pub fn let_go(&self) {
        let (open, opened) = &*self.gate;
        *open.lock().unwrap() = true;
        opened.notify_all();
    }
}

struct Page {
    kind: &'static str,
    digest: String,
    body: Vec<u8>,
}

/// The path of the layer, and all pages by their path.
fn pages(archive: Vec<u8>) -> (String, HashMap<String, Page>) {
    const MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
    const CONFIG: &str = "application/vnd.docker.container.image.v1+json";
    const LAYER: &str = "application/vnd.docker.image.rootfs.diff.tar";
    let name = |bytes: &[u8]| format!("sha256:{}", Digest::of(bytes));
    let layer = name(&archive);
    let config = json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        "os": "linux",
        "config": {},
        "rootfs": { "type": "layers", "diff_ids": [layer] },
    });
    let config = config.to_string().into_bytes();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": { "mediaType": CONFIG, "size": config.len(), "digest": name(&config) },
        "layers": [{ "mediaType": LAYER, "size": archive.len(), "digest": layer }],
    });
    let manifest = manifest.to_string().into_bytes();
    let mut pages = HashMap::new();
    let mut put = |path: String, kind, body: Vec<u8>| {
        let digest = name(&body);
        pages.insert(path, Page { kind, digest, body });
    };
    let manifests = "/v2/team/tool/manifests";
    put(format!("{manifests}/1"), MANIFEST, manifest.clone());
    put(
        format!("{manifests}/{}", name(&manifest)),
        MANIFEST,
        manifest,
    );
    let blobs = "/v2/team/tool/blobs";
    put(format!("{blobs}/{}", name(&config)), CONFIG, config);
    let layer = format!("{blobs}/{layer}");
    put(layer.clone(), "application/octet-stream", archive);
    put("/v2/".to_owned(), "application/json", b"{}".to_vec());
    (layer, pages)
}

fn answer(
    stream: TcpStream,
    layer: &str,
    pages: &HashMap<String, Page>,
    gate: &(Mutex<bool>, Condvar),
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut first = String::new();
        if reader.read_line(&mut first)? == 0 {
            return Ok(());
        }
        let mut header = String::from("-");
        while !header.trim().is_empty() {
            header.clear();
            reader.read_line(&mut header)?;
        }
        let mut words = first.split_whitespace();
        let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        if path == layer && method == "GET" {
            let (open, opened) = gate;
            let open = open.lock().unwrap();
            drop(opened.wait_while(open, |open| !*open).unwrap());
        }
        let stream = reader.get_mut();
        let Some(page) = pages.get(path) else {
            stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?;
            continue;
        };
        write!(
            stream,
            "HTTP/1.1 200 OK\r\nDocker-Distribution-Api-Version: registry/2.0\r\n\
             Content-Type: {}\r\nDocker-Content-Digest: {}\r\nContent-Length: {}\r\n\r\n",
            page.kind,
            page.digest,
            page.body.len()
        )?;
        if method == "GET" {
            stream.write_all(&page.body)?;
        }
    }
}
