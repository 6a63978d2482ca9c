# SPDX-License-Identifier: Apache-2.0
"""An engine behind TLS: who is believed, who is not, and what is said about it. The engine here is a few lines that
answer like one; a real one is in tests/conformance/test_backend_choice.py."""

import json
import socket
import ssl
import threading
import warnings

import pytest
from boxlib import Boxd
from tlslib import Authority

INFO = {"ServerVersion": "20.10.24", "SecurityOptions": [], "Runtimes": {"runc": {}}, "DefaultRuntime": "runc"}


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def good(authority):
    return authority.issue("good", "IP:127.0.0.1", "DNS:localhost")


class FakeEngine:
    """Answers /_ping, /info and /version, byte by byte where `slow`, and one connection after the other."""

    def __init__(self, context=None, slow=False, silent=False, greeting=b""):
        self.context, self.slow, self.silent, self.greeting = context, slow, silent, greeting
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        self.threads, self.held = [], []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                connection, _ = self.server.accept()
            except OSError:
                return
            if self.silent:
                self.held.append(connection)
            else:
                threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        try:
            connection.settimeout(30)
            connection.sendall(self.greeting)
            if self.context is not None:
                connection = self.context.wrap_socket(connection, server_side=True)
            data = b""
            while True:
                while b"\r\n\r\n" not in data:
                    more = connection.recv(4096)
                    if not more:
                        return
                    data += more
                head, _, data = data.partition(b"\r\n\r\n")
                self.answer(connection, head.split(b" ")[1])
        except OSError:
            pass
        finally:
            connection.close()

    def answer(self, connection, target):
        body = b"OK" if target == b"/_ping" else json.dumps(INFO).encode() if target.endswith(b"/info") else b"{}"
        if target.endswith(b"/info"):
            body += b" " * 300000  # more than fits into any one buffer on the way
        reply = b"HTTP/1.1 200 OK\r\nApi-Version: 1.41\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        if self.slow:
            for i in range(60):
                connection.sendall(reply[i:i + 1])
            reply = reply[60:]
        connection.sendall(reply)

    def close(self):
        self.server.close()
        for connection in self.held:
            connection.close()


def server_context(pair, client_ca=None):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*map(str, pair))
    if client_ca is not None:
        context.load_verify_locations(str(client_ca))
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def engine_row(engine, env, host="127.0.0.1", prefix=()):
    """What the doctor of a boxd says about an engine there."""
    env = {"BOX_ENGINE_SOCKET": f"tcp://{host}:{engine.port}", **env}
    daemon = Boxd("--backend", "docker", env=env, prefix=prefix)
    try:
        client = daemon.client()
        rows = [c for c in client.doctor()["checks"] if c["id"] == "engine"]
        client.close()
        return rows[0]
    finally:
        daemon.close()


@pytest.fixture
def serve():
    engines = []

    def start(*args, **kwargs):
        engines.append(FakeEngine(*args, **kwargs))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


@pytest.mark.parametrize("slow", [False, True], ids=["at-once", "in-pieces"])
def test_an_engine_with_the_right_certificate(serve, authority, good, slow):
    row = engine_row(serve(server_context(good), slow=slow), authority.environment())
    assert row["status"] == "ok" and "docker 20.10.24, API 1.41" in row["detail"], row


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["::1", "127.0.0.1"]], ids=["one", "two"])
def test_a_name_is_as_good_as_an_address(serve, authority, good, tmp_path, addresses):
    """Debian's own file of hosts has two addresses for this name, and the engine listens at one of them."""
    hosts = tmp_path / "hosts"
    hosts.write_text("".join(f"{address} localhost\n" for address in addresses))
    prefix = ["unshare", "--mount", "--propagation=private", "sh", "-c", 'mount --bind "$0" /etc/hosts; exec "$@"',
              str(hosts)]
    row = engine_row(serve(server_context(good)), authority.environment(), "localhost", prefix)
    assert row["status"] == "ok", row


