//! Requests in every format, field by field.

use fluffy_contract::model::{Effort, Message, Opaque, Role};
use fluffy_contract::tool::{ToolDescription, ToolOutcome};
use serde_json::json;

use super::*;

fn settings(wire: Wire, url: &str) -> ProviderSettings {
    ProviderSettings {
        provider: "p".into(),
        wire,
        base_url: url.parse().unwrap(),
    }
}

fn say(role: Role, parts: Vec<Part>) -> Message {
    Message { role, parts }
}

fn text(text: &str) -> Part {
    Part::Text {
        text: text.into(),
        opaque: None,
    }
}

fn call(id: &str, name: &str, opaque: Option<Opaque>) -> Part {
    Part::ToolCall(ToolCall {
        id: id.into(),
        name: name.into(),
        arguments: json!({"path": "/a"}),
        opaque,
    })
}

fn result(id: &str, outcome: ToolOutcome) -> Part {
    Part::ToolResult {
        call: id.into(),
        content: format!("result of {id}"),
        outcome,
    }
}

fn reasoning(wire: Wire, value: Value) -> Part {
    let wire = wire.name().to_owned();
    Part::Reasoning {
        text: "thought".into(),
        opaque: Some(Opaque {
            wire,
            model: String::new(),
            value,
        }),
    }
}

/// A conversation that two providers took part in.
fn turn() -> Turn {
    let signed = json!({"type": "thinking", "thinking": "thought", "signature": "s"});
    let encrypted =
        json!({"type": "reasoning", "id": "rs", "encrypted_content": "e", "summary": []});
    let gemini = Opaque {
        wire: "gemini".into(),
        model: String::new(),
        value: json!({"id": "g1", "thoughtSignature": "sig"}),
    };
    Turn {
        model: "gpt-5".into(),
        messages: vec![
            say(Role::System, vec![text("Be brief.")]),
            say(Role::User, vec![text("go")]),
            say(
                Role::Assistant,
                vec![
                    reasoning(Wire::Anthropic, signed),
                    reasoning(Wire::Responses, encrypted),
                    text(""),
                    text("Reading."),
                    call("c.1", "fs.read", None),
                    call("c2", "fs.read", Some(gemini)),
                ],
            ),
            say(Role::Tool, vec![result("c.1", ToolOutcome::Done)]),
            say(Role::Tool, vec![result("c2", ToolOutcome::Failed)]),
            say(Role::User, vec![text("and now?")]),
        ],
        tools: vec![ToolDescription {
            name: "fs.read".into(),
            summary: "reads".into(),
            parameters: json!({"type": "object"}),
        }],
        max_output_tokens: 5000,
        effort: None,
        conversation: Some("c-1".into()),
    }
}

fn body(turn: &Turn, wire: Wire) -> Value {
    let request = encode(turn, &settings(wire, "http://localhost:1/base")).unwrap();
    assert!(request.path.starts_with("/base/"));
    serde_json::from_slice(&request.body).unwrap()
}

#[test]
fn a_responses_request() {
    assert_eq!(
        body(&turn(), Wire::Responses),
        json!({
            "model": "gpt-5",
            "instructions": "Be brief.",
            "input": [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]},
                {"type": "reasoning", "id": "rs", "encrypted_content": "e", "summary": []},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Reading."}]},
                {"type": "function_call", "call_id": "c.1", "name": "fs__read", "arguments": "{\"path\":\"/a\"}"},
                {"type": "function_call", "call_id": "c2", "name": "fs__read", "arguments": "{\"path\":\"/a\"}"},
                {"type": "function_call_output", "call_id": "c.1", "output": "result of c.1"},
                {"type": "function_call_output", "call_id": "c2", "output": "result of c2"},
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "and now?"}]},
            ],
            "tools": [{"type": "function", "name": "fs__read", "description": "reads", "parameters": {"type": "object"}, "strict": false}],
            "stream": true,
            "store": false,
            "include": ["reasoning.encrypted_content"],
            "max_output_tokens": 5000,
            "prompt_cache_key": "c-1",
        })
    );
}

