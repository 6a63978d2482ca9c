# SPDX-License-Identifier: Apache-2.0
"""The document describes every route there is, and what boxd answers is what it says."""

import json
import pathlib
import re
import uuid

import openapilib
import pytest
from boxlib import ROOT, _UnixConnection
from hostlib import until
from ssetext import Events


@pytest.fixture(scope="module")
def document():
    return openapilib.load()


class Checked:
    """Every call is held against the document; which operations were called is remembered."""

    def __init__(self, daemon, document):
        self.daemon, self.document, self.called = daemon, document, set()

    def __call__(self, method, template, body=None, query="", want=None, headers=None, **params):
        path = template
        for name, value in params.items():
            path = path.replace("{" + name + "}", value)
        conn = _UnixConnection(str(self.daemon.sock), 120)
        payload = json.dumps(body) if isinstance(body, dict) else body
        conn.request(method, path + query, payload, headers or {})
        r = conn.getresponse()
        data = r.read()
        conn.close()
        is_json = "json" in r.headers.get("Content-Type", "")
        value = json.loads(data) if is_json else None
        assert want is None or r.status == want, (method, path, r.status, data[:300])
        openapilib.check(self.document, method, template, r.status, value)
        self.called.add((method.lower(), template))
        return value if is_json else data


def test_every_route_in_the_source_is_described(document):
    """By reading the source, not by asking the program that wrote the document."""
    found = set()
    elsewhere = ("mcp", "langbot")  # protocols with documents of their own
    for path in pathlib.Path(ROOT / "src/front").rglob("*.c"):
        if path.parent.name not in elsewhere:
            found |= {(m.lower(), p) for m, p in re.findall(r'\{\s*"([A-Z]+)",\s*"(/[^"]*)",\s*\w', path.read_text())}
    described = {(m, p) for p, item in document["paths"].items() for m in item}
    assert found and found == described


def test_the_document_is_served(boxd_shared, document):
    assert Checked(boxd_shared, document)("GET", "/v1/openapi.json", want=200) == document


def test_the_served_bytes_are_those_of_the_committed_document(boxd_shared, document):
    """The same text without the indentation."""
    conn = _UnixConnection(str(boxd_shared.sock), 120)
    conn.request("GET", "/v1/openapi.json")
    served = conn.getresponse()
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False) + "\n"
    assert served.headers["Content-Type"] == "application/json" and served.read() == text.encode()
    conn.close()


def test_references_and_names_are_whole(document):
    names = set(document["components"]["schemas"])
    assert set(re.findall(r"#/components/schemas/(\w+)", json.dumps(document))) <= names
    ids = [op["operationId"] for item in document["paths"].values() for op in item.values()]
    assert len(ids) == len(set(ids))
    for path, item in document["paths"].items():
        for op in item.values():
            assert set(re.findall(r"{(\w+)}", path)) == {p["name"] for p in op["parameters"] if p["in"] == "path"}
            assert op["summary"] and "default" in op["responses"]
    # Generators make a class of each, and take a name in lower case for a value.
    assert all(name[0].isupper() for name in document["components"]["schemas"])


