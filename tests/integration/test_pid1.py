# SPDX-License-Identifier: Apache-2.0
"""PID 1 of a session is out of reach of what runs in it, also where both have one id; and where it is not, its session
ends and everybody is answered."""

import contextlib
import http.client
import json
import os
import pathlib
import pwd
import select
import shutil
import signal
import socket
import sys
import threading

import pytest
from boxlib import BUILD, ROOT, ApiError, Boxd

sys.path.insert(0, str(ROOT / "tests" / "escape"))

from escapelib import children, init_pids, is_init_program, status, wait_for  # noqa: E402

pytestmark = pytest.mark.rootless


@pytest.fixture
def unruly(session, tmp_path):
    """A session that has the program."""
    tmp_path.chmod(0o755)
    shutil.copy(BUILD / "tests/escape/unruly", tmp_path / "unruly")
    return session(extra_mounts=[{"host_path": str(tmp_path), "mount_path": "/probe", "mode": "ro"}])


def test_nothing_can_be_done_to_pid_1(api, unruly):
    r = api.x(unruly, "/probe/unruly", "1")
    assert r["outcome"] == "exited", r
    did = dict(line.split() for line in r["stdout"].splitlines())
    # Of /proc a program sees itself alone.
    assert did.pop("mem") in ("EACCES", "ENOENT"), r
    assert len(did) == 10 and set(did.values()) == {"EPERM"}, r
    # It starts programs as before, with all the descriptors that takes.
    for _ in range(3):
        assert api.sh(unruly, "echo fine; echo fine >&2")["stdout"] == "fine\n"


def test_a_process_that_cannot_be_ended_is_an_error_and_ends_with_its_session(boxd):
    api = boxd.client()
    api.new("s")
    (first,) = init_pids(boxd)
    api.call("POST", "/v1/sessions/s/processes", {"command": "sleep", "args": ["1000"], "process_id": "p"})
    os.kill(first, signal.SIGSTOP)
    with pytest.raises(ApiError, match="does not end") as caught:
        api.call("DELETE", "/v1/sessions/s/processes/p")
    assert (caught.value.status, caught.value.code) == (502, "backend")
    wait_for(lambda: api.ps() == [])
    assert not os.path.exists(f"/proc/{first}")


def ids(daemon):
    """User ids of PID 1 of a session and of a program in it, as the host knows them; what the receipt says of both."""
    api = daemon.client()
    api.new("ids")
    (first,) = init_pids(daemon)
    api.call("POST", "/v1/sessions/ids/exec", {"cmd": "echo > made; sleep 1000", "exec_id": "x", "detach": True})
    wait_for(lambda: [p for p in children(first) if not is_init_program(p)])
    found = [status(pid)["Uid"].split() for pid in (first, *children(first))]
    receipt = api.receipt("ids")
    assert [set(one) for one in found] == [{str(receipt["host_uid_init"])}, {str(receipt["host_uid_payload"])}]
    (check,) = [c for c in api.doctor()["checks"] if c["id"] == "init-id"]
    assert (check["status"] == "ok") == (receipt["host_uid_init"] != receipt["host_uid_payload"])
    api.rm("ids")
    api.close()
    return receipt


def may_have_second_id():
    if os.geteuid() == 0:
        return True
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
        ranges = [pathlib.Path(f"/etc/sub{kind}id").read_text().splitlines() for kind in "ug"]
    except (KeyError, OSError):
        return False
    return bool(shutil.which("newuidmap") and shutil.which("newgidmap")) and all(
        any(line.startswith(f"{name}:") for line in lines) for lines in ranges)


def test_pid_1_has_an_id_of_its_own(boxd):
    if not may_have_second_id():
        pytest.skip("this user has no newuidmap, or no range in /etc/subuid and /etc/subgid")
    receipt = ids(boxd)
    assert receipt["host_uid_init"] != receipt["host_uid_payload"]
    assert receipt["init_out_of_reach"].startswith("by its id")


