# SPDX-License-Identifier: Apache-2.0
"""Network "on" by a boxd that an ordinary user started."""

import os
import pathlib

import pytest

from boxlib import ApiError
from netstage import HOST, INTERNET, NEIGHBOUR, PRIVATE, Stage, descendants, has_programs, wait_until

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to build the stage"),
    pytest.mark.skipif(not pathlib.Path("/dev/net/tun").exists(), reason="no /dev/net/tun"),
    pytest.mark.skipif(not has_programs("nft", "ip", "nsenter", "unshare", "setpriv", "slirp4netns"),
                       reason="needs nftables, iproute2 and slirp4netns"),
]

CONNECT = """
import errno, socket, sys
for target in sys.argv[1:]:
    host, port = target.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
        print(target, "connected")
    except OSError as e:
        print(target, errno.errorcode.get(e.errno, e))
"""


@pytest.fixture(scope="module")
def stage():
    s = Stage()
    yield s
    s.close()


@pytest.fixture
def boxd(stage):
    daemon = stage.boxd_of_user()
    yield daemon
    daemon.close()


def connect(client, session_id, *targets):
    r = client.x(session_id, "python3", "-c", CONNECT, *targets)
    assert r["exit_code"] == 0, r
    return dict(line.split() for line in r["stdout"].splitlines())


def network_row(client):
    return next(c for c in client.doctor()["checks"] if c["id"] == "network")


def helpers(pid):
    return [d for d in descendants(pid) if b"slirp4netns" in d or b"pasta" in d]


def alive(pid):
    """False for a zombie, too: whoever inherits an orphan may be slow to reap it."""
    try:
        return "State:\tZ" not in pathlib.Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def alone(boxd):
    """No process but box-priv; a helper on its way out has no arguments any more."""
    return len(descendants(boxd.pid)) == 1


def test_check_D11_the_internet_is_reached_and_nothing_else(stage, boxd):
    client = boxd.client()
    web, mail = stage.net.listen(80), stage.net.listen(25)
    own = stage.host.listen(5411)
    client.new("s", network="on")
    reached = [f"{a}:80" for a in INTERNET]
    refused = [*(f"{a}:80" for a in PRIVATE), f"{INTERNET[0]}:25", f"{HOST}:5411", f"{NEIGHBOUR}:80", "127.0.0.1:5411", "10.0.2.2:5411"]
    wanted = {**dict.fromkeys(reached, "connected"), **dict.fromkeys(refused, "ECONNREFUSED")}
    assert connect(client, "s", *wanted) == wanted
    assert client.receipt("s")["network"] == "user-mode (slirp4netns), private ranges refused"
    r = client.x("s", "python3", "-c", "import socket; print(socket.gethostbyname('www.example.com'))")
    assert r["stdout"] == INTERNET[1] + "\n", r
    client.rm("s")
    for sock in (web, mail, own):
        sock.close()


def test_sessions_do_not_see_each_other(stage, boxd):
    client = boxd.client()
    for name in ("a", "b"):
        client.new(name, network="on")
    serve = "import os, socket; s = socket.create_server(('0.0.0.0', 8080)); os.fork() or s.accept()"
    assert client.x("a", "python3", "-c", serve)["exit_code"] == 0
    address = client.sh("a", "hostname -I")["stdout"].split()[0]
    assert connect(client, "a", f"{address}:8080") == {f"{address}:8080": "connected"}
    assert connect(client, "b", f"{address}:8080") == {f"{address}:8080": "ECONNREFUSED"}
    for name in ("a", "b"):
        client.rm(name)


def test_off_is_the_default(stage, boxd):
    client = boxd.client()
    client.new("off")
    assert client.receipt("off")["network"] == "none"
    assert connect(client, "off", f"{INTERNET[0]}:80") == {f"{INTERNET[0]}:80": "ENETUNREACH"}
    assert helpers(boxd.pid) == []
    client.rm("off")


def test_helpers_end_with_their_sessions(stage, boxd):
    client = boxd.client()

    def state():
        return [descendants(boxd.pid), *(len(os.listdir(f"/proc/{p}/fd")) for p in (boxd.pid, boxd.priv_pid()))]

    client.new("first", network="on")
    client.rm("first")
    assert wait_until(lambda: alone(boxd))
    before = state()
    for batch in range(4):
        names = [f"h{batch}-{i}" for i in range(5)]
        for name in names:
            client.new(name, network="on")
        assert len(helpers(boxd.pid)) >= 5
        for name in names:
            client.rm(name)
    assert wait_until(lambda: state() == before), (state(), before)


