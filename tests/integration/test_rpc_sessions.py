# SPDX-License-Identifier: Apache-2.0
"""Sessions and commands over the LangBot wire, on the native backend. Tests named after rows of the
feature list prove these rows."""

import itertools
import os
import shutil
import tempfile
import threading

import pytest
from boxlib import Boxd
from lbwire import INSTANCE, Rpc, RpcError, context, eventually, namespace, physical

_workspaces = itertools.count()


@pytest.fixture(scope="module")
def daemon():
    d = Boxd()
    yield d
    d.close()


@pytest.fixture
def rpc(daemon):
    """A client with a workspace of its own."""
    with Rpc(daemon.sock, ctx=context(f"w{next(_workspaces)}")) as r:
        yield r
        for s in r.call("box_get_sessions")["sessions"]:
            r.call("box_delete_session", {"session_id": s["session_id"]})


@pytest.fixture
def directory():
    path = tempfile.mkdtemp(prefix="box-rpc-", dir="/tmp")
    os.chmod(path, 0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


def name_of(rpc, logical):
    return physical(logical, rpc.ctx["workspace_uuid"], rpc.ctx["placement_generation"])


def sessions(rpc):
    return [s["session_id"] for s in rpc.call("box_get_sessions")["sessions"]]


# Rows of the seeds.

def test_row_T05_two_commands_share_a_session(rpc):
    rpc.exec("s", "echo first > /tmp/log")
    assert rpc.exec("s", "echo second >> /tmp/log; cat /tmp/log")["stdout"] == "first\nsecond"
    assert sessions(rpc) == ["s"]


def test_row_T13_another_host_path_is_a_conflict(rpc, directory):
    os.mkdir(directory + "/a")
    os.mkdir(directory + "/b")
    rpc.exec("s", "true", host_path=directory + "/a")
    with pytest.raises(RpcError) as e:
        rpc.exec("s", "true", host_path=directory + "/b")
    assert e.value.message == (f"BoxSessionConflictError: Box session {name_of(rpc, 's')} already exists with "
                               f"host_path={directory}/a")


@pytest.mark.parametrize("field,value,text", [
    ("cpus", 0.5, "cpus=1.0"), ("memory_mb", 256, "memory_mb=512"), ("network", "on", "network=off"),
    ("image", "x", "image=rockchin/langbot-sandbox:latest"), ("persistent", True, "persistent=False"),
    ("pids_limit", 5, "pids_limit=128"), ("read_only_rootfs", False, "read_only_rootfs=True"),
    ("mount_path", "/p", "mount_path=/workspace"), ("workspace_quota_mb", 3, "workspace_quota_mb=0"),
    ("host_path_mode", "ro", "host_path_mode=rw"), ("host_path", "/tmp/x", "host_path=None")])
def test_row_T14_other_limits_are_a_conflict(rpc, field, value, text):
    rpc.call("box_create_session", {"session_id": "s"})
    with pytest.raises(RpcError) as e:
        rpc.call("box_create_session", {"session_id": "s", field: value})
    assert e.value.message == (f"BoxSessionConflictError: Box session {name_of(rpc, 's')} already exists with {text}")


def test_row_T33_status_counts_sessions(rpc):
    status = rpc.call("box_status")
    assert status["backend"] == {"name": "native", "available": True}
    assert status["active_sessions"] == 0 and status["session_ttl_sec"] == 300
    rpc.exec("s", "true")
    assert rpc.call("box_status")["active_sessions"] == 1


def test_row_T34_sessions_are_described(rpc):
    rpc.exec("s", "true")
    [info] = rpc.call("box_get_sessions")["sessions"]
    assert info["session_id"] == "s" and info["backend_name"] == "native" and info["backend_session_id"]
    assert info["created_at"].endswith("Z") and info["last_used_at"] >= info["created_at"]
    assert "managed_processes" not in info


def test_row_T35_row_T57_no_backend(boxd):
    with Rpc(boxd.sock) as r:
        r.call("box_init", {"backend": "e2b"}, ctx=None)
        assert r.call("box_get_backend_info", ctx=None) == {"name": None, "available": False}
        assert r.call("box_health", ctx=None) == {"name": None, "available": False}
        with pytest.raises(RpcError, match="^BoxBackendUnavailableError: LangBot Box backend unavailable. Install and "
                                           "start Docker or nsjail before using exec.$") as e:
            r.exec("s", "true")
        assert e.value.code == "backend_unavailable"
        r.call("box_init", {"backend": "local"}, ctx=None)
        assert r.exec("s", "echo back")["stdout"] == "back"


def test_row_T39_execute(rpc):
    r = rpc.exec("s", "echo hi; echo err >&2; exit 3")
    assert {k: r[k] for k in ("session_id", "backend_name", "status", "exit_code", "stdout", "stderr")} == {
        "session_id": "s", "backend_name": "native", "status": "completed", "exit_code": 3, "stdout": "hi",
        "stderr": "err"}
    assert isinstance(r["duration_ms"], int)


def test_row_T40_row_T41_row_T42_row_T43_lists_and_status(rpc):
    rpc.exec("s", "true")
    assert sessions(rpc) == ["s"]
    assert set(rpc.call("box_status")) == {"backend", "active_sessions", "managed_processes", "session_ttl_sec",
                                           "limits", "capacity"}
    assert rpc.call("box_get_backend_info") == {"name": "native", "available": True}
    assert rpc.call("box_delete_session", {"session_id": "s"}) == {"deleted": "s"}
    assert sessions(rpc) == []


def test_row_T44_deleting_what_is_not_there(rpc):
    with pytest.raises(RpcError) as e:
        rpc.call("box_delete_session", {"session_id": "none"})
    assert e.value.message == f"BoxSessionNotFoundError: session {name_of(rpc, 'none')} not found"


def test_row_T45_row_I10_a_session_without_a_command(rpc):
    info = rpc.call("box_create_session", {"session_id": "c", "cmd": ""})
    assert info["session_id"] == "c" and info["image"] == "rockchin/langbot-sandbox:latest"
    assert sessions(rpc) == ["c"]
    with pytest.raises(RpcError, match="^BoxValidationError: cmd must not be empty$"):
        rpc.exec("c", "  ")


def test_row_T46_network_conflict(rpc):
    rpc.exec("s", "true", network="off")
    with pytest.raises(RpcError, match="^BoxSessionConflictError: .* already exists with network=off$"):
        rpc.exec("s", "true", network="on")


def test_row_T53_simple_command(rpc):
    r = rpc.exec("s", "echo hello from box", image="alpine:latest", workdir="/tmp")  # I08
    assert (r["status"], r["exit_code"]) == ("completed", 0) and "hello from box" in r["stdout"]


def test_row_T54_files_persist(rpc):
    rpc.exec("s", "echo kept > /tmp/f", workdir="/tmp")
    assert rpc.exec("s", "cat /tmp/f", workdir="/tmp")["stdout"] == "kept"


def test_row_T55_timeout(rpc):
    r = rpc.exec("s", "echo part; sleep 120", timeout_sec=1)
    assert (r["status"], r["exit_code"], r["stdout"]) == ("timed_out", None, "part")
    assert r["stderr"] == "Command timed out after 1 seconds."
    assert sessions(rpc) == []  # gone before the answer
    assert rpc.exec("s", "echo why >&2; sleep 9", timeout_sec=1)["stderr"] == "why"


def test_row_T56_offline(rpc):
    r = rpc.exec("s", "python3 -c \"import socket; socket.create_connection(('1.1.1.1', 80), 3)\"")
    assert r["exit_code"] != 0
    assert rpc.exec("s", "tail -n +3 /proc/net/dev | cut -d: -f1")["stdout"] == "lo"


def test_row_I02_every_action_of_the_client_is_known(rpc):
    for action in ("box_exec", "box_create_session", "box_get_session", "box_delete_session", "box_get_skill",
                   "box_start_managed_process", "box_get_managed_process", "box_stop_managed_process"):
        with pytest.raises(RpcError) as e:
            rpc.call(action, {})
        assert "not found" not in e.value.message, e.value.message


# What a command says.

def test_output_is_trimmed_and_clipped(rpc):
    # Bug 19 of upstream is kept: clients compare trimmed text.
    assert rpc.exec("s", "printf '  \\n a b \\t\\n'")["stdout"] == "a b"
    assert rpc.exec("s", "printf 'a\\377b'")["stdout"] == "a�b"
    r = rpc.exec("s", "head -c 1048580 /dev/zero | tr '\\0' x; echo e >&2")
    assert r["stdout"] == "x" * 1048576 + "\n... [raw output clipped at 1048576 bytes, 4 bytes discarded]"
    assert r["stderr"] == "e"


def test_signals_look_as_from_an_engine(rpc):
    assert rpc.exec("s", "kill -9 $$")["exit_code"] == 137
    assert rpc.exec("s", "kill -15 $$")["exit_code"] == 143


def test_a_command_out_of_memory_says_so(rpc):
    r = rpc.exec("s", "python3 -c \"x = bytearray(300 << 20)\"", memory_mb=64)
    assert r["exit_code"] == 137 and r["outcome"] == "oom_killed", r
    assert "memory" in r["stderr"].lower() or r["stderr"] == "Killed", r  # if the shell came to say it first


def test_environment_and_directory_are_the_command_s_own(rpc):
    r = rpc.exec("s", "echo $A; pwd", env={"A": "1 '2"}, workdir="/tmp/new/place")
    assert r["stdout"] == "1 '2\n/tmp/new/place"
    assert rpc.exec("s", "echo ${A-unset}; pwd")["stdout"] == "unset\n/workspace"


def test_bug_16_commands_may_be_large(rpc):
    """Upstream: above 128 KiB one argument is too long for execve."""
    text = "y" * 600_000
    assert len(rpc.exec("s", f"cat <<'END' | tr -d '\\n'\n{text}\nEND")["stdout"]) == 600_000


def test_bug_06_a_timeout_does_not_wait_for_descendants(rpc):
    """Upstream: the answer waited until every descendant had closed its pipes."""
    r = rpc.exec("s", "(setsid sleep 60 &) ; setsid sleep 60 & sleep 60", timeout_sec=1)
    assert r["status"] == "timed_out" and r["duration_ms"] < 5000


def test_bug_07_a_timeout_ends_the_whole_tree(daemon, rpc):
    """Upstream: only the command line tool was killed; what ran inside went on."""
    marker = f"sleep 7{os.getpid()}"
    rpc.exec("s", f"setsid {marker} & {marker}", timeout_sec=1)
    commands = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                commands.append(f.read().replace(b"\0", b" ").decode(errors="replace").strip())
        except (FileNotFoundError, ProcessLookupError):
            pass
    assert marker not in commands


# Turns and mounts.

def test_commands_of_one_session_run_in_order(rpc):
    rpc.call("box_create_session", {"session_id": "s"})
    seqs = [rpc.start("box_exec", {"session_id": "s", "cmd": f"echo {i} >> /tmp/order"}) for i in range(20)]
    for seq in seqs:
        rpc.wait(seq)
    assert rpc.exec("s", "cat /tmp/order")["stdout"].split() == [str(i) for i in range(20)]


def test_different_sessions_run_side_by_side(rpc):
    seqs = [rpc.start("box_exec", {"session_id": f"s{i}", "cmd": "sleep 30", "timeout_sec": 2}) for i in range(4)]
    assert rpc.exec("other", "echo now")["stdout"] == "now"
    assert all(rpc.wait(seq)["duration_ms"] < 10_000 for seq in seqs)


def test_other_extra_mounts_make_it_anew(rpc, directory):
    for name in ("a", "b"):
        os.mkdir(f"{directory}/{name}")
        with open(f"{directory}/{name}/f", "w", encoding="ascii") as f:
            f.write(name)
    mounts = [{"host_path": f"{directory}/{n}", "mount_path": f"/m/{n}", "mode": "ro"} for n in ("a", "b")]
    rpc.exec("s", "touch /tmp/here", extra_mounts=mounts[:1])
    assert rpc.exec("s", "ls /tmp; cat /m/a/f", extra_mounts=mounts[:1] * 2)["stdout"] == "here\na"
    assert rpc.exec("s", "ls /tmp; cat /m/*/f", extra_mounts=mounts)["stdout"] == "ab"
    none = [{**mounts[0], "mode": "none"}]
    assert rpc.exec("s", "ls -d /m 2>/dev/null", extra_mounts=none)["stdout"] == ""


def test_directories_to_mount_are_made(rpc, directory):
    """As a container engine does: LangBot mounts skills into a workspace that may not exist yet."""
    os.mkdir(directory + "/skill")
    rpc.call("box_init", {"local": {"host_root": directory}}, ctx=None)
    mounts = [{"host_path": directory + "/skill", "mount_path": "/workspace/.skills/demo", "mode": "rw"}]
    r = rpc.exec("s", "touch .skills/demo/x here; ls", host_path=directory + "/place/deep", extra_mounts=mounts)
    assert r["stdout"] == "here" and os.listdir(directory + "/skill") == ["x"]
    assert sorted(os.listdir(directory + "/place/deep")) == [".skills", "here"]


def test_a_host_with_very_many_skills(rpc, directory):
    """LangBot mounts every skill that is visible, each as a mount of its own."""
    rpc.call("box_init", {"local": {"host_root": directory}}, ctx=None)
    mounts = []
    for i in range(256):
        os.makedirs(f"{directory}/skills/skill-{i}")
        mounts.append({"host_path": f"{directory}/skills/skill-{i}", "mode": "rw",
                       "mount_path": f"/workspace/.skills/skill-{i}"})
    work = {"host_path": directory + "/default/tenants/w", "extra_mounts": mounts}
    r = rpc.exec("s", "ls .skills | wc -l; touch .skills/skill-255/made", **work)
    assert r["stdout"] == "256" and os.listdir(directory + "/skills/skill-255") == ["made"]
    with pytest.raises(RpcError, match="extra_mounts must have at most 256 entries"):
        rpc.exec("s", "true", **{**work, "extra_mounts": mounts + mounts[:1]})


def test_directories_are_not_made_through_links(rpc, directory):
    """What a sandbox leaves in its workspace leads nobody elsewhere."""
    os.mkdir(directory + "/skill")
    os.mkdir(directory + "/work", 0o777)
    rpc.exec("s", f"ln -s {directory}/victim .skills", host_path=directory + "/work")
    mounts = [{"host_path": directory + "/skill", "mount_path": "/workspace/.skills/demo", "mode": "rw"}]
    with pytest.raises(RpcError):
        rpc.exec("s", "true", host_path=directory + "/work", extra_mounts=mounts)
    assert not os.path.exists(directory + "/victim")


def test_directories_are_made_only_where_the_host_keeps_its_own(rpc, directory):
    for inside in ("box", "other"):
        os.mkdir(f"{directory}/{inside}")
    rpc.call("box_init", {"local": {"host_root": directory + "/box"}}, ctx=None)
    for path in ("/other/new", "/boxes", "/new"):
        with pytest.raises(RpcError, match="^BoxError: mount source '.*' does not exist$"):
            rpc.exec("s", "true", host_path=directory + path)
    with pytest.raises(RpcError, match="^BoxError: mount source '.*' does not exist$"):
        rpc.exec("s", "true", host_path=directory + "/box/ro", host_path_mode="ro")
    assert rpc.exec("s", "pwd", host_path=directory + "/box/default/tenants/w")["stdout"] == "/workspace"
    assert sorted(os.listdir(directory)) == ["box", "other"] and not os.listdir(directory + "/other")
    assert os.listdir(directory + "/box") == ["default"]


@pytest.mark.parametrize("path", ["/etc", "/", "/var", "/proc/self", "/root/x", "/run/docker.sock"])
def test_bugs_03_04_what_is_blocked(rpc, path):
    """Upstream: extra mounts were not looked at, and ancestors of what is blocked passed."""
    said = "is blocked for security" + (r" \(it is /proc/[0-9]+\)" if path == "/proc/self" else "")
    with pytest.raises(RpcError, match=f"^BoxValidationError: host_path {path} {said}$"):
        rpc.exec("s", "true", host_path=path)
    with pytest.raises(RpcError, match=f"^BoxValidationError: extra_mounts.host_path {path} {said}$"):
        rpc.exec("s", "true", extra_mounts=[{"host_path": path, "mount_path": "/m"}])
    assert sessions(rpc) == []


# Connections.

def test_a_lost_connection_ends_its_commands(daemon, rpc):
    rpc.call("box_create_session", {"session_id": "s"})
    with Rpc(daemon.sock, ctx=rpc.ctx) as other:
        other.start("box_exec", {"session_id": "s", "cmd": "touch /tmp/on; sleep 600", "timeout_sec": 600})
        queued = other.start("box_exec", {"session_id": "s", "cmd": "touch /tmp/queued", "timeout_sec": 600})
        other.call("__ping", ctx=None)
        other.ws.vanish()
    # The session is free at once, and what waited behind the command never ran.
    assert rpc.exec("s", "ls /tmp", timeout_sec=20)["stdout"] in ("on", "")
    assert queued and sessions(rpc) == ["s"]


def test_shutdown_keeps_serving(boxd):
    with Rpc(boxd.sock) as r:
        r.call("box_create_session", {"session_id": "a", "persistent": True})
        r.call("box_create_session", {"session_id": "b"}, ctx=context("other", 4))
        boxd.client().new("of-another-front")
        assert r.call("box_shutdown", ctx=None) == {}
        assert [s["session_id"] for s in boxd.client().ps()] == ["of-another-front"]
        assert r.exec("a", "echo again")["stdout"] == "again"


# Configuration.

def test_bug_14_box_init_is_all_or_nothing(boxd):
    """Upstream: limits had changed when the workspace turned out to be wrong."""
    with Rpc(boxd.sock) as r:
        before = r.call("box_status")["limits"]
        with pytest.raises(RpcError, match="^BoxValidationError: box.local.default_workspace is outside "):
            r.call("box_init", {"limits": {"max_sessions": 1}, "backend": "e2b", "local": {
                "host_root": "/tmp/box-none", "default_workspace": "/tmp/elsewhere"}}, ctx=None)
        with pytest.raises(RpcError, match="^ValueError: box.limits.max_sessions must be an integer$"):
            r.call("box_init", {"limits": {"max_rpc_file_bytes": 7, "max_sessions": True}}, ctx=None)
        assert r.call("box_status")["limits"] == before
        assert r.call("box_get_backend_info", ctx=None)["available"] is True


def test_capacity(boxd):
    with Rpc(boxd.sock) as r:
        assert r.call("box_init", {"limits": {"max_sessions": 2}, "unknown": {"x": 1}}, ctx=None) == {
            "initialized": True}
        for name in ("a", "b"):
            r.call("box_create_session", {"session_id": name})
        with pytest.raises(RpcError, match=r"^BoxCapacityExceededError: Box session capacity reached \(2\)$"):
            r.call("box_create_session", {"session_id": "c"})


def test_the_default_workspace_is_made(boxd, directory):
    with Rpc(boxd.sock) as r:
        for _ in range(2):  # every reconnect says it again
            r.call("box_init", {"local": {"host_root": directory + "/deep/box"}}, ctx=None)
        assert os.path.isdir(directory + "/deep/box/default")
        with pytest.raises(RpcError, match="boxd runs as user"):
            r.call("box_init", {"local": {"host_root": "/nowhere/at/all"}}, ctx=None)


def test_configuration_from_the_environment(directory):
    d = Boxd(env={"LANGBOT_BOX_CONFIG": '{"limits": {"max_sessions": 3}, "local": {"host_root": "%s"}}' % directory})
    try:
        with Rpc(d.sock) as r:
            assert r.call("box_status")["limits"]["max_sessions"] == 3
        assert eventually(lambda: os.path.isdir(directory + "/default"))
    finally:
        d.close()
    d = Boxd(env={"LANGBOT_BOX_CONFIG": "{nonsense"})
    try:
        assert "Failed to parse LANGBOT_BOX_CONFIG: {nonsense" in d.log()
    finally:
        d.close()
    with pytest.raises(RuntimeError, match="box.limits.max_sessions must be between 0 and 5000"):  # bug 23, kept
        Boxd(env={"LANGBOT_BOX_CONFIG": '{"limits": {"max_sessions": 9999}}'})


# Generations and workspaces.

def test_workspaces_do_not_see_each_other(daemon, rpc):
    rpc.exec("s", "echo mine > /tmp/f")
    other = context("stranger")
    assert rpc.call("box_get_sessions", ctx=other) == {"sessions": []}
    with pytest.raises(RpcError, match="^BoxSessionNotFoundError"):
        rpc.call("box_get_session", {"session_id": "s"}, ctx=other)
    with pytest.raises(RpcError, match="^BoxSessionNotFoundError"):
        rpc.call("box_delete_session", {"session_id": name_of(rpc, "s")}, ctx=other)
    assert namespace(INSTANCE, rpc.ctx["workspace_uuid"]) in str(
        [s["session_id"] for s in daemon.client().ps()])


def test_bug_09_a_newer_generation_answers_the_older(daemon, rpc):
    """Upstream: calls of an older generation got no answer at all."""
    newer = {**rpc.ctx, "placement_generation": 2}
    rpc.exec("s", "true")
    seq = rpc.start("box_exec", {"session_id": "s", "cmd": "sleep 600", "timeout_sec": 600})
    rpc.call("__ping", ctx=None)
    with Rpc(daemon.sock, ctx=newer) as r:
        assert r.call("box_get_sessions") == {"sessions": []}  # the old one is gone by now
    with pytest.raises(RpcError, match="^PermissionError: Stale Box placement generation$"):
        rpc.wait(seq)
    with pytest.raises(RpcError, match="^PermissionError: Stale Box placement generation$"):
        rpc.call("box_status")
    rpc.ctx = newer


def test_names_are_cleaned(rpc):
    assert rpc.call("box_create_session", {"session_id": "a b/c:d"})["session_id"] == "a-b-c-d"
    with pytest.raises(RpcError, match="^BoxValidationError: Box session_id must contain a valid character$"):
        rpc.exec("///", "true")
    with pytest.raises(RpcError, match="^BoxValidationError: 1 validation error for BoxSpec\nsession_id\n"):
        rpc.exec(" ", "true")


def test_idle_sessions_go_by_themselves():
    d = Boxd(env={"BOX_SESSION_TTL_SEC": "1"})
    try:
        with Rpc(d.sock) as r:
            r.call("box_create_session", {"session_id": "idle"})
            r.call("box_create_session", {"session_id": "kept", "persistent": True})
            assert eventually(lambda: sessions(r) == ["kept"], 30)
    finally:
        d.close()


def test_many_clients_at_once(daemon):
    failures = []

    def client(i):
        try:
            with Rpc(daemon.sock, ctx=context(f"many{i}")) as r:
                for n in range(5):
                    assert r.exec("s", f"echo {i}.{n}")["stdout"] == f"{i}.{n}"
                r.call("box_delete_session", {"session_id": "s"})
        except Exception as e:  # noqa: BLE001 - told below, in the thread that may fail the test
            failures.append(e)

    threads = [threading.Thread(target=client, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert not failures
