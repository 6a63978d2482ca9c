# SPDX-License-Identifier: Apache-2.0
"""What a session with a network can reach: the public internet, and nothing else. Everything here happens in network
namespaces of the test's own; the addresses are stand-ins."""

import json
import os
import socket
import textwrap

import pytest

from netstage import HOST, INTERNET, PRIVATE, Stage, has_programs

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not has_programs("nft", "ip", "nsenter", "unshare"),
                                reason="needs root, nftables and iproute2")

# Of other clouds and ranges than the stage has by itself.
MORE = ("100.64.0.1", "172.16.0.1", "192.0.0.192", "168.63.129.16", "198.18.0.99", "224.0.0.1", "240.0.0.1")

# Tries each (address, port) by TCP and prints how it ended and how long that took.
CONNECT = textwrap.dedent("""
    import errno, json, socket, sys, time
    out = []
    for address, port in json.loads(sys.argv[1]):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        start = time.monotonic()
        try:
            s = socket.socket(family, socket.SOCK_STREAM)
            s.settimeout(20)
            s.connect((address, port))
            end = "connected"
        except OSError as e:
            end = "timeout" if isinstance(e, TimeoutError) else errno.errorcode.get(e.errno, str(e))
        out.append([address, port, end, time.monotonic() - start])
    print(json.dumps(out))
""")


@pytest.fixture(scope="module")
def stage():
    s = Stage()
    s.net.ip("".join(f"addr add {a}/32 dev lo\n" for a in MORE if not a.startswith(("224.", "240."))))
    yield s
    s.close()


@pytest.fixture(scope="module")
def boxd(stage):
    daemon = stage.boxd()
    yield daemon
    daemon.close()


@pytest.fixture(scope="module")
def client(boxd):
    c = boxd.client()
    c.new("on", network="on")
    yield c
    c.rm("on")


def connect(client, places, sid="on"):
    r = client.x(sid, "python3", "-c", CONNECT, json.dumps([list(p) for p in places]), timeout_sec=300)
    assert r["exit_code"] == 0, r
    return {(a, p): (end, seconds) for a, p, end, seconds in json.loads(r["stdout"])}


def test_D05_the_internet_is_there(stage, client):
    server = stage.net.listen(80)
    try:
        assert connect(client, [(INTERNET[0], 80)])[(INTERNET[0], 80)][0] == "connected"
    finally:
        server.close()


def test_D04_metadata_and_private_ranges_are_refused_at_once(stage, client):
    # The stand-ins listen, so that only the rules can be what refuses.
    server = stage.net.listen(80)
    try:
        for (address, _), (end, seconds) in connect(client, [(a, 80) for a in (*PRIVATE, *MORE)]).items():
            assert end in ("ECONNREFUSED", "EHOSTUNREACH", "ENETUNREACH", "EACCES", "EINVAL"), (address, end)
            assert seconds < 10, (address, seconds)  # refused, not left to a timeout
    finally:
        server.close()


def test_D04_private_ipv6_is_unreachable(client):
    for place, (end, _) in connect(client, [("fd00:ec2::254", 80), ("fe80::1", 80), ("2001:4860:4860::8888", 80),
                                            ("64:ff9b::a9fe:a9fe", 80)]).items():
        assert end in ("ENETUNREACH", "EHOSTUNREACH", "EADDRNOTAVAIL", "EINVAL"), (place, end)


def test_D06_mapped_and_odd_spellings_of_an_address_gain_nothing(stage, client):
    server = stage.net.listen(80)
    try:
        odd = [("::ffff:169.254.169.254", 80), ("::ffff:10.0.0.1", 80), ("2852039166", 80), ("0251.0376.0251.0376", 80),
               ("10.1", 80), ("0", 80)]
        for place, (end, _) in connect(client, odd).items():
            assert end != "connected", place
    finally:
        server.close()


def test_D06_a_name_that_leads_inside_is_refused(stage, client):
    stage.resolver.address = PRIVATE[0]
    try:
        r = client.x("on", "python3", "-c", "import socket; print(socket.gethostbyname('rebind.example.com'))")
        assert r["exit_code"] != 0 and PRIVATE[0] not in r["stdout"], r
    finally:
        stage.resolver.address = INTERNET[1]
    r = client.x("on", "python3", "-c", "import socket; print(socket.gethostbyname('www.example.com'))")
    assert r["stdout"].strip() == INTERNET[1], r


def test_D03_the_host_and_other_sessions_are_out_of_reach(stage, boxd, client):
    host = stage.host.listen(5410)
    client.new("other", network="on")
    try:
        listen = "import socket; s = socket.socket(); s.bind(('0.0.0.0', 8080)); s.listen(); s.accept()"
        assert client.sh("other", f'python3 -c "{listen}" >/dev/null 2>&1 & echo started')["exit_code"] == 0
        own = client.sh("other", "python3 -c \"import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); "
                                 "s.connect(('8.8.8.8', 80)); print(s.getsockname()[0])\"")["stdout"].strip()
        gateway = client.sh("on", "python3 -c \"import struct,socket; print([socket.inet_ntoa(struct.pack('<L', "
                                  "int(l.split()[2], 16))) for l in open('/proc/net/route').readlines()[1:] "
                                  "if l.split()[1] == '00000000'][0])\"")["stdout"].strip()
        assert own and gateway
        places = [(HOST, 5410), (gateway, 5410), ("127.0.0.1", 5410), (own, 8080)]
        for place, (end, _) in connect(client, places).items():
            assert end in ("ECONNREFUSED", "EHOSTUNREACH", "ENETUNREACH", "timeout"), (place, end)
        host.settimeout(0.2)
        with pytest.raises(TimeoutError):
            host.accept()
    finally:
        host.close()
        client.rm("other")


def test_D09_nobody_outside_reaches_a_listener_inside(stage, client):
    listen = "import socket; s = socket.socket(); s.bind(('0.0.0.0', 9090)); s.listen(); s.accept()"
    assert client.sh("on", f'python3 -c "{listen}" >/dev/null 2>&1 & echo started')["exit_code"] == 0
    own = client.sh("on", "python3 -c \"import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); "
                          "s.connect(('8.8.8.8', 80)); print(s.getsockname()[0])\"")["stdout"].strip()
    stage.net.ip(f"route add {own}/32 via {HOST}\n")  # somebody on the host's network who knows the way
    try:
        with stage.net.inside():
            s = socket.socket()
        s.settimeout(3)
        with pytest.raises(OSError):
            s.connect((own, 9090))
        s.close()
    finally:
        stage.net.ip(f"route del {own}/32 via {HOST}\n")


def test_D07_addresses_and_routes_cannot_be_changed_from_inside(client):
    r = client.sh("on", "ip addr add 10.9.9.9/24 dev eth0; ip link set eth0 down; ip route add default dev lo; "
                        "python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)'; true")
    assert r["stderr"].count("not permitted") + r["stderr"].count("denied") >= 3, r["stderr"]
    assert "Address family not supported" in r["stderr"] or "PermissionError" in r["stderr"], r["stderr"]


def test_D01_network_off_has_only_loopback(stage, client):
    client.new("off")
    try:
        assert client.sh("off", "ls /sys/class/net 2>/dev/null; tail -n +3 /proc/net/dev | cut -d: -f1")["stdout"].split() == ["lo"]
        for place, (end, _) in connect(client, [("1.1.1.1", 80), (INTERNET[0], 80)], "off").items():
            assert end == "ENETUNREACH", (place, end)
    finally:
        client.rm("off")
