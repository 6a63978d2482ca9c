# SPDX-License-Identifier: Apache-2.0
"""boxd under a service manager, and the units that tell systemd how. The manager is played here."""

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess

import pytest
from boxlib import BUILD, ROOT, Client
from hostlib import need, until
from rawlib import Wire
from servicelib import Manager, Service

UNITS = BUILD / "systemd"


@pytest.fixture
def manager():
    m = Manager()
    yield m
    m.close()


@pytest.fixture
def service(manager):
    """Starts services and ends them."""
    made = []

    def start(*args, **more):
        made.append(Service(manager, *args, **more))
        return made[-1]

    yield start
    for s in made:
        s.close()


def get(where, path="/v1/health"):
    with Wire(where) as w:
        w.send(f"GET {path} HTTP/1.1\r\nHost: {w.host}\r\n\r\n".encode())
        return w.answer()[0]


def test_it_is_ready_when_it_serves(manager, service):
    path = manager.listen_unix()
    s = service()
    assert get(path) == 200
    assert not s.sock.exists()  # the socket that it was given takes the place of its own
    assert manager.heard[-1].split("\n")[0] == "READY=1"
    assert "serving on socket 'unknown'" in s.log()


def test_nobody_is_served_before_it_is_ready(manager, service):
    """A client that comes first waits in the socket, and is answered."""
    path = manager.listen_unix()
    with Wire(path, timeout=120) as early:
        early.send(b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        service()
        assert early.answer()[0] == 200


def test_sockets_of_both_kinds_by_name(manager, service):
    path, where = manager.listen_unix(), manager.listen_tcp()
    s = service("--ws-control-port", "1", names=["boxd", "web"])  # port 1 is not tried
    assert get(path) == 200 and get(where) == 200
    assert "serving on socket 'boxd'" in s.log() and "serving on socket 'web'" in s.log()


def test_a_message_for_another_process_is_not_ours(manager, service):
    manager.listen_unix()
    s = service(pid="1")
    assert get(s.sock) == 200
    assert "of the service manager" not in s.log()


def test_what_it_starts_inherits_nothing(manager, service):
    manager.listen_unix()
    s = service(env={"WATCHDOG_USEC": "60000000"})
    environment = pathlib.Path(f"/proc/{s.priv_pid()}/environ").read_bytes().split(b"\0")
    names = {line.split(b"=")[0] for line in environment}
    assert not names & {b"LISTEN_PID", b"LISTEN_FDS", b"LISTEN_FDNAMES", b"NOTIFY_SOCKET", b"WATCHDOG_USEC"}
    listening = os.stat(manager.sockets[0].fileno()).st_ino
    held = [os.stat(f"/proc/{s.priv_pid()}/fd/{n}").st_ino for n in os.listdir(f"/proc/{s.priv_pid()}/fd")]
    assert listening not in held


def test_an_open_address_wants_a_token(manager, service, tmp_path):
    where = manager.listen_tcp("0.0.0.0")
    s = service(ready=False)
    assert s.process.wait(60) == 1
    assert "needs a token" in s.log()
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123456789abcdef\n")
    service(env={"BOX_TOKEN_FILE": str(token)})
    assert get(("127.0.0.1", where[1])) == 200
    assert get(("127.0.0.1", where[1]), "/v1/sessions") == 401


def test_a_socket_that_cannot_be_served_is_told(manager, service):
    datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    datagrams.bind(str(manager.top / "datagrams"))
    manager.sockets.append(datagrams)
    s = service(names=["odd"], ready=False)
    assert s.process.wait(60) == 1
    assert "socket 'odd' of the service manager" in s.log() and "ListenStream=" in s.log()


def test_signs_of_life(manager, service):
    s = service(env={"WATCHDOG_USEC": "200000"})
    for _ in range(3):
        manager.wait("WATCHDOG=1")
    s.process.send_signal(signal.SIGSTOP)
    until(lambda: pathlib.Path(f"/proc/{s.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    manager.silence()
    assert manager.hear(0.5) is None
    s.process.send_signal(signal.SIGCONT)
    manager.wait("WATCHDOG=1")


def test_no_watchdog_no_signs(manager, service):
    service(env={"WATCHDOG_USEC": "100000", "WATCHDOG_PID": "1"})
    assert manager.hear(0.5) is None


def test_no_sign_of_life_without_descriptors(manager, service):
    """A daemon that can accept nobody says so by its silence."""
    path = manager.listen_unix()
    s = service(env={"WATCHDOG_USEC": "200000"}, max_fds=64)
    manager.wait("WATCHDOG=1")
    with contextlib.ExitStack() as held:
        for _ in range(80):
            c = held.enter_context(socket.socket(socket.AF_UNIX))
            c.connect(str(path))
            # Whoever was answered once stays; strangers have to make room, and one may be sent away before it asks.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                c.sendall(b"GET /v1/sessions HTTP/1.1\r\nHost: localhost\r\n\r\n")
        until(lambda: "no descriptor is left" in s.log())
    manager.silence()
    manager.wait("WATCHDOG=1")
    assert get(path) == 200


@pytest.mark.parametrize("sig, left", [(signal.SIGTERM, 0), (signal.SIGUSR2, 1)])
def test_the_end_is_announced(manager, service, sig, left):
    path = manager.listen_unix()
    s = service()
    client = Client(path)
    client.new("stays")
    client.close()
    s.process.send_signal(sig)
    manager.wait("STOPPING=1")
    assert s.process.wait(60) == 0
    assert path.exists()  # it belongs to whoever made it
    # The unit: KillSignal= ends the sessions, RestartKillSignal= leaves them to the next boxd.
    unit = (UNITS / "boxd.service").read_text()
    assert f"{'Restart' if left else ''}KillSignal={sig.name}\n" in unit
    s.start()
    client = Client(path)
    assert len(client.ps()) == left
    if left:
        assert client.sh("stays", "echo still here")["stdout"] == "still here\n"
    client.close()


def test_a_restart_loses_no_connection(manager, service):
    path = manager.listen_unix()
    s = service()
    s.stop(signal.SIGUSR2)
    with Wire(path, timeout=120) as between:
        between.send(b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        s.start()
        assert between.answer()[0] == 200


def test_a_crash_loses_no_session(manager, service):
    path = manager.listen_unix()
    s = service()
    client = Client(path)
    client.new("stays")
    client.close()
    s.stop(signal.SIGABRT)  # as the watchdog does
    s.start()
    client = Client(path)
    assert client.sh("stays", "echo still here")["stdout"] == "still here\n"
    client.close()


# The units.


def test_systemd_takes_the_units(tmp_path):
    need("systemd-analyze")
    for name in ("boxd.service", "boxd.socket"):
        text = (UNITS / name).read_text()
        assert "@" not in text
        # Neither the program nor its manual is installed here.
        text = "".join(line for line in text.splitlines(True) if not line.startswith("Documentation="))
        (tmp_path / name).write_text(text.replace("/usr/local/bin/boxd", str(BUILD / "boxd")))
    done = subprocess.run(["systemd-analyze", "verify", *(str(tmp_path / n) for n in ("boxd.service", "boxd.socket"))],
                          capture_output=True, text=True, timeout=60)
    said = [line for line in done.stderr.splitlines() if "boxd" in line]
    assert done.returncode == 0 and not said, done.stderr


def settings(name):
    """[(key, value)] of a unit."""
    lines = (UNITS / name).read_text().splitlines()
    return [tuple(line.split("=", 1)) for line in lines if "=" in line and not line.startswith("#")]


def test_the_capabilities_that_the_unit_leaves_are_enough(manager, service, tmp_path):
    need("setpriv", "mkfs.ext4")
    dropped = [word for key, value in settings("boxd.service") if key == "CapabilityBoundingSet"
               for word in value.lstrip("~").split()]
    assert all(value.startswith("~") for key, value in settings("boxd.service") if key == "CapabilityBoundingSet")
    assert ("NoNewPrivileges", "yes") in settings("boxd.service") and len(dropped) > 10
    bounds = ",".join("-" + word.removeprefix("CAP_").lower() for word in dropped)
    path = manager.listen_unix()
    s = service(prefix=[shutil.which("setpriv"), "--no-new-privs", f"--bounding-set={bounds}", "--"])
    effective = pathlib.Path(f"/proc/{s.priv_pid()}/status").read_text()
    assert "CapBnd:\t000001ffffffffff" not in effective
    client = Client(path)
    client.new("small", memory_mb=64, pids_limit=20, workspace_quota_mb=8)
    assert client.sh("small", "echo x > f && id -u && df . | tail -1")["exit_code"] == 0
    assert client.sh("small", "head -c 20000000 /dev/zero > big")["exit_code"] != 0
    client.rm("small")
    client.close()


def test_no_setting_of_the_unit_reaches_into_sandboxes():
    """Filters and mounts of the unit would be those of every sandbox, and of a box-priv of before."""
    harmful = {"SystemCallFilter", "MemoryDenyWriteExecute", "RestrictNamespaces", "RestrictSUIDSGID",
               "LockPersonality", "RestrictAddressFamilies", "ProtectSystem", "ProtectHome", "PrivateTmp",
               "PrivateDevices", "ProtectProc",
               "ProtectKernelModules", "ProtectKernelTunables", "ProtectKernelLogs", "ProtectControlGroups",
               "ProtectHostname", "ProtectClock", "RestrictRealtime", "OOMScoreAdjust", "User", "DynamicUser",
               "StateDirectory", "Delegate", "PrivateUsers", "PrivateNetwork"}
    keys = {key for key, _ in settings("boxd.service")}
    assert not keys & harmful
    assert ("KillMode", "process") in settings("boxd.service")


def test_the_source_of_the_unit_is_the_trees():
    text = (ROOT / "systemd" / "boxd.service.in").read_text()
    assert "ExecStart=@bindir@/boxd --config @sysconfdir@/box/config.yaml\n" in text
