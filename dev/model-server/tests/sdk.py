"""Drives the vendors' own SDKs against the local server.

Usage: sdk.py RESPONSES_URL CHAT_URL ANTHROPIC_URL GEMINI_URL
Prints one line per format; ends with an exception when anything differs.
"""

import json
import sys

import anthropic
import openai
from google import genai
from google.genai import types

responses_url, chat_url, anthropic_url, gemini_url = sys.argv[1:5]
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
RESULT = "42 grüße"


def expect(what, found, wanted):
    if found != wanted:
        raise SystemExit(f"{what}: found {found!r}, wanted {wanted!r}")


def responses():
    client = openai.OpenAI(api_key="k", base_url=responses_url, max_retries=0)
    tools = [{"type": "function", "name": "fs__read", "parameters": SCHEMA, "strict": False}]
    history = [{"role": "user", "content": "go"}]
    with client.responses.stream(model="m", input=history, tools=tools) as stream:
        kinds = {event.type for event in stream}
        first = stream.get_final_response()
    expect("deltas", "response.function_call_arguments.delta" in kinds, True)
    calls = [item for item in first.output if item.type == "function_call"]
    expect("calls", [json.loads(call.arguments)["path"] for call in calls], ["/ü", "/b"])
    expect("usage", first.usage.input_tokens_details.cached_tokens, 60)
    history += [item.model_dump(exclude={"status", "parsed_arguments"}, exclude_none=True) for item in first.output]
    history += [
        {"type": "function_call_output", "call_id": call.call_id, "output": RESULT} for call in calls
    ]
    with client.responses.stream(model="m", input=history, tools=tools) as stream:
        last = stream.get_final_response()
    expect("text", last.output_text, "Done: " + RESULT)
    try:
        client.responses.create(model="m", input="fail", stream=True)
        raise SystemExit("no error")
    except openai.RateLimitError as error:
        expect("code", error.code, "rate_limit_exceeded")


def chat():
    client = openai.OpenAI(api_key="k", base_url=chat_url, max_retries=0)
    tools = [{"type": "function", "function": {"name": "fs__read", "parameters": SCHEMA}}]
    history = [{"role": "user", "content": "go"}]
    options = {"model": "m", "tools": tools, "max_tokens": 99}
    usage = {"include_usage": True}
    with client.chat.completions.stream(messages=history, stream_options=usage, **options) as stream:
        for _ in stream:
            pass
        first = stream.get_final_completion()
    message = first.choices[0].message
    paths = [json.loads(call.function.arguments)["path"] for call in message.tool_calls]
    expect("calls", paths, ["/ü", "/b"])
    expect("reason", first.choices[0].finish_reason, "tool_calls")
    expect("usage", first.usage.completion_tokens, 20)
    calls = [
        {"id": call.id, "type": "function",
         "function": {"name": call.function.name, "arguments": call.function.arguments}}
        for call in message.tool_calls
    ]
    history.append({"role": "assistant", "content": message.content, "tool_calls": calls})
    history += [{"role": "tool", "tool_call_id": call["id"], "content": RESULT} for call in calls]
    text = ""
    for chunk in client.chat.completions.create(messages=history, stream=True, **options):
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
    expect("text", text, "Done: " + RESULT)
    try:
        fail = [{"role": "user", "content": "fail"}]
        client.chat.completions.create(messages=fail, stream=True, **options)
        raise SystemExit("no error")
    except openai.RateLimitError as error:
        expect("header", error.response.headers["retry-after"], "1")


def messages():
    client = anthropic.Anthropic(api_key="k", base_url=anthropic_url, max_retries=0)
    tools = [{"name": "fs__read", "input_schema": SCHEMA}]
    history = [{"role": "user", "content": "go"}]
    options = {"model": "m", "max_tokens": 99, "tools": tools}
    with client.messages.stream(messages=history, **options) as stream:
        kinds = {event.type for event in stream}
        first = stream.get_final_message()
    expect("deltas", {"thinking", "signature", "input_json", "text"} <= kinds, True)
    calls = [block for block in first.content if block.type == "tool_use"]
    expect("calls", [call.input["path"] for call in calls], ["/ü", "/b"])
    expect("signature", bool(first.content[0].signature), True)
    expect("usage", first.usage.cache_read_input_tokens, 60)
    expect("reason", first.stop_reason, "tool_use")
    blocks = []
    for block in first.content:
        fields = {
            "text": ["type", "text"], "thinking": ["type", "thinking", "signature"],
            "tool_use": ["type", "id", "name", "input"],
        }[block.type]
        blocks.append({field: getattr(block, field) for field in fields})
    history.append({"role": "assistant", "content": blocks})
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": RESULT} for call in calls]
    history.append({"role": "user", "content": results})
    with client.messages.stream(messages=history, **options) as stream:
        expect("text", "".join(stream.text_stream), "Done: " + RESULT)
    try:
        with client.messages.stream(messages=[{"role": "user", "content": "fail"}], **options) as stream:
            stream.get_final_message()
        raise SystemExit("no error")
    except anthropic.RateLimitError as error:
        expect("type", error.body["error"]["type"], "rate_limit_error")


def gemini():
    options = types.HttpOptions(base_url=gemini_url)
    client = genai.Client(api_key="k", http_options=options)
    function = types.FunctionDeclaration(name="fs__read", parameters_json_schema=SCHEMA)
    config = types.GenerateContentConfig(
        tools=[types.Tool(function_declarations=[function])],
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )
    history = [types.Content(role="user", parts=[types.Part(text="go")])]
    parts, usage = [], None
    for chunk in client.models.generate_content_stream(model="m", contents=history, config=config):
        parts += chunk.candidates[0].content.parts or []
        usage = chunk.usage_metadata
    calls = [part.function_call for part in parts if part.function_call]
    expect("calls", [call.args["path"] for call in calls], ["/ü", "/b"])
    expect("thoughts", any(part.thought for part in parts), True)
    expect("usage", usage.cached_content_token_count, 60)
    history.append(types.Content(role="model", parts=parts))
    answers = [
        types.Part(function_response=types.FunctionResponse(
            name=call.name, id=call.id, response={"output": RESULT}))
        for call in calls
    ]
    history.append(types.Content(role="user", parts=answers))
    text = ""
    for chunk in client.models.generate_content_stream(model="m", contents=history, config=config):
        text += chunk.text or ""
    expect("text", text, "Done: " + RESULT)
    try:
        for _ in client.models.generate_content_stream(model="m", contents="fail"):
            pass
        raise SystemExit("no error")
    except genai.errors.ClientError as error:
        expect("status", error.status, "RESOURCE_EXHAUSTED")


for check in (responses, chat, messages, gemini):
    check()
    print(check.__name__, "agrees")
