# SPDX-License-Identifier: Apache-2.0
"""Twenty popular servers from npm and PyPI: boxed they list and do the same as bare.

Each is started twice with the same words, once as it is and once behind `box mcp run`, each time on a fresh
directory, which paths in arguments, in variables and in tool calls name; the box has it at /files. The box has no
network."""

import asyncio
import importlib.metadata
import json
import os
import re
import shutil
import zipfile

import pytest
from boxlib import BUILD
from conftest import HERE
from hostlib import mount_dir
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

NODE, PYTHON = HERE / "popular-node", HERE / "popular"
INTERPRETER = PYTHON / ".venv" / "bin" / "python"
LIMIT = 120
INSIDE = "/files"

THOUGHT = {"thought": "small", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1}
TOOL_THOUGHT = {"thought": "small", "available_mcp_tools": [], "next_thought_needed": False, "thought_number": 1,
                "total_thoughts": 1}
PLAN = {"originalRequest": "a box", "tasks": [{"title": "walls", "description": "four of them"}]}


# The least that is a workbook.
SHEETS = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
MIME = "application/vnd.openxmlformats-officedocument.spreadsheetml"
WORKBOOK = {
    "[Content_Types].xml": f'<Types xmlns="{PACKAGE}/content-types">'
                           '<Default Extension="rels" ContentType='
                           '"application/vnd.openxmlformats-package.relationships+xml"/>'
                           f'<Override PartName="/xl/workbook.xml" ContentType="{MIME}.sheet.main+xml"/>'
                           f'<Override PartName="/xl/sheet1.xml" ContentType="{MIME}.worksheet+xml"/></Types>',
    "_rels/.rels": f'<Relationships xmlns="{PACKAGE}/relationships">'
                   f'<Relationship Id="r1" Type="{OFFICE}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
    "xl/workbook.xml": f'<workbook xmlns="{SHEETS}" xmlns:r="{OFFICE}">'
                       '<sheets><sheet name="Walls" sheetId="1" r:id="r1"/></sheets></workbook>',
    "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{PACKAGE}/relationships">'
                                  f'<Relationship Id="r1" Type="{OFFICE}/worksheet" Target="sheet1.xml"/>'
                                  '</Relationships>',
    "xl/sheet1.xml": f'<worksheet xmlns="{SHEETS}"><sheetData><row r="1"><c r="A1"><v>42</v></c></row></sheetData>'
                     '</worksheet>',
}


def table(sql):
    return {"query": sql}


