# SPDX-License-Identifier: Apache-2.0
"""Clients of LangBot's first release with a runtime, where the operator asks for them."""

import json

import pytest
from boxlib import Boxd
from lbwire import INSTANCE, Refused, Rpc, RpcError, WebSocket, context, relay_path


@pytest.fixture(scope="module")
def daemon():
    d = Boxd(env={"BOX_LEGACY_PROTOCOL": "true"})
    yield d
    d.close()


@pytest.fixture
def first(daemon):
    with Rpc(daemon.sock, instance=None) as r:
        r.ctx = None
        yield r


def test_it_has_to_be_asked_for(boxd):
    with pytest.raises(Refused) as e:
        Rpc(boxd.sock, instance=None)
    assert e.value.status == 401


def test_no_header_and_no_context(first):
    assert first.call("__ping") == {}
    assert first.call("box_init", {"enabled": True, "backend": "local"}) == {"initialized": True}
    r = first.exec("person_1/2", "echo hi")
    assert r["session_id"] == "person_1/2" and r["stdout"] == "hi"
    assert set(first.call("box_status")) == {"backend", "active_sessions", "managed_processes", "session_ttl_sec"}
    with pytest.raises(RpcError, match="^BoxSessionNotFoundError: session none not found$"):
        first.call("box_delete_session", {"session_id": "none"})
    first.call("box_delete_session", {"session_id": "person_1/2"})


def test_the_relay_needs_no_headers(daemon, first):
    first.call("box_create_session", {"session_id": "mcp"})
    first.call("box_start_managed_process", {"session_id": "mcp", "spec": {"command": "cat"}})
    with WebSocket(daemon.sock, "/v1/sessions/mcp/managed-process/default/ws",
                   {"Sec-WebSocket-Protocol": "mcp"}) as ws:
        ws.send("hello from test")
        assert "hello from test" in ws.recv()
    first.call("box_delete_session", {"session_id": "mcp"})


def test_bug_24_requests_in_several_messages_are_joined(first):
    """Upstream: above 64 KiB the first client sent several messages, which its server could not read."""
    text = json.dumps({"seq_id": 77, "action": "box_exec", "data": {
        "session_id": "big", "cmd": "true # {}" + "x" * 300_000 + "}"}})
    for at in range(0, len(text), 65536):
        first.ws.send(text[at:at + 65536])
    reply = json.loads(first.hear())
    assert reply["seq_id"] == 77 and reply["code"] == 0, reply
    first.ws.send("noise")
    assert first.call("__ping") == {}
    first.call("box_delete_session", {"session_id": "big"})


def test_shutdown_keeps_persistent_sessions(first):
    first.call("box_create_session", {"session_id": "keep", "persistent": True})
    first.call("box_create_session", {"session_id": "go"})
    first.call("box_shutdown")
    assert [s["session_id"] for s in first.call("box_get_sessions")["sessions"]] == ["keep"]
    first.call("box_delete_session", {"session_id": "keep"})


def test_shutdown_leaves_what_people_keep(daemon, first):
    client = daemon.client()
    for name in ("mine", "off"):
        client.new(name, durable=True)
        client.sh(name, "echo mine > f")
    client.call("POST", "/v1/sessions/off/stop")
    first.call("box_create_session", {"session_id": "go"})
    first.call("box_shutdown")
    assert {s["session_id"]: s["state"] for s in client.ps()} == {"mine": "ready", "off": "stopped"}
    for name in ("mine", "off"):
        assert client.sh(name, "cat f")["stdout"] == "mine\n"
        client.rm(name)


def test_todays_clients_are_served_as_ever(daemon, first):
    with Rpc(daemon.sock) as r:
        r.exec("s", "true")
        with pytest.raises(RpcError, match="^PermissionError: Box tenant action requires a trusted Workspace context$"):
            r.call("box_status", ctx=None)
        # Nobody gets to their sessions by leaving the headers out.
        with pytest.raises(Refused) as e:
            WebSocket(daemon.sock, relay_path("s"))
        assert e.value.status == 401
        with pytest.raises(Refused):
            Rpc(daemon.sock, instance=INSTANCE + "x")
        r.call("box_delete_session", {"session_id": "s"})
    # A context means nothing from somebody who has not said who it is.
    assert first.call("box_status", ctx=context("w"))["active_sessions"] == 0


def test_a_token_is_never_optional():
    token = "0123456789abcdef0123456789abcdef"
    from lbwire import free_port  # noqa: PLC0415 - only here
    port = free_port()
    d = Boxd("--ws-control-port", str(port), env={"BOX_LEGACY_PROTOCOL": "true", "LANGBOT_BOX_CONTROL_TOKEN": token})
    try:
        with pytest.raises(Refused):
            Rpc(("127.0.0.1", port), instance=None)
        with Rpc(("127.0.0.1", port), instance=None, token=token) as r:
            assert r.call("__ping", ctx=None) == {}
    finally:
        d.close()
