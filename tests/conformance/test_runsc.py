# SPDX-License-Identifier: Apache-2.0
"""gVisor without an engine: what is particular to it. That a session is a session there, too, is for
test_session_*.py and the rest of the suite."""

import os
import pathlib
import shutil
import signal
import subprocess
import tempfile

import pytest
from boxlib import ApiError, Boxd
from hostlib import assert_no_leak, processes, until
from netstage import HOST, INTERNET, PRIVATE, Stage, has_programs

pytestmark = [pytest.mark.real, pytest.mark.skipif(
    shutil.which("runsc") is None, reason="runsc is not installed; Debian has it in bookworm, not in trixie")]

SESSION_IDS = 2_000_000_000  # the first host id that can belong to a session
USER = 4_000_000 + os.getpid()  # whom nobody else is
BECOME = ["setpriv", "--reuid", str(USER), "--regid", str(USER), "--clear-groups"]
# Grows slowly enough for somebody to look, however busy the machine is.
GROW = "import time\nkept = []\nwhile True:\n    kept.append(bytearray(b'x') * (2 << 20))\n    time.sleep(0.02)\n"


@pytest.fixture(scope="module")
def daemon():
    made = Boxd("--backend", "runsc")
    yield made
    made.close()


@pytest.fixture
def api(daemon):
    client = daemon.client()
    yield client
    for session in client.ps():
        client.rm(session["session_id"])
    client.close()


