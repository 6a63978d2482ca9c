# SPDX-License-Identifier: Apache-2.0
"""Services of the host that a session may reach: `--allow-host`, `allow_hosts`."""

import os
import shutil
import signal
import socket
import subprocess
import threading
from contextlib import closing, contextmanager, suppress

import pytest
from boxlib import ApiError, Boxd, box
from hostlib import until
from policylib import Governed, token

pytestmark = pytest.mark.rootless

# Says a word to a port of the session's loopback, and prints what comes back.
SAY = """
import socket, sys
try:
    s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 20)
    s.sendall(b"ping")
    s.shutdown(socket.SHUT_WR)
    print(b"".join(iter(lambda: s.recv(65536), b"")).decode() or "ended")
except OSError as e:
    print(type(e).__name__)
"""


class Echo:
    """A server on a loopback address of the host."""

    def __init__(self, address="127.0.0.1", port=0):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.listener = socket.create_server((address, port), family=family, backlog=512)
        self.port = self.listener.getsockname()[1]
        self.open = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with suppress(OSError):
            while True:
                conn = self.listener.accept()[0]
                self.open.append(conn)
                threading.Thread(target=self.serve, args=[conn], daemon=True).start()

    def serve(self, conn):
        with suppress(OSError):
            while data := conn.recv(65536):
                conn.sendall(b"echo:" + data)
            conn.shutdown(socket.SHUT_WR)

    def close(self):
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self.listener.close()
        for conn in self.open:
            conn.close()


@pytest.fixture
def echo():
    with closing(Echo()) as server:
        yield server


def say(api, sid, port, address="127.0.0.1"):
    return api.x(sid, "python3", "-c", SAY, address, str(port))["stdout"].strip()


def at(server, inside=None):
    return [f"127.0.0.1:{server.port}" + (f":{inside}" if inside else "")]


@contextmanager
def refused(status, *words):
    with pytest.raises(ApiError) as e:
        yield
    assert e.value.status == status and all(w in e.value.problem["detail"] for w in words), e.value.problem


@pytest.mark.parametrize("network", ["off", "on"])
def test_a_session_reaches_the_allowed_service_and_nothing_else(api, session, echo, network):
    with closing(Echo()) as other:
        try:
            s = session(network=network, allow_hosts=at(echo))
        except ApiError as e:
            if e.status != 501 or os.geteuid() == 0:
                raise
            pytest.skip(f"without root: {e}")
        assert say(api, s, echo.port) == "echo:ping"
        assert say(api, s, echo.port, "::1") == "echo:ping"
        assert say(api, s, other.port) == "ConnectionRefusedError"
        assert say(api, session(network=network), echo.port) == "ConnectionRefusedError"
        told = api.get(s)
        assert told["allow_hosts"] == at(echo)
        entry = {"host": "127.0.0.1", "host_port": echo.port, "port": echo.port, "listening": True, "connections": 0}
        until(lambda: api.get(s)["receipt"]["allow_hosts"] == [entry], what="the receipt")
        assert not other.open


def test_another_port_inside_also_one_below_1024(api, session, echo):
    with closing(Echo("::1")) as six:
        s = session(allow_hosts=[*at(echo, 80), f"[::1]:{six.port}:81"])
        assert say(api, s, 80) == say(api, s, 81) == "echo:ping"
        assert say(api, s, echo.port) == "ConnectionRefusedError"
        assert api.get(s)["allow_hosts"] == [*at(echo, 80), f"[::1]:{six.port}:81"]


def test_a_service_that_does_not_run_ends_the_connection_and_is_found_when_it_does(api, session, echo):
    s = session(allow_hosts=at(echo))
    echo.close()
    assert say(api, s, echo.port) in ("ended", "ConnectionResetError", "BrokenPipeError", "OSError")  # ENOTCONN
    with closing(Echo(port=echo.port)):
        assert say(api, s, echo.port) == "echo:ping"


