# SPDX-License-Identifier: Apache-2.0
"""What a token may do, over TCP on a real boxd: profiles, tools, mounts, networks, sessions. What it lacks it is told;
what is somebody else's is not there."""

import http.client
import json

import pytest
from boxlib import ApiError
from hostlib import until
from lbwire import WebSocket
from policylib import Caller, Governed, token

CI, CI_TOKEN = token("ci", profiles=["default", "network_basic"], tools=["*"], denied_tools=["doctor", "process"],
                     networks=["off"], sessions=["ci-*"])
OPS, OPS_TOKEN = token("ops", profiles=["*"], tools=["*"], networks=["*"], sessions=["*"])
READER, READER_TOKEN = token("reader", tools=["read", "grep", "write"], denied_tools=["write"])
POOR, POOR_TOKEN = token("poor", tools=["status"])
GONE, GONE_TOKEN = token("gone", tools=["*"], sessions=["*"], profiles=["*"], expires="2001-01-01T00:00:00Z")


def mounting(top):
    return token("mounting", profiles=["default"], tools=["*"], sessions=["m-*"],
                 mounts=[{"path": f"{top}/ro", "mode": "ro"}, {"path": f"{top}/rw", "mode": "rw"}])


HOLDER, HOLDER_TOKEN = token("holder", tools=["process", "exec"], sessions=["ci-*"])


@pytest.fixture(scope="module")
def daemon():
    d = Governed("box: {local: {allowed_mount_roots: ['{top}']}}", "--backend", "fake",
                 tokens=[CI, OPS, POOR, GONE, READER, HOLDER])
    for name in ("ro", "rw", "other"):
        d.directory(name)
    d.put_tokens([CI, OPS, POOR, GONE, READER, HOLDER, mounting(d.top)[0]])
    caller = d.caller(mounting(d.top)[1])
    until(lambda: caller.raw("GET", "/v1/sessions")[0] == 200, what="the new token")
    yield d
    d.close()


@pytest.fixture
def ci(daemon):
    caller = daemon.caller(CI_TOKEN)
    yield caller
    for name in caller.ps():
        caller.rm(name)
    caller.close()


@pytest.fixture
def ops(daemon):
    caller = daemon.caller(OPS_TOKEN)
    yield caller
    caller.close()


def denied(call, *args, status=403, **kwargs):
    with pytest.raises(ApiError) as caught:
        call(*args, **kwargs)
    assert caught.value.status == status, caught.value
    return caught.value.detail


def test_a_token_works_with_its_own_sessions(daemon, ci):
    ci.new("ci-1")
    assert ci.sh("ci-1", "echo hi")["outcome"] == "exited"
    assert ci.ps() == ["ci-1"]
    assert [r["who"] for r in daemon.audit(session="ci-1")[:3]] == ["ci"] * 3
    ci.rm("ci-1")
    assert daemon.audit(event="session_delete", session="ci-1")[-1]["who"] == "ci"


def test_sessions_of_others_are_not_there(daemon, ops):
    """The same words for what is somebody else's and for what never was: names are not to be probed."""
    caller = daemon.caller(mounting(daemon.top)[1])
    ops.new("theirs")
    try:
        assert "theirs" not in caller.ps()
        for method, path, body in (("GET", "", None), ("DELETE", "", None), ("POST", "/exec", {"cmd": "true"}),
                                   ("GET", "/processes", None), ("POST", "/processes", {"command": "x"}),
                                   ("GET", "/outputs/0123456789abcdef", None), ("GET", "/execs", None)):
            told = [denied(caller.call, method, f"/v1/sessions/{name}{path}", body, status=404).replace(name, "X")
                    for name in ("theirs", "nobodys")]
            assert told[0] == told[1] and "not found" in told[0], path
        assert denied(caller.new, "theirs", status=404) == "session theirs not found"
        assert denied(caller.new, "nobodys", status=404) == "session nobodys not found"
        # Somebody may want to know who tries.
        before = len(daemon.audit(event="denied", who="mounting", session="theirs"))
        for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/outputs/0123456789abcdef"), ("GET", "/execs/x"),
                             ("GET", "/files?list=/")):
            denied(caller.call, method, f"/v1/sessions/theirs{path}", status=404)
        found = daemon.audit(event="denied", who="mounting", session="theirs")[before:]
        assert [r["reason"] for r in found] == ["session theirs not found"] * 5
    finally:
        ops.rm("theirs")


