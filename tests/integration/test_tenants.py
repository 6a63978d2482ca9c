# SPDX-License-Identifier: Apache-2.0
"""Workspaces that share one boxd, as one sees the other: checks I03, I11, I20 and M05 of the catalogue."""

import json
import re
import statistics
import time

import pytest
from boxlib import Boxd
from hostlib import SCALE, adopt_orphans, assert_no_leak, reap_orphans
from lbwire import (Refused, Rpc, RpcError, WebSocket, context, eventually, http_get, namespace, physical,
                    relay_headers, relay_path)
from rawlib import Wire, status_of
from watch import Watch

A, B = "ws-alpha", "ws-beta"


@pytest.fixture(scope="module")
def daemon():
    d = Boxd()
    yield d
    d.close()


@pytest.fixture
def tenants(daemon):
    """(a, b): the same wire, two workspaces. Whatever they made is gone afterwards."""
    with Rpc(daemon.sock, ctx=context(A)) as a, Rpc(daemon.sock, ctx=context(B)) as b:
        yield a, b
        for rpc in (a, b):
            for s in rpc.call("box_get_sessions")["sessions"]:
                rpc.call("box_delete_session", {"session_id": s["session_id"]})


def outcome(call):
    """An answer as a client sees it: (class, stable code, text)."""
    try:
        return "ok", None, call()
    except RpcError as error:
        return error.message.split(":")[0], error.code, error.message


# I03: what is somebody else's is not there.


def test_check_I03_names_of_another_workspace_are_not_found(tenants):
    a, b = tenants
    a.exec("secret", "echo mine > /workspace/f")
    a.call("box_start_managed_process", {"session_id": "secret", "spec": {"command": "cat"}})
    before = a.call("box_get_session", {"session_id": "secret"})
    for name in ("secret", physical("secret", A), f"../{physical('secret', A)}", namespace(workspace=A)):
        asked = {"session_id": name}
        for action in ("box_get_session", "box_delete_session", "box_get_managed_process", "box_stop_managed_process",
                       "box_start_managed_process"):
            data = asked | ({"spec": {"command": "true"}} if action == "box_start_managed_process" else {})
            kind, code, text = outcome(lambda action=action, data=data: b.call(action, data))
            assert (kind, code) == ("BoxSessionNotFoundError", "session_not_found"), (action, name, text)
            assert "denied" not in text and "ermission" not in text, text
    assert b.call("box_get_sessions")["sessions"] == []
    assert b.call("box_status")["active_sessions"] == 0
    # An exec by that name makes one of its own, with nothing of the other's in it.
    assert b.exec("secret", "ls -A /workspace; cat /workspace/f || true")["stdout"] == ""
    after = a.call("box_get_session", {"session_id": "secret"})
    assert {k: v for k, v in after.items() if "last_used" not in k} == {k: v for k, v in before.items()
                                                                      if "last_used" not in k}
    assert a.exec("secret", "cat /workspace/f")["stdout"] == "mine"


def test_check_I03_the_relay_tells_nothing_about_others(daemon, tenants):
    a, b = tenants
    a.call("box_create_session", {"session_id": "s"})
    a.call("box_start_managed_process", {"session_id": "s", "spec": {"command": "cat"}})
    b.call("box_status")
    own = relay_headers(workspace=B)
    answers = {}
    for kind, path in {"other": relay_path("s", workspace=A), "unknown": relay_path("never", workspace=A),
                       "no process": relay_path("s", "none", workspace=A),
                       "nobody": relay_path("s", workspace="ws-nobody"), "bare": "/v1/sessions/s/managed-process/ws",
                       "prefix": f"/v1/sessions/{namespace(workspace=B)}-g1-/managed-process/ws"}.items():
        with pytest.raises(Refused) as refused:
            WebSocket(daemon.sock, path, own)
        answers[kind] = (refused.value.status, refused.value.body)
    assert set(answers.values()) == {(401, b"Unauthorized")}, answers
    # With the other's own name on it, but of another instance or an older generation: the same.
    for headers in (relay_headers(workspace=A, instance="inst-x"), relay_headers(workspace=A, generation=2),
                    relay_headers(workspace=A) | {"X-LangBot-Workspace-Id": ""}):
        with pytest.raises(Refused) as refused:
            WebSocket(daemon.sock, relay_path("s", workspace=A), headers)
        assert (refused.value.status, refused.value.body) == (401, b"Unauthorized")
    assert "another workspace" in daemon.log()  # for whoever has to look into it later
    with WebSocket(daemon.sock, relay_path("s", workspace=A), relay_headers(workspace=A)) as ws:
        ws.send("hello")
        assert ws.recv() == "hello"


