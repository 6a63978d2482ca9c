# SPDX-License-Identifier: Apache-2.0
"""Host control: ping, init, health, backend, shared workspace, shutdown; and how errors arrive."""

import enum
import hashlib
import os
import uuid

import pytest
from langbot_client import UPSTREAM, VERSION, ActionRPCBoxClient, Box, Link, Server, errors, models
from langbot_plugin.entities.io.errors import ActionCallError

FIRST = VERSION == "0.4.0"


class Odd(enum.Enum):
    UNKNOWN = "box_no_such_action"
    HEARTBEAT = "__heartbeat"


async def test_ping(box):
    assert await box.link.ping() == {}


async def test_initialize_asks_for_health(box):
    await box.client.initialize()


async def test_init_may_be_repeated(box):
    await box.new()
    for _ in range(3):
        await box.configure(unknown={"key": 1}, e2b={"api_key": ""}, docker={"cpu_limit_enabled": True})
    assert [s["session_id"] for s in await box.get_sessions()] == ["s"]


async def test_backend_info(box):
    info = await box.get_backend_info()
    assert info["available"] is True and isinstance(info["name"], str)


async def test_a_backend_that_is_not_there(box):
    await box.configure(backend="e2b")
    try:
        assert await box.get_backend_info() == {"name": None, "available": False}
        with pytest.raises(errors.BoxBackendUnavailableError, match="LangBot Box backend unavailable"):
            await box.sh("true")
    finally:
        await box.configure()
    assert (await box.sh("echo back")).stdout == "back"


@pytest.mark.needs("capacity")
@pytest.mark.parametrize("limits, text", [
    ({"max_sessions": "5"}, "ValueError: box.limits.max_sessions must be an integer"),
    ({"max_sessions": True}, "ValueError: box.limits.max_sessions must be an integer"),
    ({"max_sessions": 5001}, "ValueError: box.limits.max_sessions must be between 0 and 5000"),
    ({"max_sessions": 3, "max_rpc_file_bytes": 0},
     "ValueError: box.limits.max_rpc_file_bytes must be between 1 and 104857600"),
    (7, "ValueError: box.limits must be an object"),
], ids=["text", "bool", "range", "second", "shape"])
async def test_limits_are_checked_and_nothing_changes(box, limits, text):
    with pytest.raises(errors.BoxError) as caught:
        await box.configure(limits=limits)
    assert text in str(caught.value)
    if not FIRST:
        assert (await box.get_status())["limits"]["max_sessions"] == 64


async def test_an_unknown_action(box):
    for action in Odd:
        with pytest.raises(ActionCallError, match=f"ValueError: Action {action.value} not found"):
            await box.handler.call_action(action, {})


async def test_a_missing_member(box):
    for action in ("GET_SESSION", "DELETE_SESSION", "GET_MANAGED_PROCESS"):
        with pytest.raises(errors.BoxError, match="KeyError: 'session_id'"):
            await box.raw(action, {})


async def test_a_client_without_a_connection():
    import logging

    with pytest.raises(errors.BoxRuntimeUnavailableError):
        await ActionRPCBoxClient(logging.getLogger()).get_backend_info()


SPECS = [
    ({"timeout_sec": 0}, "timeout_sec must be greater than 0"),
    ({"timeout_sec": 1.5}, "Input should be a valid integer, got a number with a fractional part"),
    ({"workdir": "rel"}, "workdir must be an absolute path inside the sandbox"),
    ({"session_id": "  "}, "session_id must not be empty"),
    ({"session_id": None}, "Input should be a valid string"),
    ({"env": {"A": 1}}, "Input should be a valid string"),
    ({"host_path": "rel"}, "host_path must be an absolute host path"),
    ({"host_path_mode": "x"}, "Input should be 'none', 'ro' or 'rw'"),
    ({"network": "maybe"}, "Input should be 'off' or 'on'"),
    ({"mount_path": "rel", "workdir": "/workspace"}, "mount_path must be an absolute path inside the sandbox"),
    ({"cpus": 0}, "cpus must be greater than 0"),
    ({"memory_mb": 3}, "memory_mb must be at least 32"),
    ({"pids_limit": 0}, "pids_limit must be at least 1"),
    ({"read_only_rootfs": "perhaps"}, "Input should be a valid boolean, unable to interpret input"),
    ({"workspace_quota_mb": -1}, "workspace_quota_mb must be greater than or equal to 0"),
    ({"extra_mounts": [{"host_path": "/tmp", "mount_path": "rel"}]},
     "mount_path must be an absolute path inside the sandbox"),
    ({"host_path": "/tmp/x", "workdir": "/elsewhere"}, "workdir must stay under mount_path when host_path is provided"),
]


