# SPDX-License-Identifier: Apache-2.0
"""Managed processes over the LangBot wire, on the native backend."""

import itertools
import signal

import pytest
from boxlib import Boxd
from lbwire import Rpc, RpcError, context, eventually, physical

_workspaces = itertools.count()


@pytest.fixture(scope="module")
def daemon():
    d = Boxd()
    yield d
    d.close()


@pytest.fixture
def rpc(daemon):
    """A client with a workspace of its own, and a session `s` in it."""
    with Rpc(daemon.sock, ctx=context(f"p{next(_workspaces)}")) as r:
        r.call("box_create_session", {"session_id": "s"})
        yield r
        for s in r.call("box_get_sessions")["sessions"]:
            r.call("box_delete_session", {"session_id": s["session_id"]})


def start(rpc, *argv, process_id="default", **spec):
    return rpc.call("box_start_managed_process", {"session_id": "s", "spec": {
        "process_id": process_id, "command": argv[0], "args": list(argv[1:]), **spec}})


def get(rpc, process_id="default"):
    return rpc.call("box_get_managed_process", {"session_id": "s", "process_id": process_id})


def exited(rpc, process_id="default"):
    return eventually(lambda: get(rpc, process_id)["status"] == "exited" and get(rpc, process_id), 20)


def test_row_T59_row_T70_row_I11_start_and_query(rpc):
    info = start(rpc, "cat", "-u", env={"Z": "secret", "A": "1"}, cwd="/tmp")
    assert info["started_at"].endswith("Z")
    expected = {"session_id": "s", "process_id": "default", "status": "running", "command": "cat", "args": ["-u"],
                "cwd": "/tmp", "env_keys": ["A", "Z"], "attached": False, "exited_at": None, "exit_code": None,
                "stderr_preview": "", "started_at": info["started_at"]}
    assert info == expected and get(rpc) == expected
    assert rpc.call("box_shutdown", ctx=None) == {}
    with pytest.raises(RpcError, match="^BoxSessionNotFoundError"):
        get(rpc)


def test_row_T61_deleting_the_session_ends_it(rpc):
    start(rpc, "sleep", "600")
    rpc.call("box_delete_session", {"session_id": "s"})
    with pytest.raises(RpcError, match="^BoxSessionNotFoundError: session .* not found$"):
        rpc.call("box_get_session", {"session_id": "s"})


def test_row_T62_sessions_show_their_processes(rpc):
    before = rpc.call("box_get_session", {"session_id": "s"})
    assert before["image"] and "managed_process" not in before and "managed_processes" not in before
    start(rpc, "sleep", "600", process_id="other")
    between = rpc.call("box_get_session", {"session_id": "s"})
    assert "managed_process" not in between and set(between["managed_processes"]) == {"other"}
    start(rpc, "sleep", "600")
    after = rpc.call("box_get_session", {"session_id": "s"})
    assert after["managed_process"]["status"] == "running"
    assert set(after["managed_processes"]) == {"other", "default"}


def test_row_T63_the_end_is_noticed(rpc):
    start(rpc, "true")
    info = exited(rpc)
    assert info and info["exit_code"] == 0 and info["exited_at"] >= info["started_at"]
    start(rpc, "sh", "-c", "kill -9 $$")
    assert exited(rpc)["exit_code"] == -9
    start(rpc, "sh", "-c", "exit 7")
    assert exited(rpc)["exit_code"] == 7


def test_row_T64_row_F20_row_F21_what_is_ours_is_never_cleaned_up(rpc):
    start(rpc, "sleep", "600")
    for _ in range(3):
        rpc.call("box_status")
        rpc.call("box_init", {}, ctx=None)
    assert get(rpc)["status"] == "running"


def test_row_F20_row_F21_what_another_daemon_left_is_not_touched():
    """Bug 12 of upstream: two daemons on one host wiped each other's sandboxes."""
    one, two = Boxd(), None
    try:
        with Rpc(one.sock) as r:
            r.exec("s", "touch /tmp/here")
            two = Boxd()
            with Rpc(two.sock) as other:
                other.exec("s", "true")
            assert r.exec("s", "ls /tmp")["stdout"] == "here"
    finally:
        one.close()
        if two:
            two.close()


def test_row_T71_a_process_keeps_its_session():
    d = Boxd(env={"BOX_SESSION_TTL_SEC": "1"})
    try:
        with Rpc(d.sock) as r:
            for name in ("s", "idle"):
                r.call("box_create_session", {"session_id": name})
            start(r, "sleep", "600")
            listed = lambda: [x["session_id"] for x in r.call("box_get_sessions")["sessions"]]  # noqa: E731
            assert eventually(lambda: listed() == ["s"], 30)
            r.call("box_stop_managed_process", {"session_id": "s"})
            assert eventually(lambda: listed() == [], 30)
    finally:
        d.close()