@pytest.mark.parametrize("hosts, status, word", [
    ("127.0.0.1:80", 422, "list"), (["127.0.0.1"], 422, "ADDRESS:PORT"), (["example.org:80"], 422, "numeric"),
    (["127.0.0.1:0"], 422, "ADDRESS:PORT"), (["127.0.0.1:65536"], 422, "ADDRESS:PORT"),
    (["127.0.0.1:80:0"], 422, "ADDRESS:PORT"), ([80], 422, "ADDRESS:PORT"), (["::1:80"], 422, "ADDRESS:PORT"),
    (["127.0.0.1:80", "127.0.0.2:81:80"], 422, "port 80 of the session"),
    ([f"127.0.0.1:{i + 1}" for i in range(17)], 422, "at most 16"),
    (["0.0.0.0:80"], 403, "ports.allow_hosts"), (["[::]:80"], 403, "ports.allow_hosts"),
    (["169.254.169.254:80"], 403, "'169.254.169.254:80' to ports.allow_hosts"),
    (["[::ffff:169.254.169.254]:80"], 403, "'169.254.169.254:80'")])
def test_what_cannot_be_allowed_is_refused(api, hosts, status, word):
    with refused(status, word):
        api.new("refused", allow_hosts=hosts)
    assert "refused" not in [s["session_id"] for s in api.ps()]


def test_sixteen_services_are_allowed_and_another_list_is_a_conflict(api, session, echo):
    s = session(allow_hosts=[f"127.0.0.1:{echo.port}:{i + 1}" for i in range(16)])
    assert say(api, s, 16) == "echo:ping"
    with refused(409, "allow_hosts"):
        api.new(s, allow_hosts=at(echo))
    api.new(s)  # a caller that does not care


def test_boxd_itself_is_no_service_for_sessions():
    with closing(Governed(tcp=True)) as boxd:
        for address in ("127.0.0.1", "127.1.2.3", "[::1]", "[::ffff:127.0.0.1]", "localhost"):
            with refused(403, f"port {boxd.port} is boxd's own"):
                boxd.client().new("s", allow_hosts=[f"{address}:{boxd.port}"])
        boxd.stop()
        boxd.config.write_text(f"ports: {{allow_hosts: ['localhost:{boxd.port}', '192.0.2.1:5']}}\n")
        boxd.start()
        boxd.client().new("s", allow_hosts=[f"127.0.0.1:{boxd.port}", "192.0.2.1:5"])


def test_a_token_needs_the_service_in_its_scope(echo):
    may = {"tools": ["*"], "profiles": ["*"], "sessions": ["*"]}
    poor, poor_text = token("poor", **may)
    rich, rich_text = token("rich", **may, hosts=[f"localhost:{echo.port}"])
    with closing(Governed(tokens=[poor, rich])) as boxd:
        boxd.caller(rich_text).call("POST", "/v1/sessions", {"session_id": "s", "allow_hosts": at(echo)})
        assert say(boxd.client(), "s", echo.port) == "echo:ping"
        assert boxd.audit(event="session_create", who="rich")[0]["reason"] == f"may reach {at(echo)[0]}"
        with refused(403, f"token 'poor' may not let sessions reach {at(echo)[0]}"):
            boxd.caller(poor_text).call("POST", "/v1/sessions", {"session_id": "t", "allow_hosts": at(echo)})
        with refused(403, "token 'poor' may not let sessions reach"):  # nor use the other's
            boxd.caller(poor_text).call("POST", "/v1/sessions/s/exec", {"argv": ["true"]})
        with refused(403, "token 'rich' may not"):
            boxd.caller(rich_text).call("POST", "/v1/sessions", {"session_id": "t", "allow_hosts": ["127.0.0.1:1"]})


def test_a_profile_that_locks_services_or_the_network_off_lets_none_be_reached(echo):
    profiles = "{mine: {locked: [allow_hosts]}, quiet: {network: 'off', locked: [network]}}"
    with closing(Governed(f"profiles: {profiles}")) as boxd:
        api = boxd.client()
        api.new("open", allow_hosts=at(echo))
        for profile in ("mine", "quiet"):
            with refused(403, f"profile '{profile}'"):
                api.new("s", profile=profile, allow_hosts=at(echo))
            with refused(409, "allow_hosts"):  # nor is the session of another profile handed out
                api.new("open", profile=profile)
            api.new("s", profile=profile)


