"""The plugin: a server of the Model Context Protocol over standard streams.

Standard output belongs to the protocol; what is printed to standard error is
in the plugin's log. New tools go into `tools.py`.
"""

import json
import sys

from tools import TOOLS, Refused

NEW, OLD = "2026-07-28", "2025-11-25"


def answer(method, params):
    """The result of a request, or None where there is no such method."""
    if method == "server/discover":
        return {"supportedVersions": [NEW], "capabilities": {"tools": {}}, "resultType": "complete"}
    if method == "initialize":
        info = {"name": "{{name}}", "version": "0.1.0"}
        return {"protocolVersion": OLD, "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "ping":
        return {}
    if method == "tools/list":
        told = [
            {"name": name, "description": tool.description, "inputSchema": tool.schema}
            for name, tool in TOOLS.items()
        ]
        return {"tools": told, "resultType": "complete"}
    if method == "tools/call":
        tool = TOOLS.get(params.get("name"))
        if tool is None:
            raise Refused("there is no tool `%s`" % params.get("name"))
        try:
            text, failed = tool.run(params.get("arguments") or {}), False
        except Refused:
            raise
        except Exception as error:
            text, failed = str(error), True
        content = [{"type": "text", "text": text}]
        return {"content": content, "isError": failed, "resultType": "complete"}
    return None


def reply(line):
    """What is answered to a line, or None where nobody waits for an answer."""
    try:
        asked = json.loads(line)
    except ValueError:
        return {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "no JSON"}}
    if not isinstance(asked, dict) or "id" not in asked:
        return None
    said = {"jsonrpc": "2.0", "id": asked["id"]}
    try:
        result = answer(asked.get("method"), asked.get("params") or {})
    except Refused as refused:
        said["error"] = {"code": -32602, "message": str(refused)}
        return said
    if result is None:
        said["error"] = {"code": -32601, "message": "no such method"}
    else:
        said["result"] = result
    return said


def main():
    for line in sys.stdin:
        said = reply(line)
        if said is not None:
            print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