# Per server: where it comes from, its arguments, its variables, and calls with what their answers hold. @ is the
# directory.
SERVERS = {
    # npm
    "@modelcontextprotocol/server-sequential-thinking": ([], {}, [("sequentialthinking", THOUGHT, "thoughtNumber")]),
    "mcp-server-commands": ([], {}, [("run_command", {"command": "echo $((6 * 7))"}, "42")]),
    "mcp-server-code-runner": ([], {}, [("run-code", {"code": "console.log(6 * 7)", "languageId": "javascript"},
                                         "42")]),
    "@kazuph/mcp-taskmanager": ([], {"TASK_MANAGER_FILE_PATH": "@/tasks.json"},
                                [("request_planning", PLAN, "walls"), ("list_requests", {}, "a box")]),
    "mcp-sequentialthinking-tools": ([], {}, [("sequentialthinking_tools", TOOL_THOUGHT, "thought_number")]),
    "fast-filesystem-mcp": (["--allow", "@"], {}, [("fast_read_file", {"path": "@/hello.txt"}, "hello from the host")]),
    "time-mcp": ([], {}, [("days_in_month", {"date": "2026-02-10"}, "28")]),
    "@negokaz/excel-mcp-server": ([], {}, [("excel_describe_sheets", {"fileAbsolutePath": "@/book.xlsx"}, "Walls")]),
    "@playwright/mcp": ([], {}, [("browser_close", {}, "")]),
    # PyPI
    "mcp-server-sqlite": (["--db-path", "@/lite.db"], {},
                          [("create_table", table("CREATE TABLE t (n INTEGER)"), "success"),
                           ("write_query", table("INSERT INTO t VALUES (42)"), "1"),
                           ("read_query", table("SELECT n FROM t"), "42")]),
    "mcp-server-duckdb": (["--db-path", "@/duck.db"], {}, [("query", table("SELECT 6 * 7 AS n"), "42")]),
    "mcp-server-calculator": ([], {}, [("calculate", {"expression": "6 * 7"}, "42")]),
    "office-word-mcp-server": ([], {}, [("create_document", {"filename": "@/a.docx", "title": "Box"}, "a.docx"),
                                        ("add_paragraph", {"filename": "@/a.docx", "text": "four walls"}, ""),
                                        ("get_document_text", {"filename": "@/a.docx"}, "four walls")]),
    "office-powerpoint-mcp-server": ([], {}, [("create_presentation", {"id": "deck"}, "deck")]),
    "cli-mcp-server": ([], {"ALLOWED_DIR": "@", "ALLOWED_COMMANDS": "cat", "ALLOWED_FLAGS": "all"},
                       [("run_command", {"command": "cat hello.txt"}, "hello from the host")]),
    "mcp-shell-server": ([], {"ALLOW_COMMANDS": "cat"},
                         [("shell_execute", {"command": ["cat", "hello.txt"], "directory": "@"},
                           "hello from the host")]),
    "mcp-text-editor": ([], {}, [("get_text_file_contents",
                                  {"files": [{"file_path": "@/hello.txt", "ranges": [{"start": 1, "end": 1}]}]},
                                  "hello from the host")]),
    "mcp-server-diff-python": ([], {}, [("get-unified-diff", {"string_a": "a\n", "string_b": "b\n"}, "+b")]),
    "mcp-sympy": ([], {}, [("sympy_factor", {"expr": "x**2 - 1"}, "(x - 1)*(x + 1)")]),
    "mcp-python-interpreter": (["--dir", "@"], {}, [("run_python_code", {"code": "print(6 * 7)"}, "42")]),
}


def of_npm(package):
    return (NODE / "node_modules" / package).is_dir()


def command(package):
    """As npx or uvx would start it."""
    if of_npm(package):
        directory = NODE / "node_modules" / package
        binary = json.loads((directory / "package.json").read_text())["bin"]
        return ["node", str(directory / (binary if isinstance(binary, str) else next(iter(binary.values()))))]
    site = next((PYTHON / ".venv" / "lib").iterdir()) / "site-packages"
    distribution = next(iter(importlib.metadata.distributions(name=package, path=[str(site)])))
    entry = next(e for e in distribution.entry_points if e.group == "console_scripts")
    start = f"import sys; from {entry.module} import {entry.attr} as f; sys.argv[0] = {entry.name!r}; sys.exit(f())"
    return [str(INTERPRETER), "-c", start]


def boxed(package, words, env, files):
    options = ["--network", "off", "--install", "off", "--host-path", str(NODE if of_npm(package) else PYTHON),
               "--mount", f"{files}:{INSIDE}:rw", "--memory-mb", "1024"]
    for name, value in env.items():
        options += ["--env", f"{name}={value}"]
    return [str(BUILD / "box"), "mcp", "run", *options, "--", *words]


def at(value, files):
    return json.loads(json.dumps(value).replace("@/", f"{files}/").replace('"@"', f'"{files}"'))


@pytest.fixture
def two():
    """Two directories with the same in them."""
    tops = [mount_dir("box-mcp-popular-") for _ in range(2)]
    for top in tops:
        (top / "hello.txt").write_text("hello from the host\n")
        with zipfile.ZipFile(top / "book.xlsx", "w") as book:
            for name, text in WORKBOOK.items():
                book.writestr(name, text)
    yield tops
    for top in tops:
        shutil.rmtree(top, ignore_errors=True)