def test_profiles(ci):
    assert ci.new("ci-p", profile="default")["network"] == "off"
    assert denied(ci.new, "ci-q", profile="network_extended") == "token 'ci' may not use the profile 'network_extended'"


def test_networks(daemon, ci, ops):
    assert denied(ci.new, "ci-n", network="on") == "token 'ci' may not use sessions with network on"
    assert denied(ci.new, "ci-n", profile="network_basic") == "token 'ci' may not use sessions with network on"
    # Nor one that somebody else has made under a name that is its own.
    ops.new("ci-online", network="on")
    assert denied(ci.sh, "ci-online", "true") == "token 'ci' may not use sessions with network on"
    # Nor what runs there: to follow it, to talk to it or to end it is to use it.
    ops.sh("ci-online", "sleep 100000", detach=True, exec_id="job")
    upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13",
               "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}
    impatient = Caller(daemon.port, CI_TOKEN, timeout=10)  # a stream that is let in has no end
    for method, path, body, headers in (("GET", "/stream", None, {}), ("GET", "/stream", None, upgrade),
                                        ("POST", "/signal", {"signal": "TERM"}, {}), ("DELETE", "", None, {})):
        status, text = impatient.raw(method, f"/v1/sessions/ci-online/execs/job{path}", body, headers)
        assert (status, json.loads(text)["detail"]) == (403, "token 'ci' may not use sessions with network on"), path
    assert ops.call("GET", "/v1/sessions/ci-online/execs/job")["status"] == "running"
    ops.rm("ci-online")


def test_tools(ci, daemon):
    ci.new("ci-t")
    assert denied(ci.call, "GET", "/v1/doctor") == "token 'ci' may not use 'doctor'"
    assert denied(ci.call, "GET", "/v1/sessions/ci-t/processes") == "token 'ci' may not use 'process'"
    assert denied(ci.call, "POST", "/v1/sessions/ci-t/processes", {"command": "x"}) == "token 'ci' may not use 'process'"
    poor = daemon.caller(POOR_TOKEN)
    assert poor.call("GET", "/v1/status")["available"] is True
    assert poor.ps() == []
    assert denied(poor.new, "x") == "token 'poor' may not use 'session'"
    assert denied(poor.call, "GET", "/v1/errors") == "token 'poor' may not use 'errors'"
    assert daemon.audit(event="denied", who="poor")[-1]["reason"] == "token 'poor' may not use 'errors'"


def test_the_list_of_tools_holds_what_the_caller_may_use(daemon, ci):
    reader = daemon.caller(READER_TOKEN)
    assert [t["name"] for t in reader.call("GET", "/v1/tools")["tools"]] == ["read", "grep"]
    assert len(ci.call("GET", "/v1/tools")["tools"]) == len(daemon.client().call("GET", "/v1/tools")["tools"]) == 6
    assert daemon.caller(POOR_TOKEN).call("GET", "/v1/tools")["tools"] == []


def test_a_busy_caller_does_not_cost_others_their_answers():
    """Kept answers are so many for each caller, whatever others keep; also after a restart."""
    key = {"Idempotency-Key": "k"}
    with_two = Governed("", "--backend", "fake", tokens=[CI, OPS])
    try:
        ci, ops = with_two.caller(CI_TOKEN), with_two.caller(OPS_TOKEN)
        assert ci.raw("POST", "/v1/sessions", {"session_id": "ci-k"}, key)[0] == 201
        ops.new("busy")
        for i in range(1100):
            assert ops.raw("POST", "/v1/sessions", {"session_id": "busy"}, {"Idempotency-Key": f"k{i}"})[0] == 201
        ci.rm("ci-k")
        for _ in range(2):
            status, _body = ci.raw("POST", "/v1/sessions", {"session_id": "ci-k"}, key)
            assert status == 201 and "ci-k" not in ci.ps()  # told again, and not made again
            with_two.stop()
            with_two.start()
        # The same key of another caller is another.
        assert ops.raw("POST", "/v1/sessions", {"session_id": "ci-k"}, key)[0] == 201 and "ci-k" in ci.ps()
    finally:
        with_two.close()


