# SPDX-License-Identifier: Apache-2.0
"""Sessions that are kept: stop, start, pause, rename, idle time, the end of boxd, of box-priv and of the host."""

import os
import pathlib
import signal
import subprocess

import pytest
from boxlib import BUILD, ApiError, Boxd
from hostlib import alive, processes, until
from lbwire import Rpc
from wsexec import Stream

pytestmark = pytest.mark.rootless


@pytest.fixture
def daemon():
    d = Boxd()
    yield d
    d.close()


def box(daemon, *args, check=True):
    environment = {**os.environ, "BOX_HOST": f"unix://{daemon.sock}"}
    r = subprocess.run([str(BUILD / "box"), *args], env=environment, capture_output=True, text=True, timeout=60)
    assert not check or r.returncode == 0, r.stderr
    return r


def state_of(client, name):
    return next((s["state"] for s in client.ps() if s["session_id"] == name), None)


# Owners, modes, times, links and bytes: what a user would notice.
FILL = (
    "cd /workspace && mkdir -p d/e && head -c 300000 /dev/urandom > d/e/r && ln -s d/e/r link && ln d/e/r hard && "
    "chmod 640 d/e/r && echo hi > .hidden && touch -d 2001-02-03T04:05:06 .hidden && mkdir $HOME/h && echo x > $HOME/h/f"
)
LOOK = "cd /workspace && find . $HOME -printf '%p %u %g %m %s %l %n %TY-%Tm-%Td\\n' | sort && sha256sum d/e/r $HOME/h/f"


def filled(daemon, name="k"):
    box(daemon, "run", "--session", name, "--", "sh", "-c", FILL)
    return box(daemon, "run", "--session", name, "--", "sh", "-c", LOOK).stdout


def look(daemon, name="k"):
    return box(daemon, "exec", name, "--", "sh", "-c", LOOK).stdout


def test_a_stopped_session_has_its_files_and_nothing_else(daemon):
    client = daemon.client()
    before = filled(daemon)
    box(daemon, "run", "--session", "k", "--", "sh", "-c", "sleep 1000 & echo")
    name = next(p.name for p in (daemon.state / "kept").iterdir())
    box(daemon, "stop", "k")
    assert state_of(client, "k") == "stopped"
    assert not list(pathlib.Path("/sys/fs/cgroup").rglob(name))
    assert not processes(daemon.tag())
    box(daemon, "stop", "k")  # which it is already
    assert look(daemon) == before  # which starts it
    assert state_of(client, "k") == "ready"
    box(daemon, "stop", "k")
    box(daemon, "start", "k")
    box(daemon, "start", "k")
    assert look(daemon) == before
    box(daemon, "rm", "k")
    with pytest.raises(ApiError) as e:
        client.get("k")
    assert e.value.status == 404
    until(lambda: not list((daemon.state / "kept").iterdir()))


def test_a_release_of_its_lease_stops_it_and_does_not_remove_it(daemon):
    before = filled(daemon)
    with Stream(daemon.sock, {"type": "hold", "session": {"session_id": "k"}}, target="/v1/hold") as s:
        assert s.recv()[1]["type"] == "held"
        s.say({"type": "release"})
        assert s.recv()[1]["type"] == "released"
    assert state_of(daemon.client(), "k") == "stopped"
    assert look(daemon) == before


def test_a_command_of_langbot_that_hangs_stops_it_and_does_not_remove_it(daemon):
    client = daemon.client()
    with Rpc(daemon.sock) as rpc:
        rpc.exec("s", "true")
        (made,) = client.ps()
        name = made["session_id"]
        client.rm(name)
        client.new(name, durable=True, image=made["image"], best_effort=True)
        client.sh(name, "echo kept > f")
        assert rpc.exec("s", "sleep 100", timeout_sec=1)["status"] == "timed_out"
    assert state_of(client, name) == "stopped"
    client.call("POST", f"/v1/sessions/{name}/start")
    assert client.sh(name, "cat f")["stdout"] == "kept\n"


def test_an_idle_session_is_stopped_not_removed():
    d = Boxd(env={"BOX_SESSION_TTL_SEC": "1"})
    try:
        client = d.client()
        box(d, "run", "--session", "kept", "--", "sh", "-c", "echo mine > f")
        box(d, "run", "--session", "gone", "--temporary", "--", "true")
        until(lambda: [s["session_id"] for s in client.ps()] == ["kept"])
        until(lambda: state_of(client, "kept") == "stopped")
        assert box(d, "exec", "kept", "--", "cat", "f").stdout == "mine\n"
        # A file is reached, too, whoever asks first.
        until(lambda: state_of(client, "kept") == "stopped")
        assert box(d, "cp", "kept:/workspace/f", "/dev/stdout").stdout == "mine\n"
    finally:
        d.close()


