# A plugin with one fault, which its argument names; without one it has none.
import json, os, select, signal, sys, time

fault = sys.argv[1] if len(sys.argv) > 1 else ""
if fault == "ends-at-once":
    sys.exit("it has other plans")
if fault == "ignores-its-end":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

about = "Counts words."
if fault == "says-nothing":
    about = ""
if fault == "changes-its-words":
    about = "Counts words since %r." % time.time_ns()
schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
if fault == "no-schema":
    schema = {"type": "string"}
discovered = 0


def text(value):
    return {"content": [{"type": "text", "text": value}]}


def call(params):
    name, given = params["name"], params["arguments"]
    if name != "count":
        if fault == "takes-any-tool":
            return text("gladly")
        if fault == "dies-of-an-unknown-tool":
            sys.exit("no tool " + name)
        raise ValueError("no tool " + name)
    if fault == "lying-schema":
        given = {"text": given["path"]}
    if fault == "dies-of-wrong-arguments":
        return text(str(len(given["text"].split())))
    if "text" not in given or not isinstance(given["text"], str):
        if fault == "takes-anything":
            return text("0")
        raise ValueError("text is missing")
    if fault == "nonsense":
        return {"content": 7}
    return text(str(len(given["text"].split())))


def answer(method, params):
    global discovered
    if method == "server/discover":
        discovered += 1
        if fault == "unwell" and discovered > 1:
            raise ValueError("not today")
        return {"supportedVersions": ["2026-07-28"], "capabilities": {}}
    if method == "tools/list":
        if fault == "no-list":
            return {"tools": 7}
        return {"tools": [{"name": "count", "description": about, "inputSchema": schema}]}
    if method == "tools/call":
        return call(params)
    raise ValueError("no method " + method)


buffer = b""


def line(wait):
    """The next line; None where there is none in time, or no more."""
    global buffer
    while b"\n" not in buffer:
        if not select.select([0], [], [], wait)[0]:
            return None
        read = os.read(0, 65536)
        if not read:
            return None
        buffer += read
    first, buffer = buffer.split(b"\n", 1)
    return json.loads(first)


later = []
while True:
    asked = later.pop() if later else line(None)
    if asked is None:
        if fault == "ignores-its-end":
            while True:
                time.sleep(60)
        break
    if fault == "dies-of-a-cancelled-call" and asked["method"] == "notifications/cancelled":
        sys.exit("how rude")
    if "id" not in asked:
        continue
    if fault == "answers-one-of-two" and asked["method"] == "tools/call":
        other = line(0.5)
        if other is not None and other["method"] != "tools/call":
            later.append(other)
    if fault == "dies-of-a-cancelled-call" and asked["method"] == "tools/call":
        time.sleep(0.2)
    said = {"jsonrpc": "2.0", "id": asked["id"]}
    try:
        said["result"] = answer(asked["method"], asked.get("params", {}))
    except KeyError:
        if fault == "dies-of-wrong-arguments":
            raise
        said["error"] = {"code": -32602, "message": "no such argument"}
    except ValueError as error:
        said["error"] = {"code": -32602, "message": str(error)}
    print(json.dumps(said), flush=True)
