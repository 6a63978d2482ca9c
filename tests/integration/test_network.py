# SPDX-License-Identifier: Apache-2.0
"""The network of a session: checks D01 to D05, D07, D09 and D12 of the catalogue.

boxd runs in a network namespace of the test's own, whose only way out leads to a second one that stands for the
internet and holds stand-ins for the addresses that matter. The machine's own network is never touched, and no
address outside is contacted.
"""

import ctypes
import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import threading

import pytest
from boxlib import ApiError, Boxd
from hostlib import LIBC, SCALE, Namespace, adopt_orphans, alive, assert_no_leak, need, reap_orphans, until

UPLINK, INTERNET = "11.0.0.2", "11.0.0.1"
NEIGHBOUR = "11.0.0.9"  # on the same wire as the host
PUBLIC = ["8.8.8.8", "1.1.1.1", "93.184.216.34"]
INTERNAL = ["169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "192.0.0.192", "10.0.0.1",
            "10.255.255.1", "172.16.0.1", "172.31.255.1", "192.168.1.1", "100.64.0.1", "100.127.255.1",
            "192.0.2.1", "198.51.100.1", "203.0.113.1", "192.88.99.1"]
PUBLIC6, INTERNAL6 = "2606:4700::1111", ["fd00:ec2::254", "fc00::1"]
BRIDGE = "172.17.0.1"  # Docker's, on the host itself
DOWNLOADS = int(os.environ.get("BOX_DOWNLOADS", "25" if SCALE == 1 else "4"))

# Runs inside: connects to each [family, address, port] and says what came of it.
PROBE = r"""
import errno, json, socket, sys, time
out = []
for family, address, port, kind in json.loads(sys.argv[1]):
    s = socket.socket(getattr(socket, family), getattr(socket, kind))
    s.settimeout(5)
    begin = time.monotonic()
    try:
        s.connect((address, port))
        if kind == "SOCK_DGRAM":
            s.send(b"x"); s.recv(1)
        result = s.recv(100).decode() if kind == "SOCK_STREAM" else "answered"
    except TimeoutError:
        result = "timeout"
    except OSError as e:
        result = errno.errorcode.get(e.errno, str(e.errno))
    out.append([address, port, result, time.monotonic() - begin])
    s.close()
print(json.dumps(out))
"""