async def drive(words, env, calls, log):
    parameters = StdioServerParameters(command=words[0], args=words[1:], env={**os.environ, **env})
    with open(log, "w") as stderr:
        async with stdio_client(parameters, errlog=stderr) as (read, write), ClientSession(read, write) as session:
            await session.initialize()
            tools = sorted(tool.name for tool in (await session.list_tools()).tools)
            return tools, [await session.call_tool(name, arguments) for name, arguments, _ in calls]


def said(result, files):
    """What a person would compare: without the name of the directory, times and numbers made up for the occasion."""
    text = "".join(getattr(c, "text", "") for c in result.content).replace(str(files), "@")
    text = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*|[0-9a-f]{8}-[0-9a-f-]{27}|\d+\.\d{3,}", "#", text)
    return re.sub(r"(python|node)[^\s\"']*", r"\1", text)


@pytest.mark.parametrize("package", SERVERS)
def test_boxed_as_bare(daemon, package, two):
    args, env, calls = SERVERS[package]
    outcomes = []
    for files, box in zip(two, (False, True)):
        name = INSIDE if box else files
        words, mine = [*command(package), *at(args, name)], at(env, name)
        environment = {"BOX_HOST": f"unix://{daemon.sock}"} if box else mine
        words = boxed(package, words, mine, files) if box else words
        run = drive(words, environment, at(calls, name), files / "stderr")
        tools, results = asyncio.run(asyncio.wait_for(run, LIMIT))
        outcomes.append((tools, [said(r, name) for r in results]))
    (bare_tools, bare), (boxed_tools, inside) = outcomes
    assert bare_tools == boxed_tools and bare_tools
    for (name, _, expected), one, other in zip(calls, bare, inside):
        assert expected in one and one == other, (name, one, other)


async def told(words, env, log):
    """What the client is told by a server that does not come up, or by the tool that fails."""
    try:
        _, results = await drive(words, env, [("get", {"key": "k"}, "")], log)
        return "".join(getattr(c, "text", "") for c in results[0].content)
    except BaseExceptionGroup as group:
        return str(group.exceptions)
    except Exception as error:
        return str(error)


def test_a_server_that_needs_redis_on_the_hosts_loopback_is_told_what_works_instead(daemon, two):
    """Nothing of the host's loopback is in the box, and the server's own words do not say why."""
    package = "@modelcontextprotocol/server-redis"
    words = [*command(package), "redis://127.0.0.1:6379"]
    words = boxed(package, words, {}, two[0])
    words[words.index("--"):words.index("--")] = ["--retry-delays", "0.05,0.05"]
    run = told(words, {"BOX_HOST": f"unix://{daemon.sock}"}, two[0] / "stderr")
    text = asyncio.run(asyncio.wait_for(run, LIMIT)) + (two[0] / "stderr").read_text()
    assert "ECONNREFUSED" in text and "localhost in the box is the box itself" in text and "--allow-host 127.0.0.1:" in text


def test_a_database_that_must_be_written_is_told_with_the_mount_that_allows_it(daemon, two):
    package = "mcp-server-sqlite"
    calls = [("create_table", table("CREATE TABLE t (n INTEGER)"), "")]
    words = boxed(package, [*command(package), "--db-path", f"{INSIDE}/lite.db"], {}, two[0])
    (two[0] / "lite.db").touch()
    words[words.index(f"{two[0]}:{INSIDE}:rw")] = f"{two[0]}:{INSIDE}:ro"
    run = drive(words, {"BOX_HOST": f"unix://{daemon.sock}"}, calls, two[1] / "stderr")
    _, results = asyncio.run(asyncio.wait_for(run, LIMIT))
    text = "".join(getattr(c, "text", "") for c in results[0].content)
    assert "readonly database" in text and "--mount HOST:BOX:rw" in text