def test_helpers_end_with_box_priv(stage, boxd):
    client = boxd.client()
    for i in range(3):
        client.new(f"k{i}", network="on")
    pids = [int(p) for p in pathlib.Path(f"/proc/{boxd.priv_pid()}/task/{boxd.priv_pid()}/children").read_text().split()]
    running = [p for p in pids if b"slirp4netns" in pathlib.Path(f"/proc/{p}/cmdline").read_bytes()]
    assert len(running) == 3
    os.kill(boxd.priv_pid(), 9)
    boxd.process.wait(60)
    assert wait_until(lambda: not any(alive(p) for p in running))


def test_a_session_outlives_its_helper_without_a_network(stage, boxd):
    client = boxd.client()
    web = stage.net.listen(80)
    client.new("alone", network="on")
    children = pathlib.Path(f"/proc/{boxd.priv_pid()}/task/{boxd.priv_pid()}/children").read_text().split()
    helper = next(c for c in children if b"slirp4netns" in pathlib.Path(f"/proc/{c}/cmdline").read_bytes())
    os.kill(int(helper), 9)
    assert wait_until(lambda: not pathlib.Path(f"/proc/{helper}").exists())  # reaped, too
    assert connect(client, "alone", f"{INTERNET[0]}:80") != {f"{INTERNET[0]}:80": "connected"}
    client.rm("alone")
    web.close()


def test_doctor_says_that_it_works(stage, boxd):
    row = network_row(boxd.client())
    assert (row["status"], row["remedy"]) == ("ok", None)
    assert "user-mode" in row["detail"]
    assert wait_until(lambda: alone(boxd))


def test_a_device_that_is_not_for_users_is_named(stage, boxd):
    client = boxd.client()
    stage.host.run("chmod", "600", "/mnt/tun")
    try:
        row = network_row(client)
        assert row["status"] == "missing"
        assert "/dev/net/tun" in row["detail"] and "chmod 666 /dev/net/tun" in row["remedy"]
        with pytest.raises(ApiError, match="/dev/net/tun"):
            client.new("none", network="on")
        client.new("off")
        client.rm("off")
    finally:
        stage.host.run("chmod", "666", "/mnt/tun")


@pytest.mark.parametrize("hidden", [["slirp4netns", "pasta", "pasta.avx2"], ["nft"]])
def test_a_program_that_is_not_installed_is_named(stage, hidden):
    places = [p for n in hidden for d in ("/usr/bin", "/usr/sbin") if (p := pathlib.Path(d, n)).exists()]
    places = sorted({p.resolve() for p in places})
    for place in places:
        stage.host.run("mount", "--bind", "/dev/null", str(place))
    daemon = stage.boxd_of_user()
    try:
        row = network_row(daemon.client())
        assert row["status"] == "missing"
        assert "apt-get install " + ("slirp4netns" if "nft" not in hidden else "nftables") in row["detail"]
        with pytest.raises(ApiError, match="apt-get install"):
            daemon.client().new("none", network="on")
    finally:
        daemon.close()
        for place in places:
            stage.host.run("umount", str(place))


@pytest.mark.skipif(not has_programs("pasta"), reason="needs pasta")
def test_pasta_does_it_as_well(stage):
    stage.host.run("mount", "--bind", "/dev/null", "/usr/bin/slirp4netns")
    daemon = stage.boxd_of_user()
    web = stage.net.listen(80)
    try:
        client = daemon.client()
        client.new("p", network="on")
        assert client.receipt("p")["network"] == "user-mode (pasta), private ranges refused"
        wanted = {f"{INTERNET[0]}:80": "connected", f"{PRIVATE[0]}:80": "ECONNREFUSED"}
        assert connect(client, "p", *wanted) == wanted
        client.rm("p")
        assert wait_until(lambda: alone(daemon))
    finally:
        daemon.close()
        stage.host.run("umount", "/usr/bin/slirp4netns")
        web.close()