#[test]
fn a_chat_request() {
    assert_eq!(
        body(&turn(), Wire::Chat),
        json!({
            "model": "gpt-5",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "go"},
                {"role": "assistant", "content": "Reading.", "tool_calls": [
                    {"id": "c.1", "type": "function", "function": {"name": "fs__read", "arguments": "{\"path\":\"/a\"}"}},
                    {"id": "c2", "type": "function", "function": {"name": "fs__read", "arguments": "{\"path\":\"/a\"}"}},
                ]},
                {"role": "tool", "tool_call_id": "c.1", "content": "result of c.1"},
                {"role": "tool", "tool_call_id": "c2", "content": "result of c2"},
                {"role": "user", "content": "and now?"},
            ],
            "tools": [{"type": "function", "function": {"name": "fs__read", "description": "reads", "parameters": {"type": "object"}}}],
            "stream": true,
            "stream_options": {"include_usage": true},
            "max_tokens": 5000,
        })
    );
    let vendor = encode(&turn(), &settings(Wire::Chat, "https://api.openai.com/v1")).unwrap();
    assert_eq!(vendor.path, "/v1/chat/completions");
    let vendor: Value = serde_json::from_slice(&vendor.body).unwrap();
    assert_eq!(vendor["max_completion_tokens"], 5000);
    assert_eq!(vendor["prompt_cache_key"], "c-1");
    assert_eq!(vendor["max_tokens"], Value::Null);
}

#[test]
fn an_anthropic_request() {
    let mark = json!({"type": "ephemeral"});
    assert_eq!(
        body(&turn(), Wire::Anthropic),
        json!({
            "model": "gpt-5",
            "max_tokens": 5000,
            "stream": true,
            "system": [{"type": "text", "text": "Be brief.", "cache_control": mark}],
            "tools": [{"name": "fs__read", "description": "reads", "input_schema": {"type": "object"}, "cache_control": mark}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "go", "cache_control": mark}]},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "thought", "signature": "s"},
                    {"type": "text", "text": "Reading."},
                    {"type": "tool_use", "id": "c_1", "name": "fs__read", "input": {"path": "/a"}},
                    {"type": "tool_use", "id": "c2", "name": "fs__read", "input": {"path": "/a"}},
                ]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "c_1", "content": "result of c.1", "is_error": false},
                    {"type": "tool_result", "tool_use_id": "c2", "content": "result of c2", "is_error": true},
                    {"type": "text", "text": "and now?", "cache_control": mark},
                ]},
            ],
        })
    );
}

#[test]
fn thoughts_go_back_to_the_model_that_signed_them_alone() {
    let sends_thoughts = |signed_by: &str| {
        let mut turn = turn();
        for part in turn.messages.iter_mut().flat_map(|m| &mut m.parts) {
            if let Part::Reasoning { opaque, .. } = part {
                opaque.as_mut().unwrap().model = signed_by.to_owned();
            }
        }
        body(&turn, Wire::Anthropic)
            .to_string()
            .contains("signature")
    };
    assert!(sends_thoughts("gpt-5"));
    assert!(!sends_thoughts("claude-opus-5-5"));
}

#[test]
fn a_gemini_request() {
    let request = encode(&turn(), &settings(Wire::Gemini, "https://example.com")).unwrap();
    assert_eq!(
        request.path,
        "/v1beta/models/gpt-5:streamGenerateContent?alt=sse"
    );
    assert_eq!(
        body(&turn(), Wire::Gemini),
        json!({
            "systemInstruction": {"parts": [{"text": "Be brief."}]},
            "contents": [
                {"role": "user", "parts": [{"text": "go"}]},
                {"role": "model", "parts": [
                    {"text": "Reading."},
                    {"functionCall": {"name": "fs__read", "args": {"path": "/a"}}},
                    {"functionCall": {"name": "fs__read", "args": {"path": "/a"}, "id": "g1"}, "thoughtSignature": "sig"},
                ]},
                {"role": "user", "parts": [
                    {"functionResponse": {"name": "fs__read", "response": {"output": "result of c.1"}}},
                    {"functionResponse": {"name": "fs__read", "id": "g1", "response": {"error": "result of c2"}}},
                    {"text": "and now?"},
                ]},
            ],
            "tools": [{"functionDeclarations": [{"name": "fs__read", "description": "reads", "parametersJsonSchema": {"type": "object"}}]}],
            "generationConfig": {"maxOutputTokens": 5000},
        })
    );
}