def test_every_way_to_use_a_stopped_session_starts_it(daemon):
    client = daemon.client()
    client.new("k", durable=True)
    client.sh("k", "echo mine > /workspace/f")
    uses = [
        ("POST", "/v1/sessions/k/exec", {"cmd": "true"}),
        ("GET", "/v1/sessions/k/files?stat=/workspace/f", None),
        ("GET", "/v1/sessions/k/files?list=/workspace", None),
        ("POST", "/v1/sessions/k/processes", {"process_id": "p", "command": "cat"}),
        ("GET", "/v1/sessions/k/processes", None),
        ("POST", "/v1/sessions/k/tools/read", {"path": "/workspace/f"}),
        ("POST", "/v1/execute-tool", {"tool": "exec", "arguments": {"command": "true"}, "session_id": "k"}),
        ("POST", "/v1/sessions", {"session_id": "k"}),
    ]
    for method, path, body in uses:
        client.call("POST", "/v1/sessions/k/stop")
        assert state_of(client, "k") == "stopped"
        client.call(method, path, body)
        assert state_of(client, "k") == "ready", path
    for path in ("/v1/sessions/k", "/v1/sessions", "/v1/status", "/metrics", "/v1/sessions/k/execs"):  # to look is no use
        client.call("POST", "/v1/sessions/k/stop")
        if path != "/metrics":
            client.call("GET", path)
        assert state_of(client, "k") == "stopped"


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGUSR2, signal.SIGKILL])
def test_the_end_of_boxd_loses_no_file(daemon, sig):
    before = filled(daemon)
    box(daemon, "run", "--session", "away", "--temporary", "--", "true")
    box(daemon, "run", "--session", "off", "--", "true")
    box(daemon, "stop", "off")
    daemon.stop(sig)
    daemon.start()
    client = daemon.client()
    names = {s["session_id"]: s["state"] for s in client.ps()}
    if sig == signal.SIGTERM:
        assert names == {"k": "stopped", "off": "stopped"}
    else:
        assert names == {"k": "ready", "away": "ready", "off": "stopped"}
    assert look(daemon) == before
    assert client.get("k")["durable"] is True


def reboot(daemon):
    """What a host that goes down does: every process of Box at once. Directories stay."""
    priv = daemon.priv_pid()
    os.kill(daemon.pid, signal.SIGSTOP)  # so that it sees nothing of it
    os.kill(priv, signal.SIGKILL)  # and the kernel kills every PID 1
    daemon.process.kill()
    daemon.process.wait()
    until(lambda: not alive(priv))
    daemon.start()


def test_a_reboot_leaves_sessions_stopped_with_their_files(daemon):
    before = filled(daemon)
    box(daemon, "run", "--session", "other", "--temporary", "--", "true")
    for _ in range(2):
        reboot(daemon)
        client = daemon.client()
        assert {s["session_id"]: s["state"] for s in client.ps()} == {"k": "stopped"}
        assert look(daemon) == before


def test_a_box_priv_that_dies_takes_the_processes_only(daemon):
    before = filled(daemon)
    os.kill(daemon.priv_pid(), signal.SIGKILL)
    daemon.process.wait(60)
    daemon.start()
    assert look(daemon) == before


def test_a_sandbox_that_dies_is_stopped(daemon):
    client = daemon.client()
    before = filled(daemon)
    name = next(p.name for p in (daemon.state / "kept").iterdir())
    priv = daemon.priv_pid()
    inits = [int(p) for p in pathlib.Path(f"/proc/{priv}/task/{priv}/children").read_text().split()]
    assert name and inits
    for pid in inits:
        os.kill(pid, signal.SIGKILL)
    until(lambda: state_of(client, "k") == "stopped")
    assert look(daemon) == before


def test_too_many_forks_cost_no_file(daemon):
    if os.geteuid() != 0:
        pytest.skip("without root there may be no limit of processes")
    box(daemon, "run", "--session", "k", "--pids", "32", "--", "sh", "-c", FILL)
    before = look(daemon)
    fork = "i=0; while [ $i -lt 100 ]; do sleep 1000 & i=$((i + 1)); done"
    assert "fork" in box(daemon, "exec", "k", "--", "sh", "-c", fork, check=False).stderr
    assert box(daemon, "exec", "k", "--", "sh", "-c", LOOK, check=False).returncode != 0  # what it left fills the session
    box(daemon, "stop", "k")
    assert look(daemon) == before