class World:
    def __init__(self):
        self.servers = []
        self.host, self.inet = Namespace(), Namespace()
        self.host.ip("link", "set", "lo", "up")
        self.inet.ip("link", "set", "lo", "up")
        self.host.run("ip", "link", "add", "up0", "type", "veth", "peer", "name", "inet0", "netns",
                      self.inet.path.split("/")[2])
        self.host.ip("addr", "add", UPLINK + "/24", "dev", "up0")
        self.host.ip("link", "set", "up0", "up")
        self.inet.ip("addr", "add", INTERNET + "/24", "dev", "inet0")
        self.inet.ip("link", "set", "inet0", "up")
        self.host.ip("route", "add", "default", "via", INTERNET)
        self.inet.ip("addr", "add", NEIGHBOUR + "/24", "dev", "inet0")
        for address in PUBLIC + INTERNAL:
            self.inet.ip("addr", "add", address + "/32", "dev", "lo")
        self.host.ip("link", "add", "docker0", "type", "bridge")
        self.host.ip("addr", "add", BRIDGE + "/16", "dev", "docker0")
        self.host.ip("link", "set", "docker0", "up")
        self.six = pathlib.Path("/proc/sys/net/ipv6").exists()
        if self.six:
            for ns, dev, own in ((self.host, "up0", "2a00:1450::2"), (self.inet, "inet0", "2a00:1450::1")):
                ns.ip("-6", "addr", "add", own + "/64", "dev", dev, "nodad")
            self.host.ip("-6", "route", "add", "default", "via", "2a00:1450::1")
            for address in (PUBLIC6, *INTERNAL6):
                self.inet.ip("-6", "addr", "add", address + "/128", "dev", "lo", "nodad")
        self.serve(self.inet, 80, "internet")
        self.serve(self.inet, 9999, "flood", flood=True)
        self.serve(self.host, 7777, "host")
        self.token = tempfile.NamedTemporaryFile("w", prefix="box-token-")
        self.token.write("t" * 40)
        self.token.flush()
        self.daemon = Boxd("--host", "0.0.0.0", "--ws-control-port", "5410", env={"BOX_TOKEN_FILE": self.token.name},
                           prefix=self.host.enter)
        self.api = self.daemon.client(timeout=120 * SCALE)
        self.net_tag = self.daemon.tag()[-5:]

    def serve(self, ns, port, word, flood=False):
        with ns.inside():
            s = socket.socket(socket.AF_INET6 if self.six_here() else socket.AF_INET)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(("::" if self.six_here() else "0.0.0.0", port))
            s.listen(256)
        self.servers.append(s)

        def answer(conn, peer):
            try:
                conn.sendall(f"{word} {peer}".encode())
                while flood:
                    conn.sendall(bytes(65536))
            except OSError:
                pass
            conn.close()

        def loop():
            while True:
                try:
                    conn, address = s.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(conn, address[0]), daemon=True).start()

        threading.Thread(target=loop, daemon=True).start()

    @staticmethod
    def six_here():
        return pathlib.Path("/proc/sys/net/ipv6").exists()

    def new(self, name, **spec):
        return self.api.new(name, network="on", **spec)

    def probe(self, session, targets):
        full = [(t[2] if len(t) > 2 else "AF_INET", t[0], t[1], t[3] if len(t) > 3 else "SOCK_STREAM") for t in targets]
        r = self.api.x(session, "python3", "-c", PROBE, json.dumps(full), timeout_sec=300)
        assert r["exit_code"] == 0, r
        return {(a, p): (result, took) for a, p, result, took in json.loads(r["stdout"])}

    def address_of(self, session):
        r = self.api.x(session, "python3", "-c",
                       "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); "
                       "s.connect(('8.8.8.8', 9)); print(s.getsockname()[0])")
        return r["stdout"].strip()

    def links(self):
        return [line.split(":")[1].split("@")[0].strip() for line in self.host.ip("-o", "link").splitlines()]

    def objects(self):
        """What sessions of this instance have on the host's side."""
        tables = self.host.run("nft", "list", "tables").stdout
        return {"links": [n for n in self.links() if n.startswith(f"bx{self.net_tag}_")],
                "table": f"box_{self.net_tag}" in tables,
                "addresses": [a for a in self.host.ip("-o", "-4", "addr", "show", "dev", "lo").split()
                              if a.startswith("198.1")]}

    def close(self):
        self.daemon.close()
        self.token.close()
        for s in self.servers:
            s.close()
        self.host.close()
        self.inet.close()


@pytest.fixture(scope="module")
def world():
    need("unshare", "nsenter", "ip", "nft", "cat")
    adopt_orphans()
    w = World()
    yield w
    w.close()
    reap_orphans()


@pytest.fixture(autouse=True)
def no_session_survives(request):
    yield
    if "world" in request.fixturenames:
        api = request.getfixturevalue("world").api
        for s in api.ps():
            api.rm(s["session_id"])


def reachable(ns, address, port, timeout=3.0):
    with ns.inside():
        s = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    s.settimeout(timeout)
    try:
        s.connect((address, port))
        return True
    except OSError:
        return False
    finally:
        s.close()


def test_the_stand_ins_are_there(world):
    """Else every refusal below would prove nothing."""
    for address in PUBLIC + INTERNAL + [INTERNET, NEIGHBOUR]:
        assert reachable(world.host, address, 80), address
    for address in (UPLINK, "127.0.0.1", BRIDGE):
        assert reachable(world.host, address, 7777) and reachable(world.host, address, 5410), address
    if world.six:
        for address in (PUBLIC6, *INTERNAL6):
            assert reachable(world.host, address, 80), address


# Off.