def test_a_stream_of_events_ends_with_its_token(daemon):
    one, one_token = token("one", tools=["*"], sessions=["*"], profiles=["*"])
    with_one = Governed("", "--backend", "fake", tokens=[one])
    try:
        conn = http.client.HTTPConnection("127.0.0.1", with_one.port, timeout=60)
        conn.request("GET", "/v1/events", headers={"Authorization": f"Bearer {one_token}"})
        stream = conn.getresponse()
        assert stream.readline() == b"event: ready\n"
        with_one.put_tokens([])
        until(lambda: with_one.caller(one_token).raw("GET", "/v1/sessions")[0] == 401, what="the end of the token")
        with_one.client().new("secret")
        assert b"secret" not in stream.read()  # to its end
    finally:
        with_one.close()


def test_mounts(daemon, ops):
    caller = daemon.caller(mounting(daemon.top)[1])
    top = str(daemon.top)
    assert caller.new("m-1", host_path=f"{top}/rw")["host_path"] == f"{top}/rw"
    assert caller.new("m-2", host_path=f"{top}/ro", host_path_mode="ro")["host_path_mode"] == "ro"
    assert denied(caller.new, "m-3", host_path=f"{top}/ro") == f"token 'mounting' may not mount '{top}/ro' for writing"
    assert denied(caller.new, "m-3", host_path=f"{top}/other") == f"token 'mounting' may not mount '{top}/other' for writing"
    extra = [{"host_path": f"{top}/other", "mount_path": "/mnt/x", "mode": "ro"}]
    assert denied(caller.new, "m-3", extra_mounts=extra).endswith(f"may not mount '{top}/other' at all")
    # The policy binds everybody, whatever the token says.
    assert "outside allowed_mount_roots" in denied(ops.new, "m-4", host_path="/etc")
    # Nor a session with a directory that somebody else has put into it.
    ops_local = daemon.client()
    ops_local.new("m-5", host_path=f"{top}/other")
    assert "may not mount" in denied(caller.sh, "m-5", "true")


def test_errors_are_told_to_those_who_made_them(daemon, ci, ops):
    denied(ci.new, "ci-e", network="on")
    mine = ci.call("GET", "/v1/errors")["errors"]
    assert mine and all("'ci'" in e["message"] or "session" in e["message"] for e in mine)
    assert all("'poor'" not in e["message"] for e in mine)
    other = daemon.caller(mounting(daemon.top)[1]).call("GET", "/v1/errors")["errors"]
    assert all("'ci'" not in e["message"] for e in other)
    assert all(e in ops.call("GET", "/v1/errors")["errors"] for e in mine)  # who has all sessions sees all of it
    everything = daemon.client().call("GET", "/v1/errors")["errors"]
    assert len(everything) >= len(mine)


def said(daemon, bearer, target, *messages):
    """The answer to the last of these messages on a WebSocket."""
    ws = WebSocket(("127.0.0.1", daemon.port), target, {"Authorization": f"Bearer {bearer}"})
    try:
        for message in messages:
            ws.send(json.dumps(message))
            answer = json.loads(ws.recv_frame()[-1])
    finally:
        ws.close()
    return answer


