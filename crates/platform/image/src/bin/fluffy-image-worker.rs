//! The worker alone, for the tests of this crate, and attacks from inside it.
//!
//! The product never ships it: `fluffy` starts itself with a hidden argument
//! and calls the same function.

use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        [] => fluffy_image::worker::run(),
        // The control: the same without walls.
        ["attack", attack, target] => attempt(attack, target),
        ["attack-walled", attack, target] => {
            let Ok(socket) = fluffy_image::worker::put_walls_up(1 << 20) else {
                return ExitCode::from(99);
            };
            // Whoever started it is there until the end.
            std::mem::forget(socket);
            attempt(attack, target)
        }
        _ => ExitCode::from(2),
    }
}

/// Tries one thing; success is success.
fn attempt(attack: &str, target: &str) -> ExitCode {
    let worked = match attack {
        "nothing" => true,
        "read" => std::fs::read(target).is_ok(),
        "write" => std::fs::write(target, "pwned").is_ok(),
        "connect" => TcpStream::connect(target).is_ok(),
        "unix" => UnixStream::connect(target).is_ok(),
        "run" => Command::new(target).status().is_ok(),
        // Opens nothing, and Landlock does not look at it: only the filter does.
        "enter" => std::env::set_current_dir(target).is_ok(),
        "memory" => {
            let mut all: Vec<u8> = Vec::new();
            let got = all.try_reserve_exact(2 << 30).is_ok();
            got && std::hint::black_box(all.capacity()) > 0
        }
        // Root may; whoever is nobody may not.
        "user" => rustix::thread::set_thread_uid(rustix::process::Uid::ROOT).is_ok(),
        _ => false,
    };
    ExitCode::from(u8::from(!worked))
}
