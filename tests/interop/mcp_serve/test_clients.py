# SPDX-License-Identifier: Apache-2.0
"""Every tool, called by the official clients, on both transports and in both eras."""

import asyncio
import json
import pathlib
import subprocess

import pytest
from conftest import CLIENTS
from mcp import Client
from mcp.client.stdio import StdioServerParameters

# Every tool at least once, in an order that makes sense; "$HANDLE" is what create_session gave.
CALLS = [
    ("exec", {"command": "echo hi; exit 3"}),
    ("write", {"path": "a.txt", "content": "one\ntwo\n"}),
    ("edit", {"path": "a.txt", "old_string": "two", "new_string": "2"}),
    ("read", {"path": "a.txt"}),
    ("glob", {"pattern": "*.txt"}),
    ("grep", {"pattern": "^2"}),
    ("start_process", {"process_id": "p", "command": "cat"}),
    ("write_stdin", {"process_id": "p", "data": "hello\n"}),
    ("read_process_output", {"process_id": "p", "wait_ms": 20000}),
    ("list_processes", {}),
    ("stop_process", {"process_id": "p"}),
    ("create_session", {"name": "two"}),
    ("exec", {"command": "ls", "session_id": "$HANDLE"}),
    ("list_sessions", {}),
    ("delete_session", {"session_id": "$HANDLE"}),
    ("list_background", {}),
    ("read", {"path": "none"}),
    ("read_output", {"output_id": "0123456789abcdef"}),
    ("stop_background", {"exec_id": "0123456789abcdef"}),
]
EVERY = sorted({name for name, _ in CALLS})


def check_results(results):
    """(is an error, text, structured) of each of CALLS."""
    assert len(results) == len(CALLS)
    said = [r[1] for r in results]
    made = [r[2] for r in results]
    assert [r[0] for r in results] == [False] * (len(CALLS) - 3) + [True, True, True], said
    assert said[0] == "hi\n\n[exit code 3]" and made[0]["exit_code"] == 3
    assert said[3] == "one\n2" and made[4]["matches"] == ["/workspace/a.txt"] and made[5]["total"] == 1
    assert made[8]["output"] == "hello\n" and made[9]["processes"][0]["status"] == "running"
    assert said[12] == "" and made[13]["total"] == 2 and made[14] == {"deleted": True}
    assert made[15] == {"processes": [], "truncated": False} and said[16] == "File not found: /workspace/none"


async def drive(target, mode):
    async with Client(target, mode=mode) as client:
        tools = sorted(t.name for t in (await client.list_tools()).tools)
        handle, results, notes = "", [], []
        for name, arguments in CALLS:
            given = json.loads(json.dumps(arguments).replace("$HANDLE", handle))
            r = await client.call_tool(name, given)
            results.append((r.is_error, r.content[0].text, r.structured_content))
            if name == "create_session":
                handle = r.structured_content["session_id"]

        async def on_progress(progress, total, message):
            notes.append(message)

        r = await client.call_tool("exec", {"command": "echo a; sleep 1.2; echo b"}, progress_callback=on_progress)
        long = r.content[0].text
        resources = (await client.list_resources()).resources
        contents = [(await client.read_resource(r.uri)).contents[0].text for r in resources]
        templates = (await client.list_resource_templates()).resource_templates
        return client.protocol_version, tools, results, notes, long, contents, templates


@pytest.mark.parametrize("mode, version", [("legacy", "2025-11-25"), ("auto", "2026-07-28"),
                                           ("2026-07-28", "2026-07-28")])
@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_python(server, transport, mode, version):
    command, env = server.command()
    target = server.url if transport == "http" else StdioServerParameters(command=command[0], args=command[1:], env=env)
    got, tools, results, notes, long, contents, templates = asyncio.run(drive(target, mode))
    assert got == version and tools == EVERY
    check_results(results)
    assert notes[0] == "a\n" and long == "a\nb\n"
    assert any("/workspace/a.txt" in c for c in contents) and len(templates) == 1


@pytest.mark.parametrize("release, mode", [("1", "legacy"), ("2", "legacy"), ("2", "modern")])
@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_typescript(server, transport, release, mode):
    command, env = server.command()
    target = server.url if transport == "http" else json.dumps({"command": command[0], "args": command[1:], "env": env})
    calls = json.dumps([{"name": n, "arguments": a} for n, a in CALLS])
    script = str(pathlib.Path(__file__).with_name("client.mjs"))
    node = CLIENTS / "node"
    done = subprocess.run([str(node / "node"), script, str(node / "node_modules"), release, mode, target, calls],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    assert sorted(got["tools"]) == EVERY and got["server"]["name"] == "box"
    check_results([(r.get("isError", False), r["content"][0]["text"], r.get("structuredContent"))
                   for r in got["results"]])
    assert got["progress"][0] == "a\n" and got["long"] == "a\nb\n" and got["cancelled"] is True
    assert any("/workspace/a.txt" in c["text"] for c in got["contents"]) and len(got["resourceTemplates"]) == 1