def test_what_a_program_makes_in_a_directory_of_the_user_is_the_users(boxd, tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root's sessions map the owner of the directory")
    api = boxd.client()
    api.new("s", host_path=str(tmp_path), host_path_mode="rw")
    assert api.sh("s", "mkdir -p a/b && echo hello > a/b/c")["exit_code"] == 0
    api.rm("s")
    api.close()
    made = [tmp_path / "a", tmp_path / "a/b", tmp_path / "a/b/c"]
    assert {(p.stat().st_uid, p.stat().st_gid) for p in made} == {(os.geteuid(), os.getegid())}
    shutil.rmtree(tmp_path / "a")


def test_without_a_second_id_the_filter_is_the_wall():
    if os.geteuid() == 0:
        pytest.skip("root gives every session ids of its own")
    # Programs that are set-user-ID gain nothing then, newuidmap among them.
    daemon = Boxd(prefix=["setpriv", "--no-new-privs"])
    try:
        receipt = ids(daemon)
        assert receipt["host_uid_init"] == receipt["host_uid_payload"] == os.geteuid()
        assert receipt["init_out_of_reach"].startswith("by the system call filter")
    finally:
        daemon.close()


def runs(pid):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return status(pid)["State"][0] not in "ZX"
    return False


KILLS = [("DELETE", "", None), ("POST", "/signal", {"signal": "KILL"})]


@pytest.mark.parametrize("method, rest, body", KILLS)
def test_a_kill_of_a_command_is_answered_when_nothing_of_it_runs(boxd, method, rest, body):
    api, killer = boxd.client(), http.client.HTTPConnection("localhost")
    killer.sock = socket.socket(socket.AF_UNIX)
    killer.sock.connect(str(boxd.sock))
    api.new("s")
    (first,) = init_pids(boxd)
    api.call("POST", "/v1/sessions/s/exec", {"cmd": "sleep 1000 & sleep 1000; :", "exec_id": "x", "detach": True})
    wait_for(lambda: len(children(first)) == 1 and len(children(*children(first))) == 2)
    (shell,) = children(first)
    tree = [shell, *children(shell)]
    os.kill(first, signal.SIGSTOP)
    try:
        killer.request(method, f"/v1/sessions/s/execs/x{rest}", body and json.dumps(body))
        for _ in range(3):
            assert api.call("GET", "/v1/sessions/s/execs/x")["status"] == "running"
        assert not select.select([killer.sock], [], [], 0)[0]
    finally:
        os.kill(first, signal.SIGCONT)
    assert killer.getresponse().status == 204
    assert not [pid for pid in tree if runs(pid)]
    assert api.sh("s", "echo fine")["stdout"] == "fine\n"


def test_a_kill_of_a_command_ends_what_left_it_and_spares_a_managed_process(boxd):
    """Also where PID 1 has neither a group to kill nor the id of its programs."""
    api = boxd.client()
    api.new("s")
    (first,) = init_pids(boxd)
    api.call("POST", "/v1/sessions/s/processes", {"command": "sleep", "args": ["1000"], "process_id": "p"})
    wait_for(lambda: children(first))
    (spared,) = children(first)
    api.call("POST", "/v1/sessions/s/exec", {"cmd": "setsid sleep 1000 & sleep 1000; :", "exec_id": "x", "detach": True})
    wait_for(lambda: len(children(first)) == 2 and len(children(*set(children(first)) - {spared})) == 2)
    (shell,) = set(children(first)) - {spared}
    tree = [shell, *children(shell)]
    api.call("DELETE", "/v1/sessions/s/execs/x")
    assert not [pid for pid in tree if runs(pid)]
    assert runs(spared)
    wait_for(lambda: status(spared)["State"][0] == "S")


@pytest.mark.parametrize("method, rest, body", KILLS)
def test_a_command_that_cannot_be_ended_is_an_error_and_ends_with_its_session(boxd, method, rest, body):
    api = boxd.client()
    api.new("s")
    (first,) = init_pids(boxd)
    api.call("POST", "/v1/sessions/s/exec", {"cmd": "sleep 1000", "exec_id": "x", "detach": True})
    wait_for(lambda: children(first))
    os.kill(first, signal.SIGSTOP)
    with pytest.raises(ApiError, match="the command does not end; its session is removed") as caught:
        api.call(method, f"/v1/sessions/s/execs/x{rest}", body)
    assert (caught.value.status, caught.value.code) == (502, "backend")
    wait_for(lambda: api.ps() == [])
    assert not os.path.exists(f"/proc/{first}")


def test_a_pid_1_that_does_not_answer_ends_with_its_session(boxd):
    """Stopped from outside, where a wall of ours had a hole it would be from inside."""
    api, other = boxd.client(), boxd.client()
    api.new("s")
    (first,) = init_pids(boxd)
    result = []
    thread = threading.Thread(target=lambda: result.append(other.sh("s", "echo here; touch /tmp/on; sleep 1000", timeout_sec=5)))
    thread.start()
    api.sh("s", "until test -e /tmp/on; do sleep 0.05; done")
    os.kill(first, signal.SIGSTOP)
    thread.join(100)
    assert result[0]["outcome"] == "timed_out" and result[0]["stdout"] == "here\n", result
    wait_for(lambda: api.ps() == [])
    assert not os.path.exists(f"/proc/{first}")
    api.new("s")
    assert api.sh("s", "echo fine")["stdout"] == "fine\n"