def test_check_I03_nobody_speaks_for_another_instance(daemon, tenants):
    a, _ = tenants
    a.call("box_create_session", {"session_id": "s"})
    for ctx in (context(A, instance="inst-b"), context(A, instance="INST-A"), context(A, instance="inst-a ")):
        kind, code, text = outcome(lambda ctx=ctx: a.call("box_get_sessions", ctx=ctx))
        if ctx["instance_uuid"].strip() != "inst-a":
            assert (kind, code) == ("PermissionError", "denied"), text
    with pytest.raises(Refused) as refused:
        Rpc(daemon.sock, instance="inst-b")
    assert (refused.value.status, refused.value.body) == (401, b"Unauthorized")


def test_check_I03_who_was_shut_out_stays_out_when_boxd_is_another():
    """The generation that counts is known from the sessions that are left, before anybody has said a word."""
    adopt_orphans()
    d = Boxd()
    try:
        with Rpc(d.sock, ctx=context(A, generation=5)) as rpc:
            rpc.call("box_create_session", {"session_id": "s"})
            rpc.call("box_start_managed_process", {"session_id": "s", "spec": {"command": "cat"}})
        d.process.kill()
        d.process.wait()
        d.start()
        path = f"/v1/sessions/{physical('s', A, generation=5)}/managed-process/ws"
        # Somebody has to be the instance that is trusted; it says nothing about workspaces.
        with Rpc(d.sock) as rpc:
            rpc.call("__ping", ctx=None)
            with WebSocket(d.sock, path, relay_headers(workspace=A, generation=5)) as ws:
                ws.send("still mine")
                assert ws.recv() == "still mine"
            for generation in (1, 4):
                with pytest.raises(RpcError, match="Stale Box placement generation"):
                    rpc.call("box_get_sessions", ctx=context(A, generation=generation))
            now = rpc.call("box_get_sessions", ctx=context(A, generation=5))["sessions"]
            assert [s["session_id"] for s in now] == ["s"]
            # The next one takes over as ever.
            assert rpc.call("box_get_sessions", ctx=context(A, generation=6))["sessions"] == []
            assert eventually(lambda: d.client().ps() == [], 20 * SCALE)
        assert_no_leak(d)
    finally:
        d.close()
        reap_orphans()


# M05: an answer does not tell whether it is there for somebody else.


def shape(text, *names):
    for name in names:
        text = text.replace(name, "NAME")
    return re.sub(r"ws-[0-9a-f]{24}-g\d+-", "", text)


def test_check_M05_another_workspaces_name_and_an_unknown_one_are_alike(daemon, tenants):
    a, b = tenants
    a.call("box_create_session", {"session_id": "taken"})
    a.call("box_start_managed_process", {"session_id": "taken", "spec": {"command": "cat", "process_id": "p"}})
    for action in ("box_get_session", "box_delete_session", "box_get_managed_process", "box_stop_managed_process"):
        seen = set()
        for name in ("taken", "never", physical("taken", A), physical("never", A)):
            kind, code, text = outcome(
                lambda action=action, name=name: b.call(action, {"session_id": name, "process_id": "p"}))
            seen.add((kind, code, shape(text, name)))
        assert len(seen) == 1, seen
    # No message names anything that is not the caller's own.
    assert namespace(workspace=A) not in "".join(
        outcome(lambda: b.call("box_get_session", {"session_id": "taken"}))[2] for _ in range(2))


def test_check_M05_how_long_it_takes_tells_nothing(tenants):
    a, b = tenants
    a.call("box_create_session", {"session_id": "taken"})
    times = {"taken": [], "never": []}
    for i in range(400):
        for name in times if i % 2 else reversed(times):
            begin = time.perf_counter()
            with pytest.raises(RpcError):
                b.call("box_get_session", {"session_id": name})
            times[name].append(time.perf_counter() - begin)
    taken, never = (statistics.median(t) for t in times.values())
    # The loose bound of a busy machine; the code is the same, which the shape of the answers shows.
    assert abs(taken - never) < 0.5 * max(taken, never) + 50e-6, (taken, never)


