# SPDX-License-Identifier: Apache-2.0
"""Ways round the rules of egress: other spellings of an address, IPv6, and names that lead inside. Everything here
happens in network namespaces of the test's own; the addresses are stand-ins."""

import json
import os
import textwrap

import pytest

from netstage import INTERNET, PRIVATE, Stage, has_programs

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not has_programs("nft", "ip", "nsenter", "unshare"),
                                reason="needs root, nftables and iproute2")

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




def test_check_D04_private_ipv6_is_unreachable(client):
    for place, (end, _) in connect(client, [("fd00:ec2::254", 80), ("fe80::1", 80), ("2001:4860:4860::8888", 80),
                                            ("64:ff9b::a9fe:a9fe", 80)]).items():
        assert end in ("ENETUNREACH", "EHOSTUNREACH", "EADDRNOTAVAIL", "EINVAL"), (place, end)


def test_check_D06_mapped_and_odd_spellings_of_an_address_gain_nothing(stage, client):
    server = stage.net.listen(80)
    try:
        odd = [("::ffff:169.254.169.254", 80), ("::ffff:10.0.0.1", 80), ("2852039166", 80), ("0251.0376.0251.0376", 80),
               ("10.1", 80), ("0", 80)]
        for place, (end, _) in connect(client, odd).items():
            assert end != "connected", place
    finally:
        server.close()


def test_check_D06_a_name_that_leads_inside_is_refused(stage, client):
    stage.resolver.address = PRIVATE[0]
    try:
        r = client.x("on", "python3", "-c", "import socket; print(socket.gethostbyname('rebind.example.com'))")
        assert r["exit_code"] != 0 and PRIVATE[0] not in r["stdout"], r
    finally:
        stage.resolver.address = INTERNET[1]
    r = client.x("on", "python3", "-c", "import socket; print(socket.gethostbyname('www.example.com'))")
    assert r["stdout"].strip() == INTERNET[1], r