def test_stopping_forgets(rpc):
    start(rpc, "sleep", "600")
    assert rpc.call("box_stop_managed_process", {"session_id": "s"}) == {"stopped": "default"}
    for action in ("box_get_managed_process", "box_stop_managed_process"):
        with pytest.raises(RpcError) as e:
            rpc.call(action, {"session_id": "s"})
        name = physical("s", rpc.ctx["workspace_uuid"])
        assert e.value.message == (f"BoxManagedProcessNotFoundError: session {name} has no managed process with "
                                   "process_id=default")
    start(rpc, "true", process_id="ended")
    assert exited(rpc, "ended")
    assert rpc.call("box_stop_managed_process", {"session_id": "s", "process_id": "ended"}) == {"stopped": "ended"}


def test_the_same_name_replaces(rpc):
    start(rpc, "sh", "-c", "trap '' TERM; while :; do sleep 1; done")
    info = start(rpc, "cat")
    assert info["command"] == "cat" and get(rpc)["status"] == "running"
    assert rpc.call("box_status")["managed_processes"] == 1


def test_bug_02_status_counts_processes(rpc):
    """Upstream: always 0."""
    assert rpc.call("box_status")["managed_processes"] == 0
    start(rpc, "sleep", "600", process_id="a")
    start(rpc, "sleep", "600", process_id="b")
    start(rpc, "true", process_id="c")
    assert exited(rpc, "c")
    assert rpc.call("box_status")["managed_processes"] == 2


def test_bug_08_the_end_of_stderr_is_kept(rpc):
    """Upstream: one piece above 3999 characters emptied it."""
    start(rpc, "python3", "-c", "import sys; sys.stderr.write('x' * 9000 + 'é' * 10 + 'end  \\n')")
    preview = exited(rpc)["stderr_preview"]
    assert preview.endswith("é" * 10 + "end") and preview.startswith("x") and 3990 <= len(preview) <= 4000


def test_bug_15_nobody_steals_our_input(rpc):
    """Upstream: children shared the runtime's own stdin."""
    assert rpc.exec("s", "cat; readlink /proc/self/fd/0")["stdout"] == "/dev/null"


def test_bug_17_processes_see_extra_mounts(rpc, tmp_path):
    """Upstream: not with nsjail."""
    tmp_path.chmod(0o755)
    (tmp_path / "f").write_text("seen")
    for parent in list(tmp_path.parents)[:-2]:
        parent.chmod(0o755)
    rpc.call("box_create_session", {"session_id": "s", "extra_mounts": [
        {"host_path": str(tmp_path), "mount_path": "/m", "mode": "ro"}]})
    start(rpc, "sh", "-c", "cat /m/f >&2")
    assert exited(rpc)["stderr_preview"] == "seen"


def test_capacity(boxd):
    with Rpc(boxd.sock) as r:
        r.call("box_init", {"limits": {"max_managed_processes": 1, "max_completed_processes": 1}}, ctx=None)
        r.call("box_create_session", {"session_id": "s"})
        start(r, "sleep", "600", process_id="a")
        with pytest.raises(RpcError,
                           match=r"^BoxCapacityExceededError: Box managed process capacity reached \(1\)$"):
            start(r, "true", process_id="b")
        start(r, "true", process_id="a")  # its own successor is not counted twice
        assert exited(r, "a")
        start(r, "true", process_id="b")
        assert exited(r, "b")
        with pytest.raises(RpcError, match="^BoxManagedProcessNotFoundError"):
            get(r, "a")  # the oldest record went


def test_retention_of_nothing(boxd):
    with Rpc(boxd.sock) as r:
        r.call("box_init", {"limits": {"completed_process_retention_sec": 0}}, ctx=None)
        r.call("box_create_session", {"session_id": "s"})
        start(r, "true")

        def gone():
            try:
                return get(r)["status"] == "forgotten"
            except RpcError as e:
                return e.code == "process_not_found"

        assert eventually(gone, 20)


def test_what_a_start_may_not_say(rpc):
    with pytest.raises(RpcError, match="^KeyError: 'spec'$"):
        rpc.call("box_start_managed_process", {"session_id": "s"})
    with pytest.raises(RpcError, match="^BoxSessionNotFoundError: session .*-none not found$"):
        rpc.call("box_start_managed_process", {"session_id": "none", "spec": {"command": "x"}})
    with pytest.raises(RpcError, match="(?s)^BoxValidationError: 1 validation error for BoxManagedProcessSpec\ncommand"
                                       "\n  Value error, command must not be empty"):
        rpc.call("box_start_managed_process", {"session_id": "s", "spec": {"command": " "}})


def test_processes_and_sessions_survive_a_killed_daemon():
    d = Boxd()
    try:
        with Rpc(d.sock) as r:
            r.exec("s", "echo kept > /tmp/f")
            before = start(r, "sleep", "600")
        d.stop(signal.SIGKILL)
        d.start()
        with Rpc(d.sock) as r:
            assert get(r) == before
            assert r.exec("s", "cat /tmp/f")["stdout"] == "kept"
            assert r.call("box_status")["managed_processes"] == 1
    finally:
        d.close()
