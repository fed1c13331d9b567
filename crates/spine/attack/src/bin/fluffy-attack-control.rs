//! Plays the corpus without any isolation, to show that the attacks work.
//!
//! Runs only inside a throwaway sandbox, whose folder for canaries is its one
//! argument; prints the report as JSON. Behind the attacks on the proxy stands
//! a naive one. Must never start where [`fluffy_attack::THROWAWAY`] is missing.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::ExitCode;
use std::thread;

use fluffy_attack::{CommandSubject, Egress, Word, all, run_all};

fn main() -> ExitCode {
    match std::env::args_os().nth(1) {
        Some(base) if Path::new(fluffy_attack::THROWAWAY).exists() => {
            control(Path::new(&base)).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
        }
        Some(_) | None => ExitCode::from(2),
    }
}

fn control(base: &Path) -> io::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let proxy = format!("HTTPS_PROXY=http://{}", listener.local_addr()?);
    thread::spawn(move || serve(&listener));
    let worker = std::env::current_exe()?.with_file_name("fluffy-attack-worker");
    let worker = worker.to_string_lossy().into_owned();
    let subject = CommandSubject {
        egress: Egress::Proxy,
        words: vec![
            Word::Text("/usr/bin/env".to_owned()),
            Word::Text(proxy),
            Word::Text(worker),
            Word::Arguments,
        ],
        ..CommandSubject::bare(&[])
    };
    let attacks: Vec<_> = all().collect();
    let report = run_all(&attacks, &[&subject], base, |_, _, _| {});
    let text = serde_json::to_vec(&report)?;
    io::stdout().lock().write_all(&text)
}

/// Believes everybody and connects to everything.
fn serve(listener: &TcpListener) {
    for client in listener.incoming().flatten() {
        thread::spawn(move || {
            // A client that goes away is no concern of a naive proxy.
            let _served = forward(client);
        });
    }
}

fn forward(mut client: TcpStream) -> io::Result<()> {
    let mut buffer = vec![0_u8; 16 * 1024];
    let length = client.read(&mut buffer)?;
    let head = buffer.get(..length).unwrap_or_default();
    let text = String::from_utf8_lossy(head).into_owned();
    let target = text.split(' ').nth(1).unwrap_or_default();
    let tunnel = text.starts_with("CONNECT ");
    let authority = target.trim_start_matches("http://").split('/').next();
    let port = authority.and_then(|authority| authority.rsplit(':').next()?.parse().ok());
    // Every name is this machine here: there is nobody else.
    let mut server = TcpStream::connect(("127.0.0.1", port.unwrap_or(0)))?;
    if tunnel {
        client.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
    } else {
        server.write_all(head)?;
    }
    let mut upward = (client.try_clone()?, server.try_clone()?);
    let up = thread::spawn(move || {
        let copied = io::copy(&mut upward.0, &mut upward.1);
        let _closed = upward.1.shutdown(Shutdown::Write);
        copied
    });
    io::copy(&mut server, &mut client)?;
    let _joined = up.join();
    Ok(())
}