def status(pid, *names):
    found = dict(line.split(":\t", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines())
    return [found[n].split() for n in names]


def refused(prefix=()):
    with pytest.raises(RuntimeError) as caught:
        Boxd("--backend", "runsc", prefix=prefix).close()
    return str(caught.value)


# The kernel.


def test_the_kernel_is_not_the_hosts(api):
    api.new("a")
    assert api.x("a", "uname", "-r")["stdout"].strip() != os.uname().release
    assert api.x("a", "cat", "/proc/sentry-meminfo")["exit_code"] == 0, "which only gVisor has"
    assert "runsc" in api.get("a")["backend_name"]


@pytest.mark.skipif(os.geteuid() != 0, reason="ids of their own are root's to give")
def test_around_it_are_the_walls_of_a_native_session(api, daemon):
    """A hole in gVisor ends in an id that nobody else has, in namespaces and groups of the session's own."""
    api.new("a")
    receipt = api.receipt("a")
    assert set(receipt["namespaces"].values()) == {"private"}, receipt["namespaces"]
    api.sh("a", "sleep 600 >/dev/null 2>&1 &")
    found = processes(daemon.tag())
    assert len(found) >= 3, "runsc, its kernel, who serves its files"
    for pid in found:
        uid, gid, groups, privs = status(pid, "Uid", "Gid", "Groups", "NoNewPrivs")
        assert all(SESSION_IDS <= int(i) < 2**32 - 2 for i in uid + gid) and groups == [] and privs == ["1"], pid
    root = pathlib.Path(f"/proc/{receipt['host_pid']}/root")
    assert sorted(p.name for p in root.iterdir()) == ["bundle", "dev", "proc", "rootfs", "runsc", "state", "tmp"]


def test_receipt_and_doctor_say_what_holds(api):
    api.new("a", memory_mb=100, pids_limit=40)
    receipt = api.receipt("a")
    assert (receipt["kernel"], receipt["runtime"], receipt["landlock_abi"]) == ("gvisor", "runsc", 0)
    assert receipt["runtime_version"] and receipt["network_stack"] == "gVisor's"
    memory, pids = receipt["limits"]["memory_bytes"], receipt["limits"]["pids"]
    assert pids["value"] == 40 and "RLIMIT_NPROC" in pids["how"]
    if memory["enforced"]:
        assert memory["host_bytes"] > memory["value"] == 100 << 20 and pids["host_tasks"] > 40 * 10
    found = {c["id"]: c for c in api.doctor()["checks"]}
    assert receipt["runtime_version"] in found["runsc"]["detail"] and found["gvisor-limits"]["status"] == "warn"
    assert found["backend-runsc"]["detail"].startswith("serves") and "landlock" not in found
    assert "--backend runsc" in found["gvisor"]["detail"]


# Memory: gVisor's kernel has that of all its programs.


def test_a_command_that_grows_is_ended_and_the_session_is_not(api):
    api.new("a", memory_mb=64)
    r = api.x("a", "python3", "-c", GROW, timeout_sec=100)
    assert r["outcome"] == "oom_killed", r
    assert api.sh("a", "echo alive")["stdout"] == "alive\n"


def test_one_that_is_too_quick_ends_its_session_and_no_other(api):
    api.new("a", memory_mb=64)
    api.new("b")
    if not api.receipt("a")["limits"]["memory_bytes"]["enforced"]:
        pytest.skip("the host gives this user no memory limit")
    r = api.sh("a", "dd if=/dev/zero of=/dev/null bs=900M count=1", timeout_sec=100)
    assert r["outcome"] == "session_lost", r
    until(lambda: [s["session_id"] for s in api.ps()] == ["b"])
    assert api.sh("b", "echo alive")["stdout"] == "alive\n"


# Its end.


def test_nothing_is_left_of_a_session(api, daemon):
    api.new("a", workspace_quota_mb=16 if os.geteuid() == 0 else 0)
    api.sh("a", "setsid sleep 600 >/dev/null 2>&1 & echo here > /workspace/f")
    pids = processes(daemon.tag())
    meeting = daemon.state / "engine" / "runsc"
    assert len(list(meeting.iterdir())) == 1 and pids
    api.rm("a")
    assert_no_leak(daemon)
    assert list(meeting.iterdir()) == [] and not [p for p in pids if pathlib.Path(f"/proc/{p}").exists()]


@pytest.mark.parametrize("who", ["runsc", "runsc-sandbox", "runsc-gofer"])
def test_a_session_whose_gvisor_was_killed_is_lost(api, daemon, who):
    api.new("a")
    names = {p: pathlib.Path(f"/proc/{p}/cmdline").read_bytes().split(b"\0")[0].decode()
             for p in processes(daemon.tag())}
    os.kill(next(p for p, name in names.items() if name == who), signal.SIGKILL)
    until(lambda: api.ps() == [])
    api.new("b")
    assert api.sh("b", "echo alive")["stdout"] == "alive\n"


def test_the_next_daemon_has_the_session_and_a_sweep_removes_the_rest():
    daemon = Boxd("--backend", "runsc")
    try:
        api = daemon.client()
        api.new("kept")
        assert api.sh("kept", "echo there > /workspace/f")["exit_code"] == 0
        stale = daemon.state / "engine" / "runsc" / "0123456789abcdef"
        stale.mkdir()
        daemon.stop(signal.SIGKILL)
        daemon.start()
        api = daemon.client()
        assert api.sh("kept", "cat /workspace/f")["stdout"] == "there\n"
        until(lambda: not stale.exists())
        api.rm("kept")
        assert_no_leak(daemon)
    finally:
        daemon.close()


def test_a_daemon_with_another_backend_before_is_no_obstacle():
    top = pathlib.Path(tempfile.mkdtemp(prefix="box-runsc-"))
    top.chmod(0o755)
    try:
        for before, after in (("native", "runsc"), ("runsc", "native")):
            daemon = Boxd("--backend", before, state=top)
            daemon.client().new("old")
            daemon.stop(signal.SIGKILL)
            daemon.args = ["--backend", after]
            daemon.start()
            api = daemon.client()
            assert api.ps() == [], "it belongs to a backend that is not there"
            api.new("new")
            assert api.sh("new", "echo alive")["stdout"] == "alive\n" and api.get("new")["backend_name"] == after
            api.rm("new")
            assert_no_leak(daemon)
            daemon.close()
    finally:
        shutil.rmtree(top)


# The network: the host's stack, in a namespace of the session's own.

# Says which of the places it reaches.
REACH = '''
import socket, sys
for place in sys.argv[1:]:
    host, port = place.split(":")
    try:
        with socket.create_connection((host, int(port)), 5):
            print(place)
    except OSError:
        pass
'''


@pytest.mark.skipif(os.geteuid() != 0 or not has_programs("ip", "nft", "slirp4netns"),
                    reason="needs root, iproute2, nftables and slirp4netns to build the stage")
@pytest.mark.parametrize("user", ["root", "ordinary user"])
def test_the_internet_is_reached_and_nothing_else(user):
    stage = Stage()
    try:
        daemon = (stage.boxd if user == "root" else stage.boxd_of_user)("--backend", "runsc")
        try:
            own, web = stage.host.listen(5411), stage.net.listen(80)
            api = daemon.client()
            api.new("on", network="on")
            api.new("off")
            places = [f"{INTERNET[0]}:80", "some.example:80", *(f"{a}:80" for a in PRIVATE), f"{HOST}:5411"]
            r = api.x("on", "python3", "-c", REACH, *places, timeout_sec=100)
            assert r["stdout"].split() == places[:2], r
            assert api.x("off", "python3", "-c", REACH, *places, timeout_sec=100)["stdout"] == ""
            receipt = api.receipt("on")
            assert receipt["network_stack"].startswith("the host's") and "private ranges" in receipt["network"]
            own.close()
            web.close()
        finally:
            daemon.close()
    finally:
        stage.close()


# Without it.


@pytest.mark.skipif(os.geteuid() != 0, reason="covers /usr/bin/runsc, in a namespace of its own")
def test_without_runsc_it_says_what_to_install():
    cover = ["unshare", "-m", "sh", "-c", 'mount --bind "$0" "$(command -v runsc)" && exec "$@"']
    assert "apt-get install runsc" in refused([*cover, "/dev/null"])
    assert "does not say that it is gVisor's runsc" in refused([*cover, "/bin/true"])


@pytest.fixture
def by_a_user():
    """A boxd of somebody who has no privilege."""
    if os.geteuid() != 0:
        pytest.skip("becomes another user")
    top = pathlib.Path(tempfile.mkdtemp(prefix="box-runsc-"))
    top.chmod(0o755)
    (top / "state").mkdir()
    os.chown(top / "state", USER, USER)

    daemon = Boxd("--backend", "runsc", state=top / "state", prefix=BECOME)
    yield daemon
    daemon.close()
    shutil.rmtree(top)


def test_an_ordinary_user_has_it_too(by_a_user):
    api = by_a_user.client()
    api.new("a")
    r = api.sh("a", "cat /proc/self/status; cat /proc/sentry-meminfo; echo here > f; cat f")
    lines = dict(line.split(":\t", 1) for line in r["stdout"].splitlines() if ":\t" in line)
    assert int(lines["CapEff"], 16) == int(lines["CapBnd"], 16) == 0 and r["stdout"].endswith("here\n")
    assert "shared by all sessions" in api.receipt("a")["host_ids"]
    api.rm("a")


def test_what_runsc_complains_about_is_the_reason(by_a_user):
    """With so few processes it has no room for its own threads."""
    subprocess.run([*BECOME, "prlimit", "--pid", str(by_a_user.priv_pid()), "--nproc=6:6"], check=True, timeout=20)
    api = by_a_user.client()
    words = "cannot create gofer process|failed to create new OS thread"  # whichever it comes to first
    with pytest.raises(ApiError, match=f"gVisor could not start the session: .*({words})"):
        api.new("a")
    assert api.ps() == []