def test_check_D01_off_means_loopback_and_nothing_else(world):
    world.api.new("off")
    r = world.api.sh("off", "cat /proc/net/dev; cat /proc/net/route; cat /proc/net/if_inet6 /proc/net/ipv6_route")
    devices = [line.split(":")[0].strip() for line in r["stdout"].splitlines() if ":" in line and "|" not in line]
    assert devices == ["lo"], r["stdout"]
    found = world.probe("off", [(a, 80) for a in PUBLIC + INTERNAL] + [("1.1.1.1", 53, "AF_INET", "SOCK_DGRAM")] +
                        [(a, 80, "AF_INET6") for a in (PUBLIC6, *INTERNAL6)])
    for target, (result, took) in found.items():
        assert result in ("ENETUNREACH", "EADDRNOTAVAIL"), (target, result)
        assert took < 0.5 * SCALE, (target, took)


def test_check_D01_its_own_loopback_works(world):
    world.api.new("lo")
    script = ("import socket; s = socket.create_server(('127.0.0.1', 5000)); c = socket.create_connection(('127.0.0.1',"
              " 5000)); print(s.accept()[1][0])")
    assert world.api.x("lo", "python3", "-c", script)["stdout"] == "127.0.0.1\n"


class HostObjects:
    """Things of the host that have nothing to do with addresses."""

    def __init__(self, ns):
        self.key, self.name = 0x60B0 + os.getpid(), f"box-test-{os.getpid()}"
        with ns.inside():
            self.abstract = socket.socket(socket.AF_UNIX)
        self.abstract.bind("\0" + self.name)
        self.abstract.listen(1)
        self.shm = LIBC.shmget(self.key, 4096, 0o1666)
        self.sem = LIBC.semget(self.key, 1, 0o1666)
        self.msg = LIBC.msgget(self.key, 0o1666)
        LIBC.mq_open.restype = ctypes.c_int
        self.mq = LIBC.mq_open(f"/{self.name}".encode(), os.O_CREAT | os.O_RDWR, 0o666, None)
        assert min(self.shm, self.sem, self.msg, self.mq) >= 0, os.strerror(ctypes.get_errno())

    def close(self):
        self.abstract.close()
        LIBC.shmctl(self.shm, 0, None)
        LIBC.semctl(self.sem, 0, 0)
        LIBC.msgctl(self.msg, 0, None)
        os.close(self.mq)
        LIBC.mq_unlink(f"/{self.name}".encode())


LOOK = r"""
import ctypes, errno, json, os, socket, sys
key, name = int(sys.argv[1]), sys.argv[2]
libc = ctypes.CDLL(None, use_errno=True)
def call(f, *args):
    ctypes.set_errno(0)
    return "found" if f(*args) >= 0 else errno.errorcode[ctypes.get_errno()]
s = socket.socket(socket.AF_UNIX)
try:
    s.connect("\0" + name); abstract = "found"
except OSError as e:
    abstract = errno.errorcode[e.errno]
print(json.dumps({"abstract": abstract, "shm": call(libc.shmget, key, 0, 0), "sem": call(libc.semget, key, 0, 0),
                  "msg": call(libc.msgget, key, 0), "mq": call(libc.mq_open, f"/{name}".encode(), os.O_RDWR),
                  "unix": open("/proc/net/unix").read().count(name)}))
"""


@pytest.mark.parametrize("network", ["off", "on"])
def test_check_D02_check_D03_nothing_of_the_host_is_there(world, network):
    objects = HostObjects(world.host)
    try:
        world.api.new("look", network=network)
        r = world.api.x("look", "python3", "-c", LOOK, str(objects.key), objects.name)
        found = json.loads(r["stdout"])
        assert found.pop("unix") == 0
        for kind, result in found.items():
            assert result in ("ENOENT", "ECONNREFUSED", "EPERM", "EACCES", "ENOSYS"), (kind, result)
        result = world.probe("look", [("127.0.0.1", 7777), ("127.0.0.1", 5410), ("::1", 7777, "AF_INET6")])
        assert {r for r, _ in result.values()} <= {"ECONNREFUSED", "EADDRNOTAVAIL", "ENETUNREACH"}, result
    finally:
        objects.close()


# On.


def refused(found):
    for target, (result, took) in found.items():
        assert result in ("ECONNREFUSED", "EHOSTUNREACH", "ENETUNREACH", "EACCES", "EPERM", "EINVAL", "EADDRNOTAVAIL"), \
            (target, result)
        assert took < 1.0 * SCALE, f"{target} was refused after {took:.1f} s only"


