# SPDX-License-Identifier: Apache-2.0
"""The official conformance tool and the inspector against our server.

The tool drives a server through scenarios. Most of them call tools, prompts and resources of a fixture with agreed
names ("test_simple_text", "test://static-text"), which a server with a purpose of its own does not have: what they are
about is in test_clients.py instead. A scenario that is in neither list fails the first test, so that none is missed."""

import json
import re
import subprocess

import pytest
from conftest import CLIENTS

NODE = CLIENTS / "node" / "node"
MODULES = CLIENTS / "node" / "node_modules" / "@modelcontextprotocol"

PASS = ["server-initialize", "ping", "tools-list", "resources-list", "server-sse-multiple-streams",
        "dns-rebinding-protection"]

FIXTURE = "calls a tool, prompt or resource of the tool's own fixture server"
ABSENT = "is about a capability that we do not advertise"
DO_NOT_APPLY = {
    "logging-set-level": ABSENT,
    "completion-complete": ABSENT,
    "prompts-list": ABSENT,
    "prompts-get-simple": ABSENT,
    "prompts-get-with-args": ABSENT,
    "prompts-get-embedded-resource": ABSENT,
    "prompts-get-with-image": ABSENT,
    "resources-subscribe": ABSENT,
    "resources-unsubscribe": ABSENT,
    "tools-call-simple-text": FIXTURE,
    "tools-call-image": FIXTURE,
    "tools-call-audio": FIXTURE,
    "tools-call-embedded-resource": FIXTURE,
    "tools-call-mixed-content": FIXTURE,
    "tools-call-with-logging": FIXTURE,
    "tools-call-error": FIXTURE,
    "tools-call-with-progress": FIXTURE,
    "tools-call-sampling": FIXTURE,
    "tools-call-elicitation": FIXTURE,
    "server-sse-polling": FIXTURE,
    "json-schema-2020-12": FIXTURE,
    "elicitation-sep1034-defaults": FIXTURE,
    "elicitation-sep1330-enums": FIXTURE,
    "resources-read-text": FIXTURE,
    "resources-read-binary": FIXTURE,
    "resources-templates-read": FIXTURE,
}


def conformance(*args, cwd=None):
    return subprocess.run([str(NODE), str(MODULES / "conformance" / "dist" / "index.js"), *args], cwd=cwd,
                          capture_output=True, text=True, timeout=120)


def test_every_scenario_is_accounted_for():
    listed = conformance("list", "--server").stdout
    scenarios = set(re.findall(r"^ +- (\S+)", listed, re.MULTILINE))
    assert scenarios, listed
    assert scenarios - set(PASS) - set(DO_NOT_APPLY) == set()


@pytest.mark.parametrize("scenario", PASS)
def test_scenario(server, tmp_path, scenario):
    done = conformance("server", "--url", server.url, "--scenario", scenario, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"Passed: ([1-9]\d*)/\1, 0 failed, 0 warnings", done.stdout), done.stdout


def inspect(server, transport, *args):
    command, env = server.command()
    target = [server.url, "--transport", "http"] if transport == "http" else command
    given = [x for k, v in env.items() for x in ("-e", f"{k}={v}")] if transport == "stdio" else []
    cli = MODULES / "inspector" / "cli" / "build" / "cli.js"
    done = subprocess.run([str(NODE), str(cli), "--cli", *given, *target, *args], capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_inspector(server, transport):
    tools = inspect(server, transport, "--method", "tools/list")["tools"]
    names = {tool["name"] for tool in tools}
    assert len(names) == len(tools) and names >= {"exec", "read", "write", "start_process", "read_output"}
    result = inspect(server, transport, "--method", "tools/call", "--tool-name", "exec", "--tool-arg",
                     "command=echo hi")
    assert result["content"][0]["text"] == "hi\n"
