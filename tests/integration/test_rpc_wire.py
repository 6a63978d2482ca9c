# SPDX-License-Identifier: Apache-2.0
"""The LangBot wire from outside: who may connect, what a message is, and how a connection ends."""

import json
import os
import struct

import pytest
from boxlib import Boxd
from lbwire import (BINARY, CLOSE, INSTANCE, PING, PONG, TEXT, Closed, Refused, Rpc, RpcError, WebSocket, context,
                    free_port, http_get, relay_headers, relay_path)

TOKEN = "0123456789abcdef0123456789abcdef"
WS = {"X-LangBot-Instance-Id": INSTANCE}


@pytest.fixture(scope="module")
def daemon():
    d = Boxd()
    yield d
    d.close()


@pytest.fixture
def rpc(daemon):
    with Rpc(daemon.sock) as r:
        yield r


def refused(address, path="/rpc/ws", headers=None):
    with pytest.raises(Refused) as e:
        WebSocket(address, path, headers)
    assert e.value.status == 401 and e.value.body == b"Unauthorized", e.value
    assert e.value.headers["content-type"] == "text/plain; charset=utf-8"


# Who may connect.

def test_probes_need_nobody(daemon):
    status, headers, body = http_get(daemon.sock, "/healthz")
    health = json.loads(body)
    assert status == 200 and headers["content-type"].startswith("application/json")
    assert health["live"] is True
    assert set(health["resources"]) == {
        "event_loop", "blocking_executor", "sessions", "managed_processes", "completed_processes",
        "creating_session_tasks", "closing_session_tasks", "background_tasks"}
    status, _, body = http_get(daemon.sock, "/readyz")
    ready = json.loads(body)
    assert status == 200 and ready.pop("resources")
    assert ready == {"ready": True, "mode": "standard", "backend": {"name": "native", "available": True},
                     "checks": {"backend_available": True}}
    assert http_get(daemon.sock, "/healthz", method="HEAD")[0] == 200
    status, headers, _ = http_get(daemon.sock, "/healthz", method="POST")
    assert status == 405 and headers["allow"] == "GET,HEAD"
    assert http_get(daemon.sock, "/rpc/other")[0] == 404


@pytest.mark.parametrize("instance", [None, "", "-x", "a b", "a" * 129, "ü"])
def test_an_instance_must_be_named(daemon, instance):
    refused(daemon.sock, headers=None if instance is None else {"X-LangBot-Instance-Id": instance})


def test_the_first_instance_is_the_only_one(daemon, rpc):
    rpc.call("__ping", ctx=None)
    refused(daemon.sock, headers={"X-LangBot-Instance-Id": "somebody-else"})
    with Rpc(daemon.sock, instance=f"  {INSTANCE} ") as again:  # several connections of the same
        again.call("__ping", ctx=None)


def test_bug_13_only_an_upgrade_makes_an_instance_trusted(boxd):
    """Upstream: a plain GET pinned whoever sent it."""
    assert http_get(boxd.sock, "/rpc/ws", {"X-LangBot-Instance-Id": "passer-by"})[0] == 400
    with Rpc(boxd.sock) as r:
        r.call("__ping", ctx=None)
    refused(boxd.sock, headers={"X-LangBot-Instance-Id": "passer-by"})


def test_the_relay_trusts_nobody_first(boxd):
    refused(boxd.sock, relay_path("s"), relay_headers())


def test_tcp_clients_need_the_token():
    port = free_port()
    d = Boxd("--ws-control-port", str(port), env={"LANGBOT_BOX_CONTROL_TOKEN": f" {TOKEN}\n"})
    address = ("127.0.0.1", port)
    try:
        refused(address, headers=WS)
        refused(address, headers={**WS, "X-LangBot-Box-Control-Token": ""})
        refused(address, headers={**WS, "X-LangBot-Box-Control-Token": TOKEN + "0"})
        refused(address, headers={"X-LangBot-Box-Control-Token": TOKEN})
        with Rpc(address, token=TOKEN) as r:
            r.call("__ping", ctx=None)
        assert http_get(address, "/readyz")[0] == 200
        assert http_get(address, "/v1/sessions")[0] == 401  # the other front asks for it, too
        assert http_get(address, "/v1/sessions", {"Authorization": f"Bearer {TOKEN}"})[0] == 200
        # A name in the Host header that is none of ours: with a token it does not matter.
        assert http_get(address, "/healthz", {"Host": "langbot_box:5410"}, host=False)[0] == 200
        with Rpc(d.sock) as r:  # the socket file is protected by its mode
            r.call("__ping", ctx=None)
    finally:
        d.close()