@pytest.mark.vm
def test_check_D05_the_internet_is_reachable_and_sees_only_the_host(world):
    world.new("on")
    for target, (result, _) in world.probe("on", [(a, 80) for a in PUBLIC]).items():
        assert result.split()[0] == "internet" and result.split()[1].endswith(UPLINK), (target, result)


def test_check_D03_the_host_is_refused_on_every_address(world):
    world.new("on")
    own = world.address_of("on")
    gateway = ".".join(own.split(".")[:3] + [str(int(own.split(".")[3]) - 1)])
    resolver = world.objects()["addresses"][0].split("/")[0]
    targets = [(a, p) for a in (UPLINK, gateway, BRIDGE, resolver) for p in (5410, 7777, 22)]
    assert gateway in world.host.ip("-o", "-4", "addr")
    assert reachable(world.host, gateway, 7777) and reachable(world.host, resolver, 7777)
    refused(world.probe("on", targets))


def test_check_D04_neighbours_of_the_host_are_refused(world):
    """Whatever their addresses; also of networks that the host comes to stand in later."""
    late = ["12.0.0.1", "12.0.0.9"]
    world.new("on")
    refused(world.probe("on", [(a, p) for a in (INTERNET, NEIGHBOUR) for p in (80, 9999)]))
    for address in late:
        world.inet.ip("addr", "add", address + "/32", "dev", "lo")
    world.inet.ip("route", "add", "12.0.0.2/32", "dev", "inet0")

    def answers():
        return [result.split()[0] for result, _took in world.probe("on", [(a, 80) for a in late]).values()]

    assert answers() == ["internet"] * 2
    world.host.ip("addr", "add", "12.0.0.2/24", "dev", "up0")
    until(lambda: answers() == ["ECONNREFUSED"] * 2, what="rules with the new network")
    assert reachable(world.host, late[0], 80)
    world.host.ip("addr", "del", "12.0.0.2/24", "dev", "up0")
    until(lambda: answers() == ["internet"] * 2, what="rules without it")
    for address in late:
        world.inet.ip("addr", "del", address + "/32", "dev", "lo")
    world.inet.ip("route", "del", "12.0.0.2/32", "dev", "inet0")


def test_check_D03_other_sessions_are_refused(world):
    world.new("one")
    world.new("two")
    address = world.address_of("two")
    script = "import socket; s = socket.create_server(('0.0.0.0', 4444)); print(s.accept()[1])"
    t = threading.Thread(target=lambda: world.daemon.client(600).x("two", "python3", "-c", script, timeout_sec=300))
    t.daemon = True
    t.start()
    until(lambda: "115C" in world.api.sh("two", "cat /proc/net/tcp")["stdout"], what="the listener")
    refused(world.probe("one", [(address, 4444), (address, 80)]))


@pytest.mark.vm
def test_check_D04_internal_addresses_are_refused_at_once(world):
    world.new("on")
    targets = [(a, p) for a in INTERNAL for p in (80, 443)]
    refused(world.probe("on", targets))
    refused(world.probe("on", [(a, 80, "AF_INET6") for a in (*INTERNAL6, "fe80::1", "::ffff:169.254.169.254",
                                                            "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1")]))


def test_check_D04_other_spellings_are_the_same_addresses(world):
    world.new("on")
    refused(world.probe("on", [(a, 80) for a in ("2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518",
                                                "0", "127.1", "2130706433")]))


def test_check_D04_mail_is_refused(world):
    world.new("on")
    refused(world.probe("on", [("8.8.8.8", p) for p in (25, 465, 587)]))


