# SPDX-License-Identifier: Apache-2.0
"""Two tenants on one boxd, each with a token that may use every tool in its own sessions. Whatever one of them does,
nothing that the other can read changes: every route of the document is read before and after."""

import http.client
import json
import re

import openapilib
import pytest
from hostlib import until
from lbwire import Rpc
from mcpservelib import Http
from policylib import Governed, token

A, A_TOKEN = token("alpha", profiles=["*"], tools=["*"], sessions=["alpha-*"])
B, B_TOKEN = token("bravo", profiles=["*"], tools=["*"], sessions=["bravo-*"])
SAME, SAME_TOKEN = token("ws-1", tools=["*"], sessions=["none-*"])  # as lbwire's workspace
OPS, OPS_TOKEN = token("ops", profiles=["*"], tools=["*"], sessions=["*"])
MARK = "bravo"  # in everything that B names
STREAMS = {"/v1/events", "/v1/sessions/{id}/files/watch"}
QUERIES = {"/v1/sessions/{id}/files": ("?list=/workspace", "?stat=/workspace/note", "?path=/workspace/note"),
           "/v1/sessions/{id}/outputs/{output}/grep": ("?pattern=9",)}
VOLATILE = re.compile(r'"(last_used_at|last_used|next|request_id|instance|time_usec|cpu_usec|age_ms|user_ms|system_ms|'
                      r'memory_bytes)": ?("[^"]*"|[0-9.]+)')


@pytest.fixture(scope="module")
def daemon():
    d = Governed("", tokens=[A, B, SAME, OPS])
    yield d
    d.close()


def busy(caller, name):
    """One of everything: a session, commands, outputs, a process that runs and one that ended, files, refusals."""
    session = f"{name}-1"
    caller.new(session)
    out = caller.sh(session, f"seq 1 1000; echo {name} > note", capture_bytes=10)
    caller.sh(session, "sleep 100000", detach=True, exec_id=f"{name}-x")
    caller.call("POST", f"/v1/sessions/{session}/processes",
                {"process_id": f"{name}-p", "command": "sleep", "args": ["100000"]})
    caller.call("POST", f"/v1/sessions/{session}/processes", {"process_id": f"{name}-q", "command": "true"})
    until(lambda: caller.call("GET", f"/v1/sessions/{session}/processes/{name}-q")["status"] == "exited",
          what="the end of the process")
    assert caller.raw("POST", "/v1/sessions", {"session_id": f"{name}-2", "network": "on"})[0] == 403
    return {"id": session, "exec": f"{name}-x", "process": f"{name}-p", "output": out["stdout_id"], "tool": "read", "port": "3000", "path": "x",
            "chat_id": "00000000-0000-4000-8000-000000000000"}


def fill(template, ids):
    return re.sub(r"{(\w+)}", lambda m: ids[m.group(1)], template)


def read_all(caller, document, ids):
    """What each GET of the document answers, but for streams, which have no end."""
    found = {}
    for template, item in document["paths"].items():
        if "get" not in item or template in STREAMS or template.endswith("/stream"):
            continue
        for query in QUERIES.get(template, ("",)):
            status, body = caller.raw("GET", fill(template, ids) + query)
            found[template + query] = (status, VOLATILE.sub("", body.decode(errors="replace")))
    for path in ("/healthz", "/readyz"):
        status, body = caller.raw("GET", path)
        found[path] = (status, body.decode())
    return found


def test_nothing_of_the_other_shows_in_any_route(daemon):
    document, a, b = openapilib.load(), daemon.caller(A_TOKEN), daemon.caller(B_TOKEN)
    mine = busy(a, "alpha")
    before = read_all(a, document, mine)
    read = [path for path, (status, _body) in before.items() if status == 200]
    for path in ("/metrics", "/v1/doctor", "/v1/status", "/v1/errors", "/v1/audit", "/v1/sessions", "/v1/holds",
                 "/v1/sessions/{id}", "/v1/sessions/{id}/processes", "/v1/sessions/{id}/execs", "/v1/sessions/{id}/top",
                 "/v1/stats", "/healthz"):
        assert path in read, (path, before[path])
    theirs = busy(b, MARK)
    assert b.raw("GET", f"/v1/sessions/{mine['id']}")[0] == 404  # on record, and no business of alpha's
    after = read_all(a, document, mine)
    assert {k: v for k, v in after.items() if before[k] != v} == {}
    assert not [path for path, (_status, body) in after.items() if MARK in body or theirs["output"] in body]
    # What is asked for by name is not there, in the same words as what never was.
    for template, item in document["paths"].items():
        if "{id}" not in template:
            continue
        for method in item:
            told = [a.raw(method.upper(), fill(template, {**theirs, "id": name}),
                          {} if method in ("post", "put") else None) for name in (theirs["id"], "never-1")]
            assert told[0][0] >= 400, (method, template)
            assert told[0][0] == told[1][0], (method, template, told)
            clean = [re.sub(r'"request_id":"[^"]*"', "", body.decode()).replace(name, "X")
                     for (_status, body), name in zip(told, (theirs["id"], "never-1"))]
            assert clean[0] == clean[1], (method, template)
    b.rm(theirs["id"])
    a.rm(mine["id"])