def test_a_writable_root_is_kept(daemon):
    if os.geteuid() != 0:
        pytest.skip("without root there is no writable root")
    box(daemon, "run", "--session", "k", "--read-only-root", "off", "--", "sh", "-c", "echo mine > /usr/local/bin/m; rm /usr/bin/yes")
    box(daemon, "stop", "k")
    assert box(daemon, "exec", "k", "--", "sh", "-c", "cat /usr/local/bin/m; ls /usr/bin/yes || echo gone").stdout == "mine\ngone\n"


def test_a_quota_is_kept_with_its_image(daemon):
    if os.geteuid() != 0:
        pytest.skip("without root there is no quota")
    run = ["run", "--session", "k", "--quota-mb", "8"]
    box(daemon, *run, "--", "sh", "-c", "head -c 1000000 /dev/urandom > f; sha256sum f > sum")
    for how in ("stop", "term", "reboot"):
        if how == "stop":
            box(daemon, "stop", "k")
        elif how == "term":
            daemon.stop()
            daemon.start()
        else:
            reboot(daemon)
        r = box(daemon, *run, "--", "sh", "-c", "sha256sum -c sum; head -c 9000000 /dev/zero > g || echo full; rm -f g")
        assert r.stdout == "f: OK\nfull\n", r.stdout


def test_an_image_that_a_power_cut_left_torn_is_mended(daemon):
    if os.geteuid() != 0:
        pytest.skip("without root there is no quota")
    run = ["run", "--session", "k", "--quota-mb", "8"]
    box(daemon, *run, "--", "sh", "-c", "echo mine > f; mkdir d; echo torn > d/g")
    daemon.stop()
    (image,) = (p for p in (daemon.state / "kept").rglob("*") if p.is_file() and p.stat().st_size >= 8 << 20)
    for change in ("clri workspace/d", "set_super_value state 0"):  # a torn directory, and a mount that never ended
        subprocess.run(["debugfs", "-w", "-R", change, str(image)], check=True, capture_output=True, timeout=60)
    (image.parent / "disk.boot").write_text("of another boot")
    daemon.start()
    until(lambda: box(daemon, "start", "k", check=False).returncode == 0)
    assert box(daemon, *run, "--", "sh", "-c", "cat f; ls").stdout == "mine\nf\n"


def test_an_image_that_is_held_open_is_mounted_again_once_it_is_free(daemon):
    if os.geteuid() != 0:
        pytest.skip("without root there is no quota")
    run = ["run", "--session", "k", "--quota-mb", "8"]
    box(daemon, *run, "--", "sh", "-c", "echo mine > f")
    priv = daemon.priv_pid()
    roots = [pathlib.Path(f"/proc/{p}/root/workspace/f")
             for p in pathlib.Path(f"/proc/{priv}/task/{priv}/children").read_text().split()]
    with next(p for p in roots if p.exists()).open():
        box(daemon, "stop", "k")
        r = box(daemon, "start", "k", check=False)
        assert r.returncode != 0 and "still in use; try again" in r.stderr, r.stderr
        assert state_of(daemon.client(), "k") == "stopped"
    assert box(daemon, *run, "--", "cat", "f").stdout == "mine\n"


def test_a_paused_session_does_nothing_until_it_goes_on(daemon):
    client = daemon.client()
    box(daemon, "run", "--session", "p", "--", "sh", "-c", "(while :; do date +%s%N > /workspace/t; sleep 0.02; done) >/dev/null 2>&1 &")
    r = box(daemon, "pause", "p", check=False)
    if r.returncode != 0:
        assert "cgroup" in r.stderr and os.geteuid() != 0, r.stderr
        pytest.skip("no control groups here: " + r.stderr)
    assert state_of(client, "p") == "paused"
    file = next((daemon.state / "kept").iterdir()) / "workspace" / "t"
    before = file.read_bytes()
    r = box(daemon, "exec", "p", "--", "true", check=False)
    assert r.returncode == 125 and "box unpause p" in r.stderr, r.stderr
    for path in ("/v1/sessions/p/files?path=t", "/v1/sessions/p/processes"):
        with pytest.raises(ApiError) as e:
            client.call("GET", path)
        assert e.value.status == 409 and "box unpause p" in e.value.detail
    assert file.read_bytes() == before
    # It stays paused over a restart of boxd.
    daemon.stop(signal.SIGKILL)
    daemon.start()
    client = daemon.client()
    until(lambda: state_of(client, "p") == "paused")
    before = file.read_bytes()
    assert box(daemon, "pause", "p", check=False).returncode == 125
    assert file.read_bytes() == before
    box(daemon, "unpause", "p")
    until(lambda: file.read_bytes() != before)
    assert box(daemon, "exec", "p", "--", "echo", "on").stdout == "on\n"
    # What is frozen can be stopped and removed.
    box(daemon, "pause", "p")
    box(daemon, "stop", "p")
    assert state_of(client, "p") == "stopped"
    box(daemon, "start", "p")
    box(daemon, "pause", "p")
    box(daemon, "rm", "p")


