# SPDX-License-Identifier: Apache-2.0
"""A stdio MCP server with nothing but Python's own library: one tool that counts its calls."""

import json
import os
import sys

name, count = sys.argv[1], 0
inside = os.getcwd().startswith("/workspace")  # asked once: LangBot renews the directory when it connects again
TOOL = {"name": f"{name}_count", "description": "counts", "inputSchema": {"type": "object", "properties": {}}}


def answer(request):
    global count
    method = request["method"]
    if method == "initialize":
        return {"protocolVersion": request["params"]["protocolVersion"], "capabilities": {"tools": {}},
                "serverInfo": {"name": name, "version": "1"}}
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        count += 1
        seen = {"count": count, "greeting": os.environ.get("GREETING"), "cwd": inside}
        return {"content": [{"type": "text", "text": json.dumps(seen)}]}
    return {} if method == "ping" else None


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        result = answer(request)
        body = {"result": result} if result is not None else {"error": {"code": -32601, "message": "unknown"}}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **body}), flush=True)