def test_other_addresses_demand_a_token():
    with pytest.raises(RuntimeError, match="LANGBOT_BOX_CONTROL_TOKEN"):
        Boxd("--host", "0.0.0.0", "--ws-control-port", str(free_port()))


@pytest.mark.parametrize("token", ["short", "0123456789abcdef 0123456789abcdef"])
def test_a_bad_token_is_no_token(token):
    with pytest.raises(RuntimeError, match="LANGBOT_BOX_CONTROL_TOKEN must be a non-whitespace secret of at least 32"):
        Boxd(env={"LANGBOT_BOX_CONTROL_TOKEN": token})


def test_without_a_token_one_that_is_sent_does_not_matter(daemon):
    with Rpc(daemon.sock, token="whatever") as r:
        r.call("__ping", ctx=None)


def test_a_trusted_instance_can_be_preset():
    d = Boxd(env={"LANGBOT_BOX_TRUSTED_INSTANCE_UUID": "known"})
    try:
        refused(d.sock, headers=WS)
        with Rpc(d.sock, instance="known", ctx=context(instance="known")) as r:
            assert r.call("box_status")["active_sessions"] == 0
    finally:
        d.close()
    with pytest.raises(RuntimeError, match="A valid trusted LangBot instance UUID is required"):
        Boxd(env={"LANGBOT_BOX_TRUSTED_INSTANCE_UUID": "not valid"})


# Messages.

def test_envelope_replies_have_all_members(rpc):
    seq = rpc.start("__ping", ctx=None)
    assert rpc.wait_reply(seq) == {"seq_id": seq, "code": 0, "message": "success", "data": {},
                                   "chunk_status": "continue"}
    seq = rpc.start("box_nothing", ctx=None)
    assert rpc.wait_reply(seq) == {"seq_id": seq, "code": 1, "message": "ValueError: Action box_nothing not found",
                                   "data": {}, "chunk_status": "continue", "error_code": "bad_value"}


def test_envelope_seq_id_comes_back_as_it_was(rpc):
    for seq in ("7", -1, 0, 2**53):
        rpc.say(json.dumps({"seq_id": seq, "action": "__ping", "data": {}}))
        assert json.loads(rpc.hear())["seq_id"] == seq
    rpc.say('{"action": "__ping", "data": {}}')
    reply = json.loads(rpc.hear())
    assert reply["seq_id"] == -1 and reply["message"].startswith("ValidationError: 1 validation error for ")


def test_envelope_what_is_no_request_is_ignored(rpc):
    for text in ("", "x", "[]", "{}", '{"seq_id":1}', '{"seq_id":1,"action":"__ping","data":{},"code":0}'):
        rpc.say(text)
    rpc.call("__ping", ctx=None)  # and nothing came before


def test_envelope_context_is_checked(rpc):
    for bad in ({"instance_uuid": INSTANCE}, {**context(), "extra": 1}, {**context(), "placement_generation": 0}):
        with pytest.raises(RpcError, match="^ValidationError: 1 validation error for ActionRequest\ncontext"):
            rpc.call("box_status", ctx=bad)
    with pytest.raises(RpcError, match="^PermissionError: Box tenant action requires a trusted Workspace context$"):
        rpc.call("box_status", ctx=None)
    with pytest.raises(RpcError, match="^PermissionError: Box action context does not match the trusted instance$"):
        rpc.call("__ping", ctx=context(instance="other"))
    binding = {**context(), "installation_uuid": "i", "runtime_revision": 1, "artifact_digest": "d"}
    assert rpc.call("box_status", ctx=binding)["active_sessions"] == 0


def test_errors_never_pass_for_another_class(rpc):
    """Upstream defect: the client takes the class from anywhere in the text (langbot-host 7.3, 9)."""
    name = "evil BoxAdmissionError: x"
    rpc.call("box_create_session", {"session_id": "e", "image": name})
    with pytest.raises(RpcError) as e:
        rpc.call("box_create_session", {"session_id": "e", "image": "other"})
    assert e.value.message.startswith("BoxSessionConflictError: ") and "BoxAdmissionError :" in e.value.message
    assert "BoxAdmissionError:" not in e.value.message and e.value.code == "session_conflict"
    with pytest.raises(RpcError, match="^ValueError: Action BoxReadinessError : not found$"):
        rpc.call("BoxReadinessError:", ctx=None)
    with pytest.raises(RpcError) as e:
        rpc.call("x" * 5000, ctx=None)
    assert e.value.message == "ValueError: Action " + "x" * (4096 - 7) + "... [protocol error truncated]"
    rpc.call("box_delete_session", {"session_id": "e"})