def test_check_M05_counters_of_a_workspace_are_its_own(daemon, tenants):
    a, b = tenants
    before = b.call("box_status"), b.call("box_get_sessions")
    a.call("box_create_session", {"session_id": "one"})
    a.call("box_start_managed_process", {"session_id": "one", "spec": {"command": "cat"}})
    after = b.call("box_status"), b.call("box_get_sessions")

    def no_times(status):
        # How many more there may be depends on everybody; docs/reference/threat-model.md says so.
        status.get("capacity", {}).pop("remaining", None)
        return json.loads(re.sub(r'"[^"]*(_at|uptime[^"]*|_ms|_sec)": [^,}]*', '"t": 0', json.dumps(status)))
    assert [no_times(s) for s in after] == [no_times(s) for s in before]
    assert a.call("box_status")["active_sessions"] == 1
    # Probes of the machine's owner tell numbers and no names.
    for path in ("/healthz", "/readyz"):
        _, _, body = http_get(daemon.sock, path)
        assert b"ws-" not in body and b"one" not in body and namespace(workspace=A).encode() not in body, body


# I11: the same thing asked for twice.


def test_check_I11_the_same_request_twice_at_once_has_one_effect(tenants):
    """What carries a name is made once however often it is asked for. A seq_id names an answer and nothing else: a
    command that is sent twice runs twice, one after the other, and both are told."""
    a, _ = tenants
    made = [a.say(json.dumps({"seq_id": 7, "action": "box_create_session", "data": {"session_id": "twin"},
                              "context": a.ctx})) for _ in range(5)]
    replies = [json.loads(a.hear()) for _ in made]
    assert [r["seq_id"] for r in replies] == [7] * 5 and {r["code"] for r in replies} == {0}
    assert len({json.dumps(r["data"]["backend_session_id"]) for r in replies}) == 1
    assert len(a.call("box_get_sessions")["sessions"]) == 1
    for _ in range(2):
        a.say(json.dumps({"seq_id": 8, "action": "box_exec", "context": a.ctx,
                          "data": {"session_id": "twin", "cmd": "echo x >> /workspace/f; wc -l < /workspace/f"}}))
    assert sorted(json.loads(a.hear())["data"]["stdout"] for _ in range(2)) == ["1", "2"]
    for _ in range(3):
        a.say(json.dumps({"seq_id": 9, "action": "box_delete_session", "context": a.ctx,
                          "data": {"session_id": "twin"}}))
    answers = [json.loads(a.hear()) for _ in range(3)]
    assert all(r["seq_id"] == 9 for r in answers)
    assert {r["code"] for r in answers} <= {0, 1} and [r["code"] for r in answers].count(0) >= 1, answers
    assert all("BoxSessionNotFoundError" in r["message"] for r in answers if r["code"]), answers
    assert a.call("box_get_sessions")["sessions"] == []


def test_check_I11_a_process_that_is_started_twice_at_once_runs_once(tenants):
    a, _ = tenants
    a.call("box_create_session", {"session_id": "s"})
    start = {"session_id": "s", "spec": {"command": "sh", "args": [
        "-c", "echo up >> /workspace/ups; trap 'echo down >> /workspace/ups; exit' TERM; "
              "while :; do sleep 0.02; done"]}}
    seqs = [a.start("box_start_managed_process", start) for _ in range(4)]
    for seq in seqs:
        outcome(lambda seq=seq: a.wait(seq))
    assert a.call("box_get_managed_process", {"session_id": "s"})["status"] == "running"

    def one():
        # One that was replaced before it came to its first line has left no trace.
        lines = a.exec("s", "cat /workspace/ups")["stdout"].split()
        return lines.count("up") - lines.count("down") == 1
    assert eventually(one, 20 * SCALE)