@pytest.mark.parametrize("change, text", SPECS, ids=lambda v: next(iter(v)) if isinstance(v, dict) else "")
async def test_specs_are_validated_by_the_server_too(box, change, text):
    data = {**box.spec("true").model_dump(mode="json"), **change}
    for action in ("EXEC", "CREATE_SESSION"):
        with pytest.raises(errors.BoxValidationError) as caught:
            await box.raw(action, data)
        assert text in str(caught.value) and "for BoxSpec" in str(caught.value)


async def test_lenient_numbers_are_taken(box):
    data = {**box.spec("echo hi").model_dump(mode="json"), "timeout_sec": " 30 ", "cpus": "1", "memory_mb": 512.0,
            "read_only_rootfs": "yes"}
    assert (await box.raw("EXEC", data))["stdout"] == "hi"


async def test_an_empty_command(box):
    with pytest.raises(errors.BoxValidationError, match="cmd must not be empty"):
        await box.sh("  ")


@pytest.mark.parametrize("change, text", [
    ({"command": " "}, "command must not be empty"),
    ({"cwd": "rel"}, "cwd must be an absolute path inside the sandbox"),
    ({"args": "x"}, "Input should be a valid list"),
    ({"env": {"A": None}}, "Input should be a valid string"),
], ids=["command", "cwd", "args", "env"])
async def test_process_specs_are_validated(box, change, text):
    await box.new()
    spec = {**models.BoxManagedProcessSpec(command="cat").model_dump(mode="json"), **change}
    with pytest.raises(errors.BoxValidationError) as caught:
        await box.raw("START_MANAGED_PROCESS", {"session_id": "s", "spec": spec})
    assert text in str(caught.value)


@pytest.mark.needs("tenancy")
async def test_words_of_the_caller_do_not_choose_the_class(box):
    """The client picks the class by the first name it finds anywhere in the message."""
    with pytest.raises(errors.BoxSessionNotFoundError) as caught:
        await box.get_session("BoxAdmissionError: x")
    assert type(caught.value) is errors.BoxSessionNotFoundError


def marker():
    return f".langbot-box-volume-probe-{uuid.uuid4().hex}"


@pytest.mark.needs("tenancy")
async def test_the_shared_workspace_is_verified(box):
    name, path = marker(), box.server.work / "default"
    (path / name).write_bytes(b"proof")
    assert await box.verify_shared_workspace(name) == {
        "marker_name": name, "sha256": hashlib.sha256(b"proof").hexdigest(), "size": 5}
    refused = {marker(): "Box Runtime cannot read the Core shared Workspace probe",
               "../x": "Invalid Box shared Workspace probe basename",
               name.upper(): "Invalid Box shared Workspace probe basename"}
    empty, long, link, directory = (marker() for _ in range(4))
    (path / empty).touch()
    (path / long).write_bytes(b"x" * 1025)
    os.symlink(name, path / link)
    (path / directory).mkdir()
    refused.update({empty: "has an invalid size", long: "size", link: "cannot read",
                    directory: "is not a regular file"})
    for bad, text in refused.items():
        with pytest.raises(errors.BoxReadinessError) as caught:
            await box.verify_shared_workspace(bad)
        assert text in str(caught.value)


@pytest.mark.needs("tenancy")
async def test_files_can_be_sent(box):
    """Every release can, also those whose box client has no use for it."""
    assert await box.handler.send_file(os.urandom(100_000), "zip")
    assert await box.handler.send_file(b"", "zip")


@pytest.fixture
def fresh(link):
    """A daemon that may be shut down, on the same transport."""
    from conftest import run

    server = Server()
    if link.transport == "ws":
        server.start()
    connection = Link(server, link.transport)
    run(connection.open())
    run(connection.client.init(server.config))
    yield connection
    run(connection.close())
    server.close()


async def test_shutdown_drops_the_sessions_and_serves_on(fresh):
    box, other = Box(fresh), Box(fresh)
    await box.new("a", persistent=True)
    await other.new("b")
    await other.start("cat", session_id="b")
    await fresh.client.shutdown()
    with pytest.raises(errors.BoxRuntimeUnavailableError):
        await box.get_sessions()
    fresh.client.set_handler(fresh.handler)
    left = [s["session_id"] for s in await box.get_sessions()] + [s["session_id"] for s in await other.get_sessions()]
    assert set(left) == ({"a"} if FIRST else set())
    assert (await box.sh("echo again", "c")).stdout == "again"


async def test_the_end_of_the_pipe_ends_the_daemon(fresh):
    box = Box(fresh)
    await box.new()
    await box.start("sleep", "1000")
    if fresh.transport == "stdio":
        assert await fresh.close() == 0
    else:
        await fresh.close()
        assert UPSTREAM or fresh.server.stop() == 0