def test_streams_reach_no_session_that_the_scope_does_not_cover(daemon, ops):
    ops.new("ci-net", network="on")
    try:
        there = {"session": {"session_id": "ci-net"}, "create": False}
        for target, message in (("/v1/exec", {**there, "argv": ["true"]}), ("/v1/hold", {**there, "type": "hold"})):
            answer = said(daemon, HOLDER_TOKEN, target, message)
            assert (answer["type"], answer["code"]) == ("error", "denied"), answer
            assert "may not use sessions with network on" in answer["detail"]
    finally:
        ops.rm("ci-net")


def test_who_may_hold_a_session_may_not_end_it_for_that(daemon, ops):
    ops.new("ci-held")
    try:
        hold = {"type": "hold", "session": {"session_id": "ci-held"}, "create": False, "grace_sec": 600}
        answer = said(daemon, HOLDER_TOKEN, "/v1/hold", hold, {"type": "release"})
        assert answer["type"] == "error" and "may not use 'session'" in answer["detail"], answer
        assert "ci-held" in ops.ps()
    finally:
        ops.rm("ci-held")


def test_wrong_and_expired_tokens_are_refused_and_recorded(daemon):
    for bad in (None, "x" * 40, CI_TOKEN[:-1], CI_TOKEN + "x", GONE_TOKEN):
        status, body = daemon.caller(bad).raw("GET", "/v1/sessions")
        assert status == 401 and b"ci" not in body
    assert daemon.audit(event="denied", who="anyone")[-1]["reason"].startswith("wrong token")


def test_whoever_tries_many_tokens_is_told_to_wait_and_fills_no_log(daemon):
    caller, answers = daemon.caller("y" * 40), set()
    before = len(daemon.audit(event="denied", who="anyone"))
    for _ in range(3000):
        answers.add(caller.raw("GET", "/v1/sessions")[0])
        if 429 in answers:
            break
    assert answers == {401, 429}
    assert len(daemon.audit(event="denied", who="anyone")) - before < 200
    # Those who have one are served as ever.
    assert daemon.caller(OPS_TOKEN).raw("GET", "/v1/sessions")[0] == 200


def test_the_langbot_wire_is_closed_to_tokens_with_a_scope(daemon):
    for headers in ({}, {"X-LangBot-Box-Control-Token": OPS_TOKEN, "X-LangBot-Instance-Id": "i"}):
        upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13",
                   "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==", **headers}
        assert daemon.caller(OPS_TOKEN).raw("GET", "/rpc/ws", headers=upgrade)[0] == 401


def test_tokens_are_read_again_while_boxd_serves():
    one, one_token = token("one", tools=["*"], sessions=["*"], profiles=["*"])
    two, two_token = token("two", tools=["*"], sessions=["*"], profiles=["*"])
    with_one = Governed("", "--backend", "fake", tokens=[one])
    try:
        first, second = with_one.caller(one_token), with_one.caller(two_token)
        assert (first.raw("GET", "/v1/sessions")[0], second.raw("GET", "/v1/sessions")[0]) == (200, 401)
        with_one.put_tokens([two])
        until(lambda: second.raw("GET", "/v1/sessions")[0] == 200, what="the new token")
        assert first.raw("GET", "/v1/sessions")[0] == 401
        # While there is something wrong with the file nobody is let in.
        with_one.tokens_path.write_text("tokens: [nonsense")
        until(lambda: second.raw("GET", "/v1/sessions")[0] == 401, what="the bad file")
        assert "none of its tokens counts" in with_one.log()
        assert with_one.client().ps() == []  # the unix socket needs none
        with_one.put_tokens([two])
        until(lambda: second.raw("GET", "/v1/sessions")[0] == 200, what="the good file")
        with_one.tokens_path.chmod(0o644)
        until(lambda: second.raw("GET", "/v1/sessions")[0] == 401, what="a file that others can read")
    finally:
        with_one.close()


def test_a_file_that_others_can_read_is_refused_at_start(tmp_path):
    path = tmp_path / "tokens.yaml"
    path.write_text(json.dumps({"tokens": [CI]}))
    path.chmod(0o644)
    with pytest.raises(RuntimeError, match="others cannot use"):
        Governed(f"tokens_file: {path}", "--backend", "fake")