def test_the_audit_log_is_cut_and_goes_on_by_cursor(daemon):
    a, b, ops = (daemon.caller(t) for t in (A_TOKEN, B_TOKEN, OPS_TOKEN))
    for _ in range(3):
        a.new("alpha-log")
        b.new("bravo-log")
        a.rm("alpha-log")
        b.rm("bravo-log")
    seen, cursor = [], ""
    while True:
        page = a.call("GET", f"/v1/audit?limit=2{cursor}")
        assert len(page["records"]) <= 2 and set(page["log"]) == {"full", "on_full", "error"}
        seen += page["records"]
        if not page["more"]:
            break
        cursor = "&cursor=" + page["next"]
    whole = [json.loads(line) for line in (daemon.state / "audit/audit.log").read_text().splitlines()]
    want = [r for r in whole if r.get("who") == "alpha"
            or r.get("session", "").startswith("alpha-") and r["event"] != "denied"]
    for r in want:
        del r["seq"], r["prev"]
    assert seen == want and len(want) >= 6
    assert ops.call("GET", "/v1/audit?limit=1000")["records"][-1]["seq"] == len(whole)
    # The place of one is no place of another, and nothing that anybody makes up is one.
    for caller, text in ((b, cursor), (a, "&cursor=" + "0" * 32), (a, "&cursor=12")):
        assert caller.raw("GET", f"/v1/audit?limit=2{text}")[0] == 400


def test_a_workspace_of_langbot_is_no_token_of_the_same_name(daemon):
    with Rpc(daemon.sock) as rpc:
        rpc.exec("s", "true")
    (made,) = [r for r in daemon.audit(event="session_create", via="rpc")]
    assert made["who"] == SAME["name"]
    page = daemon.caller(SAME_TOKEN).call("GET", "/v1/audit?limit=1000")
    assert page["records"] == []
    daemon.client().rm(made["session"])


def test_whoever_has_all_sessions_sees_everything(daemon):
    a, ops = daemon.caller(A_TOKEN), daemon.caller(OPS_TOKEN)
    a.new("alpha-3")
    status, text = ops.raw("GET", "/metrics")
    assert status == 200 and b'box_token_sessions{token="alpha"} 1' in text and b"box_execs_total" in text
    assert b"lacks sessions" in a.raw("GET", "/metrics")[1]
    assert ops.call("GET", "/v1/status")["active_sessions"] == 1
    assert "records" in ops.call("GET", "/v1/status")["audit"]
    a.rm("alpha-3")


def test_events_are_those_of_the_own_sessions(daemon):
    a, b = daemon.caller(A_TOKEN), daemon.caller(B_TOKEN)
    conn = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=60)
    conn.request("GET", "/v1/events", headers={"Authorization": f"Bearer {A_TOKEN}"})
    stream, text = conn.getresponse(), b""
    assert stream.readline() == b"event: ready\n"
    b.new("bravo-e")
    b.rm("bravo-e")
    a.new("alpha-e")
    while b"alpha-e" not in text:
        text += stream.readline()
    assert MARK.encode() not in text
    conn.close()
    a.rm("alpha-e")


def test_mcp_shows_the_own_sessions(daemon):
    b = daemon.caller(B_TOKEN)
    b.new("bravo-m")
    client = Http(daemon.port, A_TOKEN)
    for method in ("tools/list", "resources/list", "resources/templates/list"):
        assert MARK not in json.dumps(client.modern(method)), method
    assert MARK not in json.dumps(client.tool("list_sessions"))
    b.rm("bravo-m")