CHANGES = r"""
import errno, fcntl, json, socket, struct
out = {}
def attempt(name, f):
    try:
        f(); out[name] = "possible"
    except OSError as e:
        out[name] = errno.errorcode.get(e.errno, str(e.errno))
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
def ifreq(request, tail):
    return lambda: fcntl.ioctl(udp, request, struct.pack("16s24s", b"eth0", tail))
addr = struct.pack("HH4s", socket.AF_INET, 0, socket.inet_aton("8.8.4.4"))
attempt("address", ifreq(0x8916, addr))
attempt("netmask", ifreq(0x891C, addr))
attempt("hardware address", ifreq(0x8924, struct.pack("H6s", 1, b"\x02\0\0\0\0\1")))
attempt("down", ifreq(0x8914, struct.pack("H", 0)))
attempt("promiscuous", ifreq(0x8914, struct.pack("H", 0x143)))
attempt("route", lambda: fcntl.ioctl(udp, 0x890B, struct.pack("120s", b"")))
attempt("arp entry", lambda: fcntl.ioctl(udp, 0x8955, struct.pack("68s", addr)))
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
attempt("raw6", lambda: socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6))
attempt("packet", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3))
attempt("foreign source", lambda: udp.bind(("8.8.4.4", 0)))
attempt("transparent", lambda: udp.setsockopt(socket.SOL_IP, 19, 1))
attempt("mark", lambda: udp.setsockopt(socket.SOL_SOCKET, 36, 1))
def netlink(kind, body):
    def send():
        s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
        s.send(struct.pack("IHHII", 16 + len(body), kind, 5, 1, 0) + body)
        reply = s.recv(4096)
        code = struct.unpack("i", reply[16:20])[0]
        if code < 0:
            raise OSError(-code, "netlink")
    return send
attempt("new link", netlink(16, struct.pack("BxHiII", 0, 0, 0, 0, 0)))
attempt("new address", netlink(20, struct.pack("BBBBI", 2, 32, 0, 0, 1) + struct.pack("HH4s", 8, 2, b"\x08\x08\x04\x04")))
attempt("new route", netlink(24, struct.pack("BBBBBBBBI", 2, 0, 0, 0, 254, 3, 0, 1, 0)))
attempt("neighbour", netlink(28, struct.pack("BxxxiHBB", 2, 1, 2, 0, 1)))
attempt("rule", netlink(32, struct.pack("BBBBBBBBI", 2, 0, 0, 0, 254, 0, 0, 1, 0)))
print(json.dumps(out))
"""


def test_check_D07_nothing_about_the_network_can_be_changed(world):
    world.new("on")
    before = world.api.sh("on", "cat /proc/net/route /proc/net/dev | grep -v ' [0-9]* *[0-9]* .*eth0'; "
                                "cat /sys/class/net/eth0/address 2>&1")["stdout"]
    r = world.api.x("on", "python3", "-c", CHANGES)
    found = json.loads(r["stdout"])
    assert len(found) == 18
    for what, result in found.items():
        assert result in ("EPERM", "EACCES", "EAFNOSUPPORT", "EADDRNOTAVAIL", "ENOSYS", "EPROTONOSUPPORT"), (what, result)
    after = world.api.sh("on", "cat /proc/net/route /proc/net/dev | grep -v ' [0-9]* *[0-9]* .*eth0'; "
                               "cat /sys/class/net/eth0/address 2>&1")["stdout"]
    assert [line.split()[:3] for line in after.splitlines()] == [line.split()[:3] for line in before.splitlines()]
    assert world.probe("on", [("8.8.8.8", 80)])[("8.8.8.8", 80)][0].startswith("internet")


def test_check_D09_what_listens_inside_is_not_reachable_from_outside(world):
    world.new("server")
    address = world.address_of("server")
    script = ("import socket; s = socket.create_server(('0.0.0.0', 4444)); c = socket.create_connection(('127.0.0.1', "
              "4444)); print('listening', flush=True); s.accept(); s.accept()")
    t = threading.Thread(target=lambda: world.daemon.client(600).x("server", "python3", "-c", script, timeout_sec=300))
    t.daemon = True
    t.start()
    until(lambda: "115C" in world.api.sh("server", "cat /proc/net/tcp")["stdout"], what="the listener")
    assert not reachable(world.inet, UPLINK, 4444, timeout=1)
    world.inet.ip("route", "add", address + "/32", "via", UPLINK)  # a neighbour who knows how we work
    try:
        assert not reachable(world.inet, address, 4444, timeout=1)
    finally:
        world.inet.ip("route", "del", address + "/32")
    world.new("client")
    refused(world.probe("client", [(address, 4444)]))


