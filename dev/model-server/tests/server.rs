//! What the server refuses, keeps and serves, without any client of ours.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};

use fluffy_model_server::{
    Delivery, Fault, Format, ModelServer, Piece, Quirk, Reply, Stop, Tokens,
};
use serde_json::{Value, json};

/// Sends a request and reads all of the answer.
fn ask(address: SocketAddr, path: &str, body: &Value) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn requests_that_vendors_refuse_are_refused() {
    let user = json!({"role": "user", "content": "x"});
    let chat = |messages: Value| json!({"stream": true, "max_tokens": 9, "messages": messages});
    let claude = chat;
    let call = json!({"id": "c", "function": {"name": "f", "arguments": "{}"}});
    let made = json!({"role": "assistant", "tool_calls": [call]});
    let used = json!({"role": "assistant", "content": [{"type": "tool_use", "id": "u", "name": "f", "input": {}}]});
    let unsigned = json!({"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": ""}]});
    let marked = json!([{"type": "text", "text": "x", "cache_control": {}}]);
    let gemini = "/v1beta/models/m:streamGenerateContent?alt=sse";
    let parts = |role: &str, part: Value| json!({"role": role, "parts": [part]});
    let cases = [
        (
            "/v1/chat/completions",
            json!({"stream": false, "max_tokens": 9, "messages": [user]}),
            "only streams",
        ),
        (
            "/v1/chat/completions",
            json!({"stream": true, "messages": [user]}),
            "no limit",
        ),
        ("/v1/chat/completions", chat(json!([])), "no messages"),
        (
            "/v1/chat/completions",
            chat(json!([made, user])),
            "did not have response",
        ),
        (
            "/v1/chat/completions",
            chat(json!([{"role": "tool", "tool_call_id": "c"}])),
            "answers no call",
        ),
        (
            "/v1/chat/completions",
            json!({"stream": true, "max_tokens": 9, "messages": [user], "tools": [{"function": {"name": "fs.read"}}]}),
            "does not match",
        ),
        (
            "/v1/responses",
            json!({"stream": true, "input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]}),
            "No tool output",
        ),
        (
            "/v1/responses",
            json!({"stream": true, "input": [{"type": "function_call_output", "call_id": "c"}]}),
            "No tool call",
        ),
        (
            "/v1/responses",
            json!({"stream": true, "input": [{"type": "reasoning", "id": "r"}]}),
            "could not be verified",
        ),
        (
            "/v1/responses",
            json!({"stream": true, "input": [{"role": "assistant", "content": [{"type": "input_text", "text": "x"}]}]}),
            "is supported",
        ),
        (
            "/v1/messages",
            json!({"stream": true, "messages": [user]}),
            "max_tokens",
        ),
        ("/v1/messages", claude(json!([])), "at least one"),
        (
            "/v1/messages",
            claude(json!([{"role": "assistant", "content": "x"}])),
            "first message",
        ),
        (
            "/v1/messages",
            claude(json!([user, used])),
            "without tool_result",
        ),
        (
            "/v1/messages",
            claude(
                json!([user, used, user, {"role": "user", "content": [{"type": "text", "text": "x"}]}]),
            ),
            "without tool_result",
        ),
        ("/v1/messages", claude(json!([user, unsigned])), "signature"),
        (
            "/v1/messages",
            claude(json!([{"role": "user", "content": [{"type": "text", "text": " "}]}])),
            "non-empty",
        ),
        (
            "/v1/messages",
            claude(json!([
                {"role": "user", "content": marked}, {"role": "user", "content": marked},
                {"role": "user", "content": marked}, {"role": "user", "content": marked},
                {"role": "user", "content": marked},
            ])),
            "maximum of 4",
        ),
        (gemini, json!({"contents": []}), "not specified"),
        (
            gemini,
            json!({"contents": [parts("model", json!({"functionCall": {"name": "f"}}))]}),
            "thought_signature",
        ),
        (
            gemini,
            json!({"contents": [parts("model", json!({"functionCall": {"name": "f"}, "thoughtSignature": "s"}))]}),
            "number of function response",
        ),
        (
            gemini,
            json!({"contents": [parts("assistant", json!({"text": "x"}))]}),
            "valid role",
        ),
    ];
    let server = ModelServer::thinking(|_| Reply::text("taken")).unwrap();
    for (path, body, wanted) in &cases {
        let answer = ask(server.address(), path, body);
        assert!(
            answer.starts_with("HTTP/1.1 400 "),
            "{path} {body}: {answer}"
        );
        assert!(answer.contains(wanted), "{path} {body}: {answer}");
    }
    assert_eq!(server.refused().len(), cases.len());
    assert_eq!(server.received().len(), cases.len());
    let answer = ask(server.address(), "/v1/nothing", &json!({}));
    assert!(answer.starts_with("HTTP/1.1 404 "));
    let answer = ask(server.address(), "/v1/messages", &claude(json!([user])));
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let last = server.received().pop().unwrap();
    assert_eq!(
        (last.header("host"), last.method.as_str()),
        (Some("x"), "POST")
    );
    assert_eq!(last.body["messages"][0]["content"], "x");
}

#[test]
fn a_connection_dies_in_the_middle_of_a_chunked_body() {
    let server =
        ModelServer::scripted(vec![Reply::failing(Fault::DieAfter { events: 2 })]).unwrap();
    let body = json!({"stream": true, "input": "x"});
    let answer = ask(server.address(), "/v1/responses", &body);
    assert!(
        answer.contains("response.created") && !answer.ends_with("0\r\n\r\n"),
        "{answer}"
    );
}

#[test]
fn the_program_serves_a_script_again_and_again() {
    let reply = Reply {
        stop: Stop::Natural,
        quirks: vec![Quirk::NoDone],
        ..Reply::default()
            .with(Piece::Text("scripted".into()))
            .and_call("fs.read", json!({"path": "/x"}))
            .counting(Tokens::default())
            .delivered(Delivery::Whole)
    };
    let script = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(script.path(), serde_json::to_string(&vec![reply]).unwrap()).unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_fluffy-model-server"))
        .arg(script.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
    let urls: Vec<String> = Format::ALL
        .iter()
        .map(|_| lines.next().unwrap().unwrap())
        .collect();
    let (name, url) = urls[1].split_once(' ').unwrap();
    assert_eq!(name, "Chat");
    let address = url
        .strip_prefix("http://")
        .unwrap()
        .strip_suffix("/v1")
        .unwrap();
    let body =
        json!({"stream": true, "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]});
    for _ in 0..2 {
        let answer = ask(address.parse().unwrap(), "/v1/chat/completions", &body);
        assert!(
            answer.contains("fs__read") && answer.contains("tool_calls"),
            "{answer}"
        );
    }
    program.kill().unwrap();
    program.wait().unwrap();
}