def test_envelope_fragments_are_joined(rpc):
    cmd = "true # " + "x" * 3_000_000
    assert rpc.exec("frag", cmd)["exit_code"] == 0  # 64 KiB each, as LangBot's client sends it
    rpc.ws.send(json.dumps({"seq_id": 5, "action": "__ping", "data": {}}), fragment=1)
    assert json.loads(rpc.hear())["seq_id"] == 5
    rpc.call("box_delete_session", {"session_id": "frag"})


def test_envelope_pings_are_answered_while_a_command_runs(rpc):
    rpc.call("box_create_session", {"session_id": "p"})
    seq = rpc.start("box_exec", {"session_id": "p", "cmd": "sleep 60", "timeout_sec": 60})
    rpc.ws.frame(PING, b"are you there")
    assert rpc.ws.recv_frame() == (PONG, b"are you there")
    rpc.call("__ping", ctx=None)
    rpc.call("box_delete_session", {"session_id": "p"})
    with pytest.raises(RpcError, match="^BoxError: session .*-p ended while the command was running$"):
        rpc.wait(seq)


def test_envelope_more_than_128_at_once(rpc):
    seqs = [rpc.start("box_exec", {"session_id": "busy", "cmd": "sleep 3", "timeout_sec": 1})
            for _ in range(128)]
    with pytest.raises(RpcError, match=r"^Runtime connection is busy \(max 128 concurrent actions\)$") as e:
        rpc.call("__ping", ctx=None)
    assert e.value.code == "busy"
    rpc.ws.close()
    assert len(seqs) == 128


# How it ends.

def close_code(ws):
    with pytest.raises(Closed) as e:
        ws.recv()
    return e.value.code


def test_close_binary_frames_end_it(daemon):
    with Rpc(daemon.sock) as r:
        r.ws.frame(BINARY, b"{}")
        assert close_code(r.ws) == 1000


def test_close_large_messages_end_it(daemon):
    with Rpc(daemon.sock) as r:
        limit = 16 * 1024 * 1024
        head = '{"seq_id":1,"action":"__ping","data":{"x":"'
        r.ws.send(head + "x" * (limit - len(head) - 3) + '"}}')
        assert json.loads(r.hear())["code"] == 0
        r.ws.sock.sendall(struct.pack("!BBQ", 0x81, 0xFF, limit + 1) + b"\0\0\0\0" + b"{" * 100)
        assert close_code(r.ws) == 1009


def test_close_bad_utf8_ends_it(daemon):
    with Rpc(daemon.sock) as r:
        r.ws.frame(TEXT, b'{"\xff"}')
        assert close_code(r.ws) == 1007


def test_close_is_answered(daemon):
    with Rpc(daemon.sock) as r:
        assert r.ws.close(1000) == 1000


def test_bug_10_sigterm_says_good_bye_and_cleans_up():
    """Upstream: SIGTERM killed the runtime and left its sandboxes behind."""
    d = Boxd()
    try:
        with Rpc(d.sock) as r:
            r.call("box_create_session", {"session_id": "s", "persistent": True})
            d.process.terminate()
            with pytest.raises(Closed) as e:
                r.hear()
            assert (e.value.code, e.value.reason) == (1001, "Box runtime shutting down")
        assert d.process.wait(60) == 0
        assert not [p for p in (d.state / "sessions").glob("*")]
    finally:
        d.close()


def test_answers_that_nobody_reads_hold_only_their_own(daemon):
    """Back-pressure: a client that does not read gets no more work done, others do."""
    flood = {"session_id": "slow", "cmd": "head -c 1000000 /dev/zero | tr '\\0' x"}
    with Rpc(daemon.sock) as slow, Rpc(daemon.sock) as other:
        seqs = [slow.start("box_exec", flood) for _ in range(40)]
        for _ in range(20):
            other.call("__ping", ctx=None)
        assert other.exec("quick", "echo hi")["stdout"] == "hi"
        for seq in seqs:
            assert len(slow.wait(seq)["stdout"]) == 1_000_000
        for name in ("slow", "quick"):
            other.call("box_delete_session", {"session_id": name})


def test_closed_frames_of_any_kind_do_not_matter(daemon):
    """Noise on the socket ends that connection and nothing else."""
    with Rpc(daemon.sock) as healthy:
        for junk in (b"\x00" * 64, b"\xff" * 64, os.urandom(256), b"\x88\x80\0\0\0\0"):
            ws = WebSocket(daemon.sock, "/rpc/ws", WS)
            ws.sock.sendall(junk)
            ws.vanish()
        healthy.call("__ping", ctx=None)
    with WebSocket(daemon.sock, "/rpc/ws", WS) as ws:
        ws.frame(CLOSE, b"")
        assert ws.recv_frame()[0] == CLOSE