def test_check_D12_deleted_in_the_middle_of_a_download(world):
    api = world.api
    world.new("warm-up")
    api.rm("warm-up")
    script = "import socket; s = socket.create_connection(('8.8.8.8', 9999)); n = 0\nwhile True: n += len(s.recv(1 << 16))"

    def download(name):
        try:
            world.daemon.client(600).x(name, "python3", "-c", script, timeout_sec=300)
        except (ApiError, OSError):
            pass

    for i in range(DOWNLOADS):
        name = f"load{i}"
        world.new(name)
        t = threading.Thread(target=download, args=(name,), daemon=True)
        t.start()
        until(lambda n=name: ":270F " in api.sh(n, "cat /proc/net/tcp")["stdout"], what="the connection")
        api.rm(name)
        t.join(60 * SCALE)
        assert not t.is_alive()
    until(lambda: not world.objects()["links"], what="the end of the interfaces")
    assert_no_leak(world.daemon)

    # The host's connection tracking forgets a closed connection after a while, and the set with it.
    def counted():
        return world.host.run("nft", "list", "set", "inet", f"box_{world.net_tag}", "conns").stdout.count("ct count")

    until(lambda: counted() <= 1, seconds=90, what="the end of the counted connections")


def test_check_D12_addresses_come_back(world):
    """More sessions than one after the other could have if each kept its address."""
    seen = set()
    for i in range(5):
        world.new(f"n{i}")
        seen.add(world.address_of(f"n{i}"))
    assert len(seen) == 5
    for i in range(5):
        world.api.rm(f"n{i}")
    for _ in range(20 if SCALE == 1 else 3):
        world.new("again")
        world.api.rm("again")
    until(lambda: not world.objects()["links"], what="the end of the interfaces")


def test_the_machine_itself_was_left_alone(world):
    world.new("on")
    links = subprocess.run(["ip", "-o", "link"], text=True, capture_output=True).stdout
    tables = subprocess.run(["nft", "list", "tables"], text=True, capture_output=True).stdout
    assert f"bx{world.net_tag}_" not in links and f"box_{world.net_tag}" not in tables
    assert world.objects()["table"]


def test_check_J01_a_killed_daemon_leaves_no_rules_once_it_started_again(world):
    world.new("on")
    made = world.objects()
    assert made["links"] and made["table"] and made["addresses"]
    helper = world.daemon.priv_pid()
    world.daemon.process.kill()
    os.kill(helper, signal.SIGKILL)
    world.daemon.process.wait()
    until(lambda: not alive(helper), what="the end of box-priv")
    world.daemon.start()
    world.api = world.daemon.client(timeout=120 * SCALE)
    # No session asked for a network yet, and still nothing is left.
    until(lambda: world.objects() == {"links": [], "table": False, "addresses": []}, what="the end of the rules")
    world.new("on")
    assert world.probe("on", [("8.8.8.8", 80)])[("8.8.8.8", 80)][0].startswith("internet")
    world.api.rm("on")
    # And an orderly end takes them along.
    world.daemon.stop()
    assert world.objects() == {"links": [], "table": False, "addresses": []}
    world.daemon.start()
    world.api = world.daemon.client(timeout=120 * SCALE)


def test_network_on_where_it_cannot_be_had():
    """Refused with a reason, never the host's own."""
    need("unshare", "mount")
    # A PATH of the daemon's own does not matter: box-priv looks in fixed places, which are covered here.
    script = ('for n in /usr/sbin/nft /sbin/nft /usr/bin/nft; do [ -e $n ] && mount --bind /dev/null $n; done; '
              'exec "$@"')
    daemon = Boxd(prefix=["unshare", "-mn", "--propagation", "private", "sh", "-c", script, "sh"])
    try:
        client = daemon.client()
        check = {c["id"]: c for c in client.doctor()["checks"]}["network"]
        if check["status"] == "ok":
            pytest.skip("this boxd needs no nft")
        with pytest.raises(ApiError) as caught:
            client.new("on", network="on")
        assert caught.value.detail, caught.value
        assert client.ps() == []
        assert_no_leak(daemon)
        client.new("off")
        assert client.sh("off", "echo ok")["stdout"] == "ok\n"
    finally:
        daemon.close()