#[test]
fn effort_is_written_as_each_model_wants_it() {
    let with = |model: &str, wire| {
        let turn = Turn {
            model: model.into(),
            effort: Some(Effort::Medium),
            ..turn()
        };
        body(&turn, wire)
    };
    assert_eq!(with("gpt-5", Wire::Chat)["reasoning_effort"], "medium");
    let responses = with("gpt-5", Wire::Responses);
    assert_eq!(
        responses["reasoning"],
        json!({"effort": "medium", "summary": "auto"})
    );
    let newer = with("claude-opus-5", Wire::Anthropic);
    assert_eq!(newer["thinking"]["type"], "adaptive");
    assert_eq!(newer["output_config"]["effort"], "medium");
    let older = with("claude-haiku-4-5", Wire::Anthropic);
    assert_eq!(
        older["thinking"],
        json!({"type": "enabled", "budget_tokens": 3976})
    );
    let gemini = with("gemini-3-pro", Wire::Gemini);
    assert_eq!(
        gemini["generationConfig"]["thinkingConfig"]["thinkingLevel"],
        "MEDIUM"
    );
    let gemini = with("gemini-2.5-pro", Wire::Gemini);
    assert_eq!(
        gemini["generationConfig"]["thinkingConfig"]["thinkingBudget"],
        8192
    );
}

#[test]
fn older_models_do_not_begin_to_think_among_calls_that_began_without() {
    let mut turn = Turn {
        model: "claude-haiku-4-5".into(),
        effort: Some(Effort::Low),
        ..turn()
    };
    turn.messages.pop();
    assert_eq!(body(&turn, Wire::Anthropic)["thinking"]["type"], "enabled");
    turn.messages[2].parts.remove(0);
    assert_eq!(body(&turn, Wire::Anthropic)["thinking"], Value::Null);
}

#[test]
fn a_call_of_another_model_is_signed_as_such_for_gemini() {
    let mut turn = turn();
    turn.messages[2].parts = vec![call("c.1", "fs.read", None), call("c2", "fs.read", None)];
    let body = body(&turn, Wire::Gemini);
    let parts = &body["contents"][1]["parts"];
    assert_eq!(
        parts[0]["thoughtSignature"],
        "skip_thought_signature_validator"
    );
    assert_eq!(parts[1]["thoughtSignature"], Value::Null);
}

#[test]
fn arguments_that_are_no_object_are_sent_back_as_one() {
    let mut turn = turn();
    if let Part::ToolCall(call) = &mut turn.messages[2].parts[4] {
        call.arguments = json!("{oops");
    }
    let chat = body(&turn, Wire::Chat);
    let arguments = &chat["messages"][2]["tool_calls"][0]["function"]["arguments"];
    assert_eq!(arguments, "{\"invalid\":\"{oops\"}");
}

#[test]
fn what_cannot_be_sent_is_refused() {
    for model in [
        "",
        "a b",
        "x?key=1",
        "../x",
        "a//b",
        "m\u{e9}",
        &"x".repeat(300),
    ] {
        let turn = Turn {
            model: model.into(),
            ..turn()
        };
        let error = encode(&turn, &settings(Wire::Gemini, "https://example.com")).unwrap_err();
        assert!(
            matches!(error, EncodeTurnError::ModelName { .. }),
            "{model}"
        );
    }
    let mut orphan = turn();
    orphan.messages.remove(2);
    let error = encode(&orphan, &settings(Wire::Chat, "https://example.com")).unwrap_err();
    assert!(matches!(error, EncodeTurnError::OrphanResult { call } if call == "c.1"));
    let mut open = turn();
    open.messages.remove(4);
    let error = encode(&open, &settings(Wire::Chat, "https://example.com")).unwrap_err();
    assert!(matches!(error, EncodeTurnError::OpenCall { call } if call == "c2"));
    crate::answer::close_open_calls(&mut open.messages, "interrupted");
    assert!(encode(&open, &settings(Wire::Chat, "https://example.com")).is_ok());
    let mut large = turn();
    large
        .messages
        .push(say(Role::User, vec![text(&"x".repeat(MAX_REQUEST))]));
    let error = encode(&large, &settings(Wire::Chat, "https://example.com")).unwrap_err();
    assert!(matches!(error, EncodeTurnError::TooLarge { .. }));
}
