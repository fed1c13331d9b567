//! `fluffy-model-server SCRIPT [PORT]`: serves a script of replies.
//!
//! The script is a JSON list of replies. Prints the base URL of each format
//! and runs until it is ended. For trying a client by hand, never in a product.

use std::io::Write as _;

use anyhow::{Context as _, Result};
use fluffy_model_server::{Format, ModelServer, Options, Reply};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments
        .next()
        .context("which script? give the path of a JSON list of replies")?;
    let port = match arguments.next() {
        Some(port) => port.parse().context("the port is no number")?,
        None => 0,
    };
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read `{path}`"))?;
    let replies: Vec<Reply> =
        serde_json::from_str(&text).with_context(|| format!("`{path}` is no list of replies"))?;
    let options = Options {
        port,
        ..Options::default()
    };
    // Over and over, so that it need not be started again for every try.
    let mut next = 0;
    let server = ModelServer::start(options, move |_| {
        let reply = replies
            .get(next % replies.len().max(1))
            .cloned()
            .unwrap_or_default();
        next += 1;
        reply
    })?;
    let mut out = std::io::stdout().lock();
    for format in Format::ALL {
        writeln!(out, "{format:?} {}", server.base_url(format))?;
    }
    out.flush()?;
    loop {
        std::thread::park();
    }
}
