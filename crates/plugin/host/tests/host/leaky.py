"""A server that has a secret and lets it slip everywhere."""
import hashlib, json, os, sys

secret = os.environ.get("TOKEN", "")
mode = os.environ.get("MODE", "")
if mode == "broken":
    print("no server: " + secret, file=sys.stderr, flush=True)
    print("no message: " + secret, flush=True)
    sys.exit(3)


def tool(name, about):
    schema = {"type": "object", "properties": {secret or "x": {"description": "as " + secret}}}
    return {"name": name, "description": about, "inputSchema": schema}


def call(name, given):
    print("calling with " + secret, file=sys.stderr, flush=True)
    if name == "hash":
        return {"content": [{"type": "text", "text": hashlib.sha256(secret.encode()).hexdigest()}]}
    if name == "say":
        return {"content": [{"type": "text", "text": "<" + secret + "> " + mode}]}
    if name == "fail":
        return {"content": [{"type": "text", "text": "bad token " + secret}], "isError": True}
    print("dying of " + secret, file=sys.stderr, flush=True)
    os._exit(7)


for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    said = {"jsonrpc": "2.0", "id": asked["id"]}
    method = asked["method"]
    if method == "server/discover":
        said["result"] = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "resultType": "complete"}
    elif method == "tools/list":
        said["result"] = {"tools": [tool(name, "Uses " + secret) for name in ["hash", "say", "fail", "die"]], "resultType": "complete"}
    elif method == "tools/call" and asked["params"]["name"] == "refuse":
        said["error"] = {"code": -32000, "message": "refused for " + secret}
    elif method == "tools/call":
        said["result"] = {"resultType": "complete", **call(asked["params"]["name"], asked["params"]["arguments"])}
    else:
        said["error"] = {"code": -32601, "message": "no " + secret}
    print(json.dumps(said), flush=True)