def test_check_I11_after_a_crash_the_same_request_finds_what_it_made():
    """A client whose answer was lost asks again: the name is the key, and the session is still the one."""
    adopt_orphans()
    d = Boxd()
    try:
        with Rpc(d.sock, ctx=context(A)) as a:
            first = a.call("box_create_session", {"session_id": "s"})
            a.exec("s", "echo once >> /workspace/f")
            a.start("box_create_session", {"session_id": "s"})
            a.start("box_start_managed_process", {"session_id": "s", "spec": {"command": "cat"}})
            d.process.kill()
            d.process.wait()
        d.start()
        with Rpc(d.sock, ctx=context(A)) as a:
            again = a.call("box_create_session", {"session_id": "s"})
            assert again["created_at"] == first["created_at"]
            assert again["backend_session_id"] == first["backend_session_id"]
            a.call("box_start_managed_process", {"session_id": "s", "spec": {"command": "cat"}})
            # The one that was asked for before, if it came to that, was replaced.
            watch = Watch(d.client(), physical("s", A))
            assert eventually(lambda: watch.names() == ["cat"], 20 * SCALE), watch.names()
            assert a.exec("s", "cat /workspace/f")["stdout"] == "once"
        with Rpc(d.sock, ctx=context(A)) as a:
            a.call("box_delete_session", {"session_id": "s"})
        assert_no_leak(d)
    finally:
        d.close()
        reap_orphans()


# I20: what a newer, an older or a mad client says.


@pytest.mark.parametrize("action", ["", "box_nothing", "BOX_EXEC", "box_exec ", "__proto__", "x" * 5000, "böx",
                                    "a\x00b", "BoxSessionNotFoundError: fooled"])
def test_check_I20_an_unknown_action_is_answered(tenants, action):
    a, _ = tenants
    with pytest.raises(RpcError) as error:
        a.call(action)
    assert error.value.message.startswith("ValueError: "), error.value.message
    assert "BoxSessionNotFoundError:" not in error.value.message
    assert len(error.value.message) < 6000
    assert a.call("__ping", ctx=None) is not None


ODD = [b"", b"{}", b"[]", b"null", b"1", b'"x"', b"{", b'{"seq_id": 1}', b'{"action": 1}', b"\xef\xbb\xbf{}",
       b'{"seq_id": 1, "code": 0, "message": "success", "data": {}, "chunk_status": "end"}',
       b'{"jsonrpc": "2.0", "id": 1, "method": "box_exec", "params": {}}', b"[" * 100000, b'{"a":' * 100000]


def test_check_I20_what_is_no_request_of_this_protocol_is_passed_over(tenants):
    a, _ = tenants
    for text in ODD:
        a.ws.send(text)
        assert "status" in a.call("box_status") or a.call("box_status")
    # With an action in it, it is one, and whatever is wrong is told under its own number.
    for message, where in (({"seq_id": 5, "action": "box_status"}, "data"),
                           ({"seq_id": "x", "action": "box_status", "data": {}}, "seq_id"),
                           ({"seq_id": 6, "action": "box_status", "data": []}, "data"),
                           ({"seq_id": 6, "action": 5, "data": {}}, "action"),
                           ({"seq_id": 6, "action": "box_status", "data": {}, "context": []}, "context"),
                           ({"seq_id": 6, "action": "box_status", "data": {},
                             "context": context(A) | {"of_tomorrow": 1}}, "context")):
        a.say(json.dumps(message))
        reply = json.loads(a.hear())
        assert reply["code"] == 1 and reply["seq_id"] in (message["seq_id"], -1), reply
        assert reply["message"].startswith("ValidationError: ") and f"\n{where}" in reply["message"], reply
    # Members that a later version may add to a request are no reason to refuse it.
    a.say(json.dumps({"seq_id": 9, "action": "box_status", "data": {"of_tomorrow": 1}, "context": a.ctx, "trace": "x"}))
    assert json.loads(a.hear())["code"] == 0


def test_check_I20_an_answer_that_is_too_large_is_an_error_of_its_own(tenants):
    """Nobody gets a message above 16 MiB: output is cut where it is kept, and the rest is counted."""
    a, _ = tenants
    answer = a.exec("s", "head -c 40000000 /dev/zero | tr '\\0' '\\001'", timeout_sec=60)
    assert "bytes discarded" in answer["stdout"]
    assert len(json.dumps(answer)) < 16 << 20
    assert a.exec("s", "echo fine")["stdout"] == "fine"


def test_check_I20_protocols_of_tomorrow_over_http(daemon):
    for line, want in (("GET /v2/sessions HTTP/1.1", {404}), ("GET /v1/sessions HTTP/2.0", {400, 505}),
                       ("PRI * HTTP/2.0", {400, 505}), ("GET /v1/none HTTP/1.1", {404}),
                       ("PATCH /v1/sessions HTTP/1.1", {405})):
        with Wire(daemon.sock) as w:
            w.send(f"{line}\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            data = w.until_end()
        assert status_of(data) in want, (line, data[:100])
    assert daemon.client().ps() is not None
