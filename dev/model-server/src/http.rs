//! Just enough HTTP/1.1 to be in full control of every byte.
//!
//! Reads one request with a `content-length`, writes one response and closes.
//! A framework would not let a test cut a chunk in half. Never for anything
//! but tests. Next: `server`, which decides what is written.

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::server::Received;

/// The largest head and body that are read.
const MAX_HEAD: usize = 64 << 10;
const MAX_BODY: usize = 64 << 20;

/// A connection, with or without TLS.
pub(crate) trait Connection: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Connection for T {}

/// Reads one request; none if the peer closed first.
pub(crate) async fn read(stream: &mut dyn Connection) -> Result<Option<Received>> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = find_end(&bytes) {
            break end;
        }
        if bytes.len() > MAX_HEAD {
            bail!("the head is too long");
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Ok(None);
        }
    };
    let mut slots = [httparse::EMPTY_HEADER; 64];
    let mut head = httparse::Request::new(&mut slots);
    head.parse(&bytes).context("the head is no HTTP")?;
    let headers: Vec<(String, String)> = (head.headers.iter())
        .map(|header| {
            let value = String::from_utf8_lossy(header.value).into_owned();
            (header.name.to_ascii_lowercase(), value)
        })
        .collect();
    let mut received = Received {
        method: head.method.unwrap_or_default().to_owned(),
        path: head.path.unwrap_or_default().to_owned(),
        headers,
        body: Value::Null,
    };
    let length: usize = match received.header("content-length") {
        Some(length) => length.parse().context("the length is no number")?,
        None => 0,
    };
    if length > MAX_BODY {
        bail!("the body is too long");
    }
    let mut body = bytes.split_off(end);
    while body.len() < length {
        if stream.read_buf(&mut body).await? == 0 {
            bail!("the body ended early");
        }
    }
    received.body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    Ok(Some(received))
}

fn find_end(bytes: &[u8]) -> Option<usize> {
    let at = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    Some(at + 4)
}

/// Writes a whole response with a body of JSON.
pub(crate) async fn answer(
    stream: &mut dyn Connection,
    status: u16,
    headers: &[(String, String)],
    body: &str,
) -> Result<()> {
    let mut head = format!(
        "HTTP/1.1 {status} Answer\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         connection: close\r\n",
        body.len()
    );
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.flush().await?;
    Ok(())
}

/// Begins a stream of events.
pub(crate) async fn begin_stream(stream: &mut dyn Connection) -> Result<()> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
                cache-control: no-cache\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    stream.flush().await?;
    Ok(())
}

/// Sends one chunk of a stream.
pub(crate) async fn chunk(stream: &mut dyn Connection, bytes: &[u8]) -> Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
    chunk.extend_from_slice(bytes);
    chunk.extend_from_slice(b"\r\n");
    stream.write_all(&chunk).await?;
    stream.flush().await?;
    Ok(())
}

/// Ends a stream of events.
pub(crate) async fn end_stream(stream: &mut dyn Connection) -> Result<()> {
    stream.write_all(b"0\r\n\r\n").await?;
    stream.flush().await?;
    stream.shutdown().await?;
    Ok(())
}
