# SPDX-License-Identifier: Apache-2.0
"""Sessions with a network come and go, and leave nothing on the host."""

import fcntl
import os
import socket
import struct
import termios
import textwrap
import time

import pytest

from netstage import INTERNET, Stage, descendants, has_programs, wait_until

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not has_programs("nft", "ip", "nsenter", "unshare"),
                                reason="needs root, nftables and iproute2")

# Fills the socket until the peer takes no more, in the background.
UPLOAD = textwrap.dedent("""
    import os, socket
    s = socket.create_connection(("8.8.8.8", 81))
    r, w = os.pipe()
    if os.fork() == 0:
        os.close(r)
        s.setblocking(False)
        while True:
            try:
                s.send(b"u" * 65536)
            except BlockingIOError:
                break
        os.write(w, b"x")
        s.setblocking(True)
        while True:
            s.send(b"u" * 65536)
    os.read(r, 1)
""")

# Reads for ever, in the background.
DOWNLOAD = textwrap.dedent("""
    import os, socket
    s = socket.create_connection(("8.8.8.8", 81))
    s.recv(1)
    if os.fork() == 0:
        while s.recv(65536):
            pass
""")


def at_most(n, seconds):
    """Fewer rounds, but not less than three, on an emulated processor."""
    end = time.monotonic() + seconds
    for i in range(n):
        if i >= 3 and time.monotonic() > end:
            return
        yield i


@pytest.fixture(scope="module")
def stage():
    s = Stage()
    yield s
    s.close()


@pytest.fixture
def boxd(stage):
    daemon = stage.boxd()
    yield daemon
    daemon.close()
    # The end of the daemon is the end of everything it made.
    assert stage.interfaces() == ["lo", "up0"]
    assert stage.addresses() == ["11.0.0.2/24", "127.0.0.1/8"]
    assert stage.rules() == ""


def box_interfaces(stage):
    return [i for i in stage.interfaces() if i.startswith("bx")]


def state_of(stage, boxd):
    return {
        "interfaces": stage.interfaces(),
        "addresses": stage.addresses(),
        "rules": stage.rules(),
        "processes": descendants(boxd.pid),
        "fds": [len(os.listdir(f"/proc/{pid}/fd")) for pid in (boxd.pid, boxd.priv_pid())],
    }


def wait_for_state(stage, boxd, wanted):
    """What was there, and no more: a descriptor that was just being closed then may be gone by now."""
    def settled():
        now = state_of(stage, boxd)
        fewer = all(a <= b for a, b in zip(now["fds"], wanted["fds"]))
        return fewer and {**now, "fds": None} == {**wanted, "fds": None}
    assert wait_until(settled), (state_of(stage, boxd), wanted)


def test_200_sessions_leave_nothing(stage, boxd):
    client = boxd.client()
    client.new("first", network="on")
    client.rm("first")
    assert wait_until(lambda: not box_interfaces(stage))
    before = state_of(stage, boxd)
    for batch in at_most(20, seconds=60):
        names = [f"s{batch}-{i}" for i in range(10)]
        for name in names:
            client.new(name, network="on")
        assert len(stage.interfaces()) >= 12
        for name in names:
            client.rm(name)
    wait_for_state(stage, boxd, before)


def test_sessions_deleted_in_the_middle_of_a_transfer_leave_nothing(stage, boxd):
    client = boxd.client()
    server = stage.net.listen(81)
    client.new("first", network="on")
    client.rm("first")
    assert wait_until(lambda: not box_interfaces(stage))
    before = state_of(stage, boxd)
    peers = []
    for i in at_most(20, seconds=60):
        client.new(f"t{i}", network="on")
        if i % 2 == 0:
            r = client.x(f"t{i}", "python3", "-c", UPLOAD)
            peers.append(server.accept()[0])
        else:
            r = client.sh(f"t{i}", f"python3 -c '{DOWNLOAD.strip()}' >/dev/null 2>&1 & echo started")
            peer = server.accept()[0]
            peer.setblocking(False)
            with pytest.raises(BlockingIOError):
                while True:
                    peer.send(b"d" * 65536)
            peers.append(peer)
        assert r["exit_code"] == 0, r
    for i in range(len(peers)):
        client.rm(f"t{i}")
    wait_for_state(stage, boxd, before)
    for peer in peers:
        peer.close()
    server.close()


def test_what_a_deleted_session_had_not_sent_is_not_sent(stage, boxd):
    client = boxd.client()
    server = stage.net.listen(81)
    client.new("up", network="on")
    assert client.x("up", "python3", "-c", UPLOAD)["exit_code"] == 0
    peer = server.accept()[0]
    client.rm("up")
    peer.settimeout(1.5)
    arrived = struct.unpack("i", fcntl.ioctl(peer, termios.FIONREAD, b"\0" * 4))[0]
    assert arrived > 0
    # Once that is read there is room for more, and the kernel of the sender is told so.
    with pytest.raises(TimeoutError):
        while arrived >= 0:
            arrived -= len(peer.recv(1 << 20))
    assert wait_until(lambda: not box_interfaces(stage))
    peer.close()
    server.close()


