//! The real program of the tests: does what its first argument says.
//!
//! Compiled by the tests for `wasm32-wasip1` and `wasm32-wasip2`. It tries and
//! tells; whether it may is not its business.

use std::fs;
use std::io::{self, Read, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match attempt(arguments.get(1..).unwrap_or_default()) {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn attempt(arguments: &[&str]) -> io::Result<String> {
    match arguments {
        ["echo", rest @ ..] => {
            let mut input = String::new();
            io::stdin().read_to_string(&mut input)?;
            Ok(format!("{} {input}", rest.join("+")))
        }
        ["variables"] => Ok(std::env::vars()
            .map(|(name, value)| format!("{name}={value};"))
            .collect()),
        ["read", path] => fs::read_to_string(path),
        ["write", path] => fs::write(path, "written").map(|()| String::new()),
        ["rename", from, to] => fs::rename(from, to).map(|()| String::new()),
        ["link", from, to] => fs::hard_link(from, to).map(|()| String::new()),
        ["remove", path] => fs::remove_file(path).map(|()| String::new()),
        ["make", path] => fs::create_dir(path).map(|()| String::new()),
        ["connect", address] => {
            std::net::TcpStream::connect(address).map(|_| "connected".to_owned())
        }
        ["sleep", millis] => {
            let millis = millis.parse().map_err(io::Error::other)?;
            std::thread::sleep(std::time::Duration::from_millis(millis));
            Ok("slept".to_owned())
        }
        ["flood"] => loop {
            io::stdout().write_all(&[b'x'; 1000])?;
        },
        ["hoard"] => {
            let mut hoard = Vec::new();
            loop {
                hoard.push(vec![1u8; 1 << 20]);
            }
        }
        _ => Err(io::Error::other("unknown attempt")),
    }
}