def test_answers_are_what_the_document_says(boxd, document):
    """Each operation at least once, in one story."""
    call = Checked(boxd, document)
    s, d = {"id": "s"}, {"id": "d"}
    for path in ("/v1/health", "/v1/doctor", "/v1/status", "/v1/errors", "/v1/audit", "/v1/tools", "/metrics",
                 "/api/v1/health"):
        call("GET", path, want=200)
    call("POST", "/api/v1/create", {"chat_id": str(uuid.uuid4())}, want=501)  # not configured here
    call("DELETE", "/api/v1/sandboxes/{chat_id}", chat_id="no-uuid", want=422)
    call("POST", "/v1/sessions", {"session_id": "s"}, want=201)
    call("POST", "/v1/sessions", {"session_id": "s", "nonsense": 1}, want=422)
    call("PATCH", "/v1/sessions/{id}", {"cpus": 2}, want=204, **s)
    done = call("POST", "/v1/sessions/{id}/exec", {"cmd": "seq 1 1000; exit 3", "capture_bytes": 10}, want=200, **s)
    call("POST", "/v1/sessions/{id}/exec", {"cmd": "sleep 1001 >/dev/null 2>&1 & kill -9 $$"}, want=200, **s)
    for path in ("/v1/sessions", "/v1/sessions/{id}", "/v1/sessions/{id}/top", "/v1/sessions/{id}/changes", "/v1/stats"):
        call("GET", path, want=200, **(s if "{id}" in path else {}))
    output = {"output": done["stdout_id"], **s}
    assert call("GET", "/v1/sessions/{id}/outputs/{output}", want=200, **output).startswith(b"1\n2\n")
    call("GET", "/v1/sessions/{id}/outputs/{output}", headers={"Range": "bytes=2-3"}, want=206, **output)
    call("GET", "/v1/sessions/{id}/outputs/{output}", headers={"Range": "bytes=99999-"}, want=416, **output)
    call("GET", "/v1/sessions/{id}/outputs/{output}/grep", query="?pattern=99$&max_matches=2", want=200, **output)
    call("POST", "/v1/sessions/{id}/exec", {"cmd": "sleep 1000", "detach": True, "exec_id": "x"}, want=202, **s)
    x = {"exec": "x", **s}
    call("GET", "/v1/sessions/{id}/execs", want=200, **s)
    call("GET", "/v1/sessions/{id}/execs/{exec}", want=200, **x)
    call("POST", "/v1/sessions/{id}/execs/{exec}/signal", {"signal": "TERM"}, want=204, **x)
    until(lambda: call("GET", "/v1/sessions/{id}/execs/{exec}", **x)["status"] == "ended", what="the end")
    call("GET", "/v1/sessions/{id}/execs/{exec}/stream", want=200, **x)
    call("GET", "/v1/sessions/{id}/execs/{exec}/stream", query="?from=1", want=204, **x)
    call("DELETE", "/v1/sessions/{id}/execs/{exec}", want=204, **x)
    call("POST", "/v1/sessions/{id}/processes", {"process_id": "p", "command": "echo", "args": ["hi"]}, want=201, **s)
    p = {"process": "p", **s}
    until(lambda: call("GET", "/v1/sessions/{id}/processes/{process}", **p)["status"] == "exited", what="the end")
    call("GET", "/v1/sessions/{id}/processes", want=200, **s)
    for what, said in (("output", b"hi\n"), ("stderr", b""), ("log", b"hi\n")):
        assert call("GET", "/v1/sessions/{id}/processes/{process}/" + what, want=200, **p) == said
    call("POST", "/v1/sessions/{id}/processes/{process}/signal", {"signal": "TERM"}, want=409, **p)
    call("DELETE", "/v1/sessions/{id}/processes/{process}", want=204, **p)
    call("POST", "/v1/sessions/{id}/stop", want=409, **s)  # it is not kept
    call("POST", "/v1/sessions", {"session_id": "d", "durable": True}, want=201)
    call("POST", "/v1/sessions/{id}/pause", want=204, **d)
    call("GET", "/v1/sessions/{id}", want=200, **d)
    call("POST", "/v1/sessions/{id}/exec", {"cmd": "true"}, want=409, **d)
    call("POST", "/v1/sessions/{id}/unpause", want=204, **d)
    call("POST", "/v1/sessions/{id}/stop", want=204, **d)
    call("GET", "/v1/sessions/{id}", want=200, **d)
    call("POST", "/v1/sessions/{id}/rename", {"name": "e"}, want=204, **d)
    call("POST", "/v1/sessions/{id}/rename", {"nom": "e"}, want=422, id="e")
    call("POST", "/v1/sessions/{id}/start", want=200, id="e")
    call("DELETE", "/v1/sessions/{id}", want=204, id="e")
    call("GET", "/v1/holds", want=200)
    call("GET", "/v1/hold", want=400)
    f = "/v1/sessions/{id}/files"
    call("PUT", f, b"text", query="?path=/tmp/a", want=201, **s)
    call("PUT", f, b"more", query="?path=/tmp/a", want=200, **s)
    assert call("GET", f, query="?path=/tmp/a", want=200, **s) == b"more"
    for query, schema in (("?list=/tmp", "FileList"), ("?stat=/tmp/a", "FileStat")):
        conn = _UnixConnection(str(boxd.sock), 60)
        conn.request("GET", "/v1/sessions/s/files" + query)
        value = json.loads(conn.getresponse().read())
        conn.close()
        assert not openapilib.wrong(document, document["components"]["schemas"][schema], value)
    call("POST", f, {"op": "mkdir", "path": "/tmp/d"}, **s)
    call("POST", f, {"op": "move", "path": "/tmp/a", "to": "/tmp/d/b"}, **s)
    call("DELETE", f, query="?path=/tmp/d&recursive=1", want=204, **s)
    call("POST", "/v1/sessions/{id}/ports", {"port": 9}, want=201, **s)
    call("GET", "/v1/sessions/{id}/ports", want=200, **s)
    call("DELETE", "/v1/sessions/{id}/ports/{port}", want=204, port="9", **s)
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"):  # no server is there
        call(method, "/v1/sessions/{id}/ports/{port}/{path}", want=502, port="9", path="", **s)
    call("POST", "/v1/execute-tool", {"tool": "exec", "arguments": {"command": "echo hi"}, "session_id": "s"}, want=200)
    call("POST", "/v1/sessions/{id}/tools/{tool}", {"command": "echo hi"}, want=200, tool="exec", **s)
    for path in ("/v1/events", "/v1/sessions/s/files/watch?path=/tmp"):
        with Events(boxd.sock, "GET", path) as events:
            assert events.status == 200
    call.called |= {("get", "/v1/events"), ("get", "/v1/sessions/{id}/files/watch"), ("get", "/v1/openapi.json")}
    for path, status in (("/v1/exec", 400), ("/v1/errors", 200), ("/v1/audit", 200)):
        call("GET", path, want=status)
    call("DELETE", "/v1/sessions/{id}", want=204, **s)
    assert {(m, p) for p, item in document["paths"].items() for m in item} == call.called