def test_an_engine_that_wants_to_know_who_we_are(serve, authority, good):
    me = authority.issue("me", usage="clientAuth")
    engine = serve(server_context(good, authority.ca))
    assert engine_row(engine, authority.environment(me))["status"] == "ok"
    row = engine_row(engine, authority.environment())
    assert row["status"] == "missing" and "TLS with 127.0.0.1" in row["detail"], row
    assert "alert" in row["detail"] or "want another certificate" in row["detail"], row


def test_only_those_we_trust_are_believed(serve, authority, good, tmp_path):
    stranger = Authority(tmp_path / "stranger")
    theirs = stranger.issue("theirs", "IP:127.0.0.1")
    cases = {"unable to get local issuer certificate": theirs,
             "IP address mismatch": authority.issue("elsewhere", "IP:127.0.0.9", "DNS:localhost"),
             "certificate has expired": authority.issue("old", "IP:127.0.0.1", days=0),
             "unsuitable certificate purpose": authority.issue("person", "IP:127.0.0.1", usage="clientAuth")}
    for words, pair in cases.items():
        row = engine_row(serve(server_context(pair)), authority.environment())
        assert row["status"] == "missing" and "is not accepted" in row["detail"] and words in row["detail"], row


def test_old_versions_are_refused(serve, authority, good):
    context = server_context(good)
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    row = engine_row(serve(context), authority.environment())
    assert row["status"] == "missing" and "TLS with 127.0.0.1" in row["detail"], row


def test_what_speaks_no_tls_is_no_engine(serve, authority):
    row = engine_row(serve(greeting=b"HTTP/1.1 400 Bad Request\r\n\r\n"), authority.environment())
    assert row["status"] == "missing" and "TLS with 127.0.0.1" in row["detail"], row


def test_one_that_says_nothing_holds_nobody(serve, authority):
    """The handshake ends after ten seconds at the latest; meanwhile the daemon serves."""
    engine = serve(silent=True)
    daemon = Boxd("--backend", "docker",
                  env={"BOX_ENGINE_SOCKET": f"tcp://127.0.0.1:{engine.port}", **authority.environment()})
    try:
        rows = []
        thread = threading.Thread(target=lambda: rows.extend(daemon.client().doctor()["checks"]))
        thread.start()
        client = daemon.client(timeout=5)
        for _ in range(50):
            assert client.ps() == []
        thread.join(60)
        row = [c for c in rows if c["id"] == "engine"][0]
        assert row["status"] == "missing", row
    finally:
        daemon.close()


@pytest.mark.parametrize("env, words", [
    ({"BOX_ENGINE_SOCKET": "tcp://192.0.2.1:2376"}, "has no TLS"),
    ({"BOX_ENGINE_SOCKET": "tcp://[2001:db8::1]:2376"}, "has no TLS"),
    ({"BOX_ENGINE_SOCKET": "/run/x.sock", "BOX_ENGINE_TLS_CA": "{ca}"}, "no TLS on the unix socket"),
    ({"BOX_ENGINE_SOCKET": "tcp://127.0.0.1:1", "BOX_ENGINE_TLS_CA": "/nonexistent"}, "certificates in '/nonexistent'"),
    ({"BOX_ENGINE_SOCKET": "tcp://127.0.0.1:1", "BOX_ENGINE_TLS_CERT": "{ca}"}, "a certificate needs its key"),
])
def test_what_cannot_be_meant_is_refused_at_the_start(authority, env, words):
    env = {k: v.format(ca=authority.ca) for k, v in env.items()}
    with pytest.raises(RuntimeError) as caught:
        Boxd("--backend", "docker", env=env)
    assert words in str(caught.value)


def test_plain_tcp_on_the_loopback_is_told(serve):
    engine = serve(None)
    daemon = Boxd("--backend", "docker", env={"BOX_ENGINE_SOCKET": f"tcp://127.0.0.1:{engine.port}"})
    try:
        assert [c["status"] for c in daemon.client().doctor()["checks"] if c["id"] == "engine"] == ["ok"]
        assert "every user of this host can use the engine" in daemon.log()
    finally:
        daemon.close()