def test_services_are_reached_again_after_restarts_stops_and_pauses(echo):
    with closing(Boxd()) as boxd:
        api = boxd.client()
        api.new("s", durable=True, allow_hosts=at(echo))
        boxd.stop(signal.SIGKILL)
        boxd.start()
        api = boxd.client()
        assert say(api, "s", echo.port) == "echo:ping"
        api.call("POST", "/v1/sessions/s/stop")
        assert api.get("s")["state"] == "stopped" and api.get("s")["allow_hosts"] == at(echo)
        api.call("POST", "/v1/sessions/s/start")
        assert say(api, "s", echo.port) == "echo:ping"
        with suppress(ApiError):  # without control groups of its own boxd cannot pause
            api.call("POST", "/v1/sessions/s/pause")
            api.call("POST", "/v1/sessions/s/unpause")
        assert say(api, "s", echo.port) == "echo:ping"


def test_what_is_allowed_no_more_is_not_reached_after_a_restart(echo):
    with closing(Boxd()) as boxd:
        boxd.client().new("s", allow_hosts=at(echo))
        boxd.stop(signal.SIGKILL)
        echo.close()
        boxd.args += ["--ws-control-port", str(echo.port)]  # now it is boxd's own
        boxd.start()
        assert say(boxd.client(), "s", echo.port) == "ConnectionRefusedError"
        assert boxd.client().receipt("s")["allow_hosts"][0]["listening"] is False
        assert "is boxd's own" in boxd.log()


def test_held_connections_stop_at_the_cap_and_end_with_the_session(api, session, echo):
    s = session(allow_hosts=at(echo))
    hold = ("import os, socket, sys\n"
            "c = [socket.create_connection(('127.0.0.1', int(sys.argv[1])), 60) for _ in range(180)]\n"
            "if os.fork() == 0: import time; time.sleep(100000)")
    api.x(s, "sh", "-c", f'exec python3 -c "$0" {echo.port} </dev/null >/dev/null 2>&1', hold)
    other = session(allow_hosts=at(echo))

    def count():
        return api.receipt(s)["allow_hosts"][0]["connections"]
    until(lambda: count() == 128, what="connections up to the cap")
    assert say(api, other, echo.port) == "echo:ping"
    assert count() == 128 and len(echo.open) == 129
    api.rm(s)
    for conn in echo.open[:128]:
        conn.settimeout(60)
    until(lambda: all(c.fileno() < 0 or c.recv(1) == b"" for c in echo.open[:128]), what="their ends")


def test_large_answers_come_whole(api, session):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        def serve():
            conn = listener.accept()[0]
            with conn:
                for i in range(256):
                    conn.sendall(bytes([i]) * 65536)
        threading.Thread(target=serve, daemon=True).start()
        port = listener.getsockname()[1]
        s = session(allow_hosts=[f"127.0.0.1:{port}"])
        read = ("import hashlib, socket, sys\ns = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
                "data = b''.join(iter(lambda: s.recv(65536), b''))\n"
                "print(len(data), data == b''.join(bytes([i]) * 65536 for i in range(256)))")
        assert api.x(s, "python3", "-c", read, str(port))["stdout"] == f"{16 << 20} True\n"


def test_redis_of_the_host_from_the_command_line(boxd_shared, tmp_path):
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed (apt-get install redis-server)")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = subprocess.Popen(["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir",
                               str(tmp_path)], stdout=subprocess.DEVNULL)
    try:
        def answers():
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
                return True
        until(answers, what="redis")
        got = box("run", "--allow-host", f"127.0.0.1:{port}:6379", "--", "redis-cli", "set", "a", "b",
                  sock=boxd_shared.sock)
        assert (got.stdout, got.returncode) == ("OK\n", 0), got
    finally:
        server.terminate()
        server.wait()