def test_late_answers_to_a_deleted_session_go_nowhere(stage, boxd):
    client = boxd.client()
    server = stage.net.listen(9, socket.SOCK_DGRAM, INTERNET[0])
    client.new("late", network="on")
    send = f"import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'ask', ('{INTERNET[0]}', 9))"
    assert client.x("late", "python3", "-c", send)["exit_code"] == 0
    _, peer = server.recvfrom(16)
    stage.net.run("nft", "table ip t { chain c { type filter hook prerouting priority raw; "
                         "ip daddr 198.18.0.0/15 counter; }; }")
    try:
        client.rm("late")
        assert wait_until(lambda: not box_interfaces(stage))
        for _ in range(10):
            server.sendto(b"answer", peer)
        # Not back to where they came from, with an address that is nobody's out there.
        assert "packets 0 " in stage.net.run("nft", "list", "ruleset")
    finally:
        stage.net.run("nft", "delete", "table", "ip", "t")
    server.close()


def test_an_interface_that_lingers_is_no_obstacle(stage, boxd):
    client = boxd.client()
    client.new("one", network="on")
    client.rm("one")
    assert wait_until(lambda: not box_interfaces(stage))
    # The next lease, in the way: as the interface of a session that has just died would be.
    name = f"bx{boxd.tag()[-5:]}_2"
    stage.host.ip(f"link add {name} type veth peer name peer0\n")
    server = stage.net.listen(80)
    client.new("two", network="on")
    r = client.x("two", "python3", "-c", f"import socket; socket.create_connection(('{INTERNET[0]}', 80))")
    assert r["exit_code"] == 0, r
    client.rm("two")
    # By its name it is ours, and nobody has it: it goes.
    assert wait_until(lambda: not box_interfaces(stage))
    server.close()


def test_a_session_that_dies_by_itself_lets_its_network_go(stage, boxd):
    client = boxd.client()
    client.new("first", network="on")
    client.rm("first")
    assert wait_until(lambda: not box_interfaces(stage))
    before = state_of(stage, boxd)
    client.new("dies", network="on")
    os.kill(client.receipt("dies")["host_pid"], 9)
    assert wait_until(lambda: not box_interfaces(stage))
    wait_for_state(stage, boxd, before)


def test_a_killed_helper_leaves_nothing_that_the_next_start_does_not_remove(stage):
    daemon = stage.boxd()
    try:
        client = daemon.client()
        for i in range(3):
            client.new(f"k{i}", network="on")
        os.kill(daemon.priv_pid(), 9)
        daemon.process.wait(60)
        daemon.start()
        assert stage.interfaces() == ["lo", "up0"]
        assert stage.rules() == ""
        assert stage.addresses() == ["11.0.0.2/24", "127.0.0.1/8"]
    finally:
        daemon.close()


def test_check_D10_names_are_resolved_inside_and_the_hosts_domains_are_not_told(stage, boxd):
    client = boxd.client()
    client.new("dns", network="on")
    lookup = "import socket; print(socket.gethostbyname('www.example.com'))"
    r = client.x("dns", "python3", "-c", lookup)
    assert r["stdout"] == INTERNET[1] + "\n", r
    told = [line.split() for line in client.sh("dns", "cat /etc/resolv.conf")["stdout"].splitlines()]
    assert told[0] == ["nameserver", "127.0.0.53"]
    assert {line[0] for line in told} <= {"nameserver", "options"}
    client.rm("dns")


def test_changes_to_the_host_are_told_once(stage, boxd):
    client = boxd.client()
    stage.host.run("sh", "-c", "echo 0 >/proc/sys/net/ipv4/ip_forward")
    row = next(c for c in client.doctor()["checks"] if c["id"] == "network")
    assert row["status"] == "ok"
    assert "turns on net.ipv4.ip_forward" in row["detail"]
    stage.host.run("nft", "table ip filter { chain FORWARD { type filter hook forward priority 0; policy drop; }; }")
    try:
        for i in range(2):
            client.new(f"n{i}", network="on")
        assert boxd.log().count("turned on net.ipv4.ip_forward") == 1
        assert boxd.log().count(f"marked box_{boxd.tag()[-5:]}") == 1
        row = next(c for c in client.doctor()["checks"] if c["id"] == "network")
        assert "ip_forward" not in row["detail"]
    finally:
        boxd.stop()
        stage.host.run("nft", "delete", "table", "ip", "filter")