def test_a_command_that_is_paused_past_its_timeout_costs_no_session(daemon):
    client = daemon.client()
    box(daemon, "run", "--session", "p", "--", "true")
    if box(daemon, "pause", "p", check=False).returncode != 0:
        pytest.skip("no control groups here")
    box(daemon, "unpause", "p")
    environment = {**os.environ, "BOX_HOST": f"unix://{daemon.sock}"}
    with subprocess.Popen([str(BUILD / "box"), "exec", "p", "--timeout", "1", "--", "sleep", "100"], env=environment) as p:
        until(lambda: client.get("p")["execs"] == 1)
        box(daemon, "pause", "p")
        with pytest.raises(subprocess.TimeoutExpired):
            p.wait(12)  # longer than boxd waits for a PID 1 that does not answer
        assert state_of(client, "p") == "paused"
        box(daemon, "unpause", "p")
        assert p.wait(30) == 124
    assert box(daemon, "exec", "p", "--", "echo", "on").stdout == "on\n"


def test_a_session_has_another_name(daemon):
    client = daemon.client()
    before = filled(daemon)
    box(daemon, "run", "--session", "taken", "--", "true")
    r = box(daemon, "rename", "k", "taken", check=False)
    assert r.returncode == 125 and "already" in r.stderr
    box(daemon, "rename", "k", "new")
    assert look(daemon, "new") == before
    box(daemon, "stop", "new")
    box(daemon, "rename", "new", "newer")
    daemon.stop(signal.SIGKILL)
    daemon.start()
    client = daemon.client()
    assert {s["session_id"] for s in client.ps()} == {"newer", "taken"}
    assert look(daemon, "newer") == before
    assert box(daemon, "rename", "newer", "a/b", check=False).returncode == 125


def test_what_is_kept_is_listed_with_its_size_and_limited():
    d = Boxd(env={"BOX_MAX_KEPT_SESSIONS": "2", "BOX_KEPT_DISK_MB": "4"})
    try:
        client = d.client()
        box(d, "run", "--session", "a", "--", "sh", "-c", "head -c 5000000 /dev/urandom > f")
        assert "running" in box(d, "ps").stdout
        box(d, "stop", "a")
        assert box(d, "ps").stdout.splitlines()[1:] == []
        until(lambda: "disk_bytes" in client.get("a"))
        line = next(s for s in box(d, "ps", "-a").stdout.splitlines() if s.startswith("a "))
        assert "stopped" in line and "4.8 MiB" in line, line
        assert 5_000_000 <= client.get("a")["disk_bytes"] < 5_200_000
        r = box(d, "run", "--session", "b", "--", "true", check=False)
        assert r.returncode == 125 and "kept_disk_mb" in r.stderr and "box rm" in r.stderr, r.stderr
        box(d, "run", "--session", "b", "--temporary", "--", "true")  # which is not kept
        box(d, "exec", "a", "--", "rm", "f")
        box(d, "stop", "a")
        until(lambda: client.get("a").get("disk_bytes", 1 << 30) < 1 << 20)
        box(d, "run", "--session", "c", "--", "true")
        r = box(d, "run", "--session", "d", "--", "true", check=False)
        assert r.returncode == 125 and "max_kept_sessions" in r.stderr, r.stderr
    finally:
        d.close()


def test_sessions_that_are_not_kept_cannot_be_stopped(daemon):
    client = daemon.client()
    client.new("t")
    assert client.get("t")["durable"] is False
    r = box(daemon, "stop", "t", check=False)
    assert r.returncode == 125 and "box rm" in r.stderr
    assert box(daemon, "start", "nowhere", check=False).returncode == 125
    with pytest.raises(ApiError) as e:
        client.call("POST", "/v1/sessions", {"durable": True})
    assert e.value.status == 422 or e.value.status == 400
    with pytest.raises(ApiError) as e:
        client.call("POST", "/v1/sessions", {"session_id": "x", "durable": "yes"})
    assert "durable" in e.value.detail


def test_removal_of_a_stopped_session_frees_its_name(daemon):
    filled(daemon)
    box(daemon, "stop", "k")
    box(daemon, "rm", "k")
    assert box(daemon, "run", "--session", "k", "--", "ls", "-A").stdout == ""
