# SPDX-License-Identifier: Apache-2.0
"""A client that openapi-python-client makes of docs/api/openapi.json, against a real boxd over its unix socket."""

import importlib
import io
import os
import pathlib
import subprocess
import sys

import httpx
import pytest
from boxlib import ROOT, Boxd
from hostlib import until


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Generates the client; a warning of the generator is something that it left out."""
    out = tmp_path_factory.mktemp("openapi") / "client"
    bin_dir = str(pathlib.Path(sys.executable).parent)
    document = str(ROOT / "docs/api/openapi.json")
    done = subprocess.run([f"{bin_dir}/openapi-python-client", "generate", "--path", document, "--output-path", str(out),
                           "--fail-on-warning"],
                          env={**os.environ, "PATH": f"{bin_dir}:{os.environ['PATH']}"}, capture_output=True, text=True,
                          timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    sys.path.insert(0, str(out))
    yield importlib.import_module("box_client")
    sys.path.remove(str(out))


@pytest.fixture(scope="module")
def box(made):
    """call("execs", "exec_command", …): the function of that module of the client; the parsed answer."""
    daemon = Boxd()
    client = made.Client(base_url="http://localhost", timeout=httpx.Timeout(120),
                         httpx_args={"transport": httpx.HTTPTransport(uds=str(daemon.sock))})

    def call(tag, name, *args, **kwargs):
        module = importlib.import_module(f"box_client.api.{tag}.{name}")
        return module.sync_detailed(*args, client=client, **kwargs)

    call.models = importlib.import_module("box_client.models")
    yield call
    daemon.close()


@pytest.fixture
def session(box):
    made = box("sessions", "create_session", body=box.models.BoxSpec.from_dict({"session_id": "gen", "cmd": ""}))
    assert made.status_code == 201 and made.parsed.session_id == "gen"
    yield "gen"
    assert box("sessions", "delete_session", "gen").status_code == 204


def test_sessions(box, session):
    assert [s.session_id for s in box("sessions", "list_sessions").parsed.sessions] == [session]
    one = box("sessions", "get_session", session).parsed
    assert one.state == "ready" and one.receipt.additional_properties
    assert box("daemon", "get_health").parsed.status == "ok"
    status = box("daemon", "get_status").parsed
    assert status.available and status.active_sessions == 1


def test_commands(box, session):
    body = box.models.Exec.from_dict({"argv": ["sh", "-c", "echo out; echo err >&2; exit 3"]})
    done = box("execs", "exec_command", session, body=body).parsed
    assert (done.outcome, done.exit_code, done.stdout, done.stderr) == ("exited", 3, "out\n", "err\n")
    started = box("execs", "exec_command", session, body=box.models.Exec.from_dict(
        {"cmd": "sleep 1000", "detach": True, "exec_id": "bg"}))
    assert started.status_code == 202 and started.parsed.status == "running"
    signal = box.models.SignalRequest.from_dict({"signal": "TERM"})
    assert box("execs", "signal_exec", session, "bg", body=signal).status_code == 204
    until(lambda: box("execs", "get_exec", session, "bg").parsed.status == "ended", what="the end")
    assert box("execs", "get_exec", session, "bg").parsed.signal == 15
    assert [x.exec_id for x in box("execs", "list_execs", session).parsed.execs] == ["bg"]
    assert box("execs", "delete_exec", session, "bg").status_code == 204


def test_outputs(box, session):
    body = box.models.Exec.from_dict({"cmd": "seq 1 1000", "capture_bytes": 4})
    done = box("execs", "exec_command", session, body=body).parsed
    whole = box("execs", "read_output", session, done.stdout_id).parsed
    assert whole.payload.read().startswith(b"1\n2\n3\n")
    found = box("execs", "grep_output", session, done.stdout_id, pattern="^99", max_matches=2).parsed
    assert [m.text for m in found.matches] == ["99", "990"]


def test_processes(box, session):
    spec = box.models.BoxManagedProcessSpec.from_dict(
        {"process_id": "p", "command": "echo", "args": ["hi"], "cwd": "/tmp"})
    assert box("processes", "start_process", session, body=spec, idempotency_key="k").status_code == 201
    until(lambda: box("processes", "get_process", session, "p").parsed.status == "exited", what="the end")
    assert box("processes", "get_process", session, "p").parsed.exit_code == 0
    assert box("processes", "read_process_output", session, "p").parsed.payload.read() == b"hi\n"
    assert box("processes", "stop_process", session, "p").status_code == 204


def test_files(box, session):
    types = importlib.import_module("box_client.types")
    put = box("files", "write_file", session, path="/tmp/f", body=types.File(payload=io.BytesIO(b"text")))
    assert put.status_code == 201 and put.parsed.size == 4
    assert box("files", "read_files", session, path="/tmp/f").parsed.payload.read() == b"text"
    assert box("files", "remove_file", session, path="/tmp/f").status_code == 204


def test_tools(box, session):
    body = box.models.ToolRequest.from_dict(
        {"tool": "exec", "arguments": {"command": "echo hi"}, "session_id": session})
    result = box("tools", "execute_tool", body=body).parsed
    assert not result.is_error and result.result["stdout"] == "hi\n"
    assert "exec" in [t.name for t in box("tools", "list_tools").parsed.tools]


def test_errors_are_problem_documents(box):
    missing = box("sessions", "get_session", "nowhere")
    assert missing.status_code == 404
    problem = missing.parsed
    assert (problem.code, problem.status) == ("not_found", 404) and problem.cause and problem.remediation
    bad = box("sessions", "create_session", body=box.models.BoxSpec.from_dict({"session_id": "../x", "cmd": ""}))
    assert bad.status_code == 422 and bad.parsed.code == "invalid"
    assert box("daemon", "list_errors").status_code == 200
    assert box("daemon", "read_audit", limit=5).parsed.records
