# SPDX-License-Identifier: Apache-2.0
"""A token that is removed, changed or expired takes its open streams with it, at once and with a reason; those of
others, and of a token whose entry stays as it is, go on."""

import datetime
import http.client
import json

import pytest
from hostlib import until
from lbwire import Closed, WebSocket
from mcpservelib import INITIALIZE
from policylib import Governed, token
from ssetext import Events

OPEN = {"tools": ["*"], "profiles": ["*"], "sessions": ["*"]}
GONE, GONE_TOKEN = token("gone", **OPEN)
STAYS, STAYS_TOKEN = token("stays", **OPEN)
REASON = "the token was removed, has changed or has expired"
STAY = "echo here; exec sleep 100000"


@pytest.fixture
def daemon():
    d = Governed("", tokens=[GONE, STAYS])
    yield d
    d.close()


def auth(text):
    return {"Authorization": f"Bearer {text}"}


def where(daemon):
    return ("127.0.0.1", daemon.port)


def exec_socket(daemon, text, session, **more):
    """A command over a WebSocket that has begun, and said something."""
    ws = WebSocket(where(daemon), "/v1/exec", auth(text))
    ws.send(json.dumps({"session": {"session_id": session}, "create": False, "cmd": STAY, **more}))
    while b"here" not in (got := ws.recv_frame()[-1]):
        assert got
    return ws


def exec_events(daemon, text, session, **more):
    events = Events(where(daemon), "POST", f"/v1/sessions/{session}/exec", {"cmd": STAY, **more}, auth(text))
    assert events.status == 200
    while next(events)[0] != "output":
        pass
    return events


def other_events(daemon, text, target):
    events = Events(where(daemon), "GET", target, headers=auth(text))
    assert events.status == 200 and next(events)
    return events


def mcp_listener(daemon, text):
    conn = http.client.HTTPConnection(*where(daemon), timeout=60)
    accept = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    conn.request("POST", "/mcp", json.dumps(INITIALIZE), {**auth(text), **accept})
    answer = conn.getresponse()
    answer.read()
    session = answer.headers["Mcp-Session-Id"]
    conn.close()
    events = Events(where(daemon), "GET", "/mcp", headers={**auth(text), "Mcp-Session-Id": session})
    assert events.status == 200
    return events


def ended(events):
    """The last event, and that it is the last."""
    said = list(events)
    assert said[-1][0] == "revoked" and said[-1][2] == {"reason": REASON}, said
    return True


def closed(ws):
    with pytest.raises(Closed) as caught:
        while True:
            ws.recv()
    return caught.value.code, caught.value.reason


def test_a_removed_token_takes_its_streams_with_it(daemon):
    local = daemon.client()
    for name in ("a", "b", "keeps"):
        local.new(name)
    sockets = [exec_socket(daemon, GONE_TOKEN, "a"), WebSocket(where(daemon), "/v1/hold", auth(GONE_TOKEN)),
               WebSocket(where(daemon), "/mcp/stdio", auth(GONE_TOKEN))]
    streams = [exec_events(daemon, GONE_TOKEN, "a"), other_events(daemon, GONE_TOKEN, "/v1/events"),
               other_events(daemon, GONE_TOKEN, "/v1/sessions/a/files/watch?path=/workspace"),
               mcp_listener(daemon, GONE_TOKEN)]
    kept = exec_events(daemon, GONE_TOKEN, "keeps", exec_id="job", on_disconnect="keep")
    theirs, watching = exec_socket(daemon, STAYS_TOKEN, "b"), other_events(daemon, STAYS_TOKEN, "/v1/events")
    assert local.get("a")["execs"] == 2

    daemon.put_tokens([STAYS])  # another file, the same entry
    for ws in sockets:
        assert closed(ws) == (1008, REASON)
    for events in [*streams, kept]:
        assert ended(events)
    # What ran for nobody else ends; what was to outlive its readers does.
    until(lambda: local.get("a")["execs"] == 0, what="the end of its commands")
    assert local.call("GET", "/v1/sessions/keeps/execs/job")["status"] == "running"
    assert "streams have ended with their tokens" in daemon.log() and GONE_TOKEN not in daemon.log()

    # Others notice nothing.
    local.new("later")
    while next(watching)[2].get("session_id") != "later":
        pass
    assert local.get("b")["execs"] == 1
    theirs.frame(1, json.dumps({"type": "signal", "signal": "KILL"}).encode())
    while json.loads(theirs.recv()).get("type") != "exit":
        pass


@pytest.mark.parametrize("change", ["rights", "cap", "file"])
def test_a_changed_entry_is_asked_again(daemon, change):
    daemon.client().new("a")
    ws = exec_socket(daemon, GONE_TOKEN, "a")
    if change == "file":
        daemon.tokens_path.unlink()
    else:
        daemon.put_tokens([STAYS, {**GONE, **({"tools": ["exec"]} if change == "rights" else {"max_execs": 7})}])
    assert closed(ws) == (1008, REASON)


def test_an_expired_token_ends_what_it_began(daemon):
    end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=10)
    entry, text = token("short", **OPEN, expires=end.isoformat())
    daemon.put_tokens([STAYS, entry])
    caller = daemon.caller(text)
    until(lambda: caller.raw("GET", "/v1/sessions")[0] == 200, what="the new token")
    with other_events(daemon, text, "/v1/events") as events:
        assert ended(events)
    assert datetime.datetime.now(datetime.timezone.utc) >= end


def test_whoever_was_let_in_is_answered(daemon):
    """A request, unlike a stream, comes to its end: check I19 of the catalogue has the same for `token_file`."""
    local = daemon.client()
    local.new("a")
    conn = http.client.HTTPConnection(*where(daemon), timeout=60)
    body = {"cmd": "while [ ! -e /workspace/go ]; do sleep 0.05; done; echo done", "timeout_sec": 60}
    conn.request("POST", "/v1/sessions/a/exec", json.dumps(body), auth(GONE_TOKEN))
    until(lambda: local.get("a")["execs"] == 1, what="the command")
    daemon.put_tokens([STAYS])
    caller = daemon.caller(GONE_TOKEN)
    until(lambda: caller.raw("GET", "/v1/sessions")[0] == 401, what="the end of the token")
    local.sh("a", "touch /workspace/go")
    assert json.loads(conn.getresponse().read())["stdout"] == "done\n"
