# SPDX-License-Identifier: Apache-2.0
"""The reference servers, boxed, and both official client libraries."""

import asyncio
import json
import os
import pathlib
import subprocess

import pytest
from boxlib import BUILD, box
from conftest import HERE
from hostlib import until
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

NODE = HERE / "node" / "node_modules"
PYTHON = HERE / "python" / ".venv" / "bin" / "python"
LIMIT = 120


def program(package):
    """What its package.json calls its program."""
    directory = NODE / "@modelcontextprotocol" / package
    binary = json.loads((directory / "package.json").read_text())["bin"]
    return str(directory / (binary if isinstance(binary, str) else next(iter(binary.values()))))


def node_server(package, *args, options=()):
    return ["--network", "off", "--host-path", str(HERE / "node"), *options, "--", "node", program(package),
            *map(str, args)]


def python_server(module, *args, options=()):
    return ["--network", "off", "--install", "off", *options, "--", str(PYTHON), "-m", module, *map(str, args)]


def text_of(result):
    content = result["content"] if isinstance(result, dict) else [c.model_dump() for c in result.content]
    return "".join(c.get("text", "") for c in content)


# Each: the options and the command, calls, and what their answers hold.
def servers(files):
    mount = ["--mount", f"{files}:/files:rw"]
    return {
        "everything": (node_server("server-everything"),
                       [("echo", {"message": "boxed"}, "boxed"), ("get-sum", {"a": 2, "b": 40}, "42")]),
        "filesystem": (node_server("server-filesystem", "/files", options=mount),
                       [("read_text_file", {"path": "/files/hello.txt"}, "hello from the host"),
                        ("write_file", {"path": "/files/new.txt", "content": "written inside"}, "new.txt"),
                        ("read_text_file", {"path": "/etc/passwd"}, "")]),
        "memory": (node_server("server-memory", options=["--env", "MEMORY_FILE_PATH=/home/box/memory.json"]),
                   [("create_entities",
                     {"entities": [{"name": "Box", "entityType": "thing", "observations": ["small"]}]}, "Box"),
                    ("read_graph", {}, "small")]),
        "time": (python_server("mcp_server_time", "--local-timezone", "Europe/Berlin"),
                 [("get_current_time", {"timezone": "UTC"}, "UTC"),
                  ("convert_time",
                   {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}, "21:00")]),
        "git": (python_server("mcp_server_git", "--repository", "/files/repo", options=mount),
                [("git_status", {"repo_path": "/files/repo"}, "main"),
                 ("git_log", {"repo_path": "/files/repo", "max_count": 5}, "the first")]),
    }


NAMES = ["everything", "filesystem", "memory", "time", "git"]


@pytest.fixture
def case(request, files):
    if request.param == "git":
        repo = files / "repo"
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        for words in (["init", "-q", "-b", "main"], [*who, "commit", "-q", "--allow-empty", "-m", "the first"]):
            repo.mkdir(exist_ok=True)
            subprocess.run(["git", "-C", repo, *words], check=True)
    return (request.param, *servers(files)[request.param])


def environment(daemon):
    return {**os.environ, "BOX_HOST": f"unix://{daemon.sock}"}


def no_servers(daemon):
    until(lambda: json.loads(box("mcp", "ls", "--json", sock=daemon.sock).stdout) == [], what="the end of the server")
    assert daemon.client().ps() == []


async def drive(daemon, words, calls, files):
    parameters = StdioServerParameters(command=str(BUILD / "box"), args=["mcp", "run", *words], env=environment(daemon))
    with open(files / "stderr", "w") as stderr:
        async with stdio_client(parameters, errlog=stderr) as (read, write), ClientSession(read, write) as session:
            await session.initialize()
            tools = [t.name for t in (await session.list_tools()).tools]
            return tools, [await session.call_tool(name, arguments) for name, arguments, _ in calls]


@pytest.mark.parametrize("case", NAMES, indirect=True)
def test_the_python_client(daemon, case, files):
    _, words, calls = case
    tools, results = asyncio.run(asyncio.wait_for(drive(daemon, words, calls, files), LIMIT))
    assert {name for name, _, _ in calls} <= set(tools)
    for (name, _, expected), result in zip(calls, results):
        assert expected in text_of(result), (name, result)
    if case[0] == "filesystem":
        assert (files / "new.txt").read_text() == "written inside"
        assert "isError" in results[2].model_dump_json(by_alias=True) and "denied" in text_of(results[2]).lower()
    no_servers(daemon)


@pytest.mark.parametrize("case", NAMES, indirect=True)
def test_the_typescript_client(daemon, case):
    _, words, calls = case
    wanted = json.dumps([{"name": name, "arguments": arguments} for name, arguments, _ in calls])
    client = pathlib.Path(__file__).with_name("client.mjs")
    r = subprocess.run(["node", client, NODE, wanted, BUILD / "box", "mcp", "run", *words],
                       env=environment(daemon), text=True, capture_output=True, timeout=LIMIT)
    assert r.returncode == 0, r.stderr[-3000:]
    said = json.loads(r.stdout)
    assert {name for name, _, _ in calls} <= set(said["tools"])
    for (name, _, expected), result in zip(calls, said["results"]):
        assert expected in text_of(result), (name, result)
    no_servers(daemon)
