# SPDX-License-Identifier: Apache-2.0
"""What operators see: GET /metrics, request ids, the log."""

import hashlib
import json
import re
import shutil
import socket
import tempfile

import pytest
from boxlib import ROOT, ApiError, Boxd
from hostlib import SCALE, mount_dir, until
from lbwire import Rpc, RpcError
from rawlib import Wire

TOKENS = {
    "scraper": "the-token-of-the-scraper-0123456789",
    "worker": "the-token-of-the-worker-01234567890",
}
SECRET = "nobody-may-read-this-in-a-log-012345"


def scrape(client):
    """{name: {labels: value}} as a parser of Prometheus' own reads it."""
    parser = pytest.importorskip("prometheus_client.parser", reason="tools/setup.sh test")
    client._conn.request("GET", "/metrics")
    response = client._conn.getresponse()
    text = response.read().decode()
    assert response.status == 200
    assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = {}
    for family in parser.text_string_to_metric_families(text):
        assert family.documentation and family.type in ("counter", "gauge", "histogram"), family
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in found.setdefault(sample.name, {}), f"twice: {sample}"
            found[sample.name][labels] = sample.value
    return found


def total(found, name, **labels):
    """The sum of the samples that carry these labels."""
    want = set(labels.items())
    return sum(value for have, value in found.get(name, {}).items() if want <= set(have))


def records(daemon):
    return [json.loads(line) for line in daemon.log().split("\n")[:-1] if line.startswith("{")]


@pytest.fixture(scope="module")
def talkative():
    """One that logs every request."""
    daemon = Boxd(env={"BOX_ACCESS_LOG": "info", "BOX_SESSION_TTL_SEC": "0"})
    yield daemon
    daemon.close()


@pytest.fixture
def client(talkative):
    client = talkative.client()
    yield client
    client.close()


def test_sessions_and_execs_are_counted(client):
    before = scrape(client)
    client.new("m1")
    assert client.sh("m1", "printf 12345; printf 678 >&2")["outcome"] == "exited"
    assert client.x("m1", "sleep", "60", timeout_sec=0.1)["outcome"] == "timed_out"
    during = scrape(client)
    client.rm("m1")
    after = scrape(client)

    def grew(name, a=before, b=after, **labels):
        return total(b, name, **labels) - total(a, name, **labels)

    assert total(during, "box_sessions", state="ready") == 1
    assert total(after, "box_sessions") == 0
    assert grew("box_sessions_created_total") == 1
    assert grew("box_sessions_ended_total", reason="deleted") == 1
    assert grew("box_sessions_failed_total") == 0
    assert grew("box_session_create_seconds_count") == 1
    assert grew("box_execs_total", outcome="exited") == 1
    assert grew("box_execs_total", outcome="timed_out") == 1
    assert grew("box_exec_seconds_count") == 2
    assert grew("box_exec_seconds_sum") >= 0.1
    assert grew("box_exec_output_bytes_total", stream="stdout") == 5
    assert grew("box_exec_output_bytes_total", stream="stderr") == 3
    assert total(after, "box_execs_running") == 0
    assert grew("box_http_requests_total", method="POST", route="/v1/sessions/{id}/exec", status="200") == 2
    assert grew("box_http_requests_total", method="DELETE", route="/v1/sessions/{id}", status="204") == 1
    # Each scrape does not yet count itself.
    assert grew("box_http_requests_total", route="/metrics") == 2


def test_histograms_are_cumulative(client):
    client.call("GET", "/v1/sessions")
    found = scrape(client)
    for name in ("box_session_create_seconds", "box_exec_seconds", "box_http_request_seconds", "box_loop_turn_seconds"):
        buckets = sorted((float(dict(labels)["le"]), value) for labels, value in found[name + "_bucket"].items())
        values = [value for _, value in buckets]
        assert values == sorted(values)
        assert buckets[-1][0] == float("inf")
        assert values[-1] == total(found, name + "_count")
    assert total(found, "box_loop_turn_seconds_count") > 0


def test_labels_are_never_a_peers(client):
    """A thousand names make no series."""
    before = len(scrape(client)["box_http_requests_total"])
    for n in range(200):
        with pytest.raises(ApiError):
            client.call("GET", f"/v1/sessions/nobody-{n}")
        with pytest.raises(ApiError):
            client.call("GET", f"/nowhere-{n}")
    found = scrape(client)
    assert len(found["box_http_requests_total"]) <= before + 2
    assert total(found, "box_http_requests_total", route="/v1/sessions/{id}", status="404") >= 200
    assert total(found, "box_http_requests_total", route="none", status="404") >= 200
    assert "nobody-" not in str(found) and "nowhere-" not in str(found)


def test_what_was_no_request_is_counted(client, talkative):
    before = scrape(client)
    with Wire(talkative.sock) as w:
        w.send(b"this is no HTTP\r\n\r\n")
        assert w.until_end().startswith(b"HTTP/1.1 400")
    after = scrape(client)
    assert total(after, "box_http_requests_total", status="400") == total(
        before, "box_http_requests_total", status="400") + 1


def test_managed_processes_and_their_output(client):
    before = scrape(client)
    client.new("m2")
    client.call("POST", "/v1/sessions/m2/processes", {"process_id": "p", "command": "sh", "args": [
        "-c", "printf 0123456789; exec sleep 1000"]})
    grown = until(lambda: (found := scrape(client)) and total(found, "box_process_output_bytes_total") == total(
        before, "box_process_output_bytes_total") + 10 and found)
    assert total(grown, "box_processes", state="running") == 1
    assert total(grown, "box_processes_started_total") == total(before, "box_processes_started_total") + 1
    client.rm("m2")
    after = scrape(client)
    assert total(after, "box_processes", state="running") == 0
    assert total(after, "box_processes_exited_total") == total(before, "box_processes_exited_total") + 1


def test_rpc_calls_by_action(client, talkative):
    before = scrape(client)
    with Rpc(talkative.sock, timeout=120 * SCALE) as rpc:
        rpc.call("box_health")
        with pytest.raises(RpcError):
            rpc.call("box_delete_session", {"session_id": "nobody"})
        with pytest.raises(RpcError):
            rpc.call("no_such_action")
        during = scrape(client)
        assert total(during, "box_connections", kind="websocket") == 1
    after = until(lambda: (found := scrape(client)) and not total(found, "box_connections", kind="websocket") and found)

    def grew(name, **labels):
        return total(after, name, **labels) - total(before, name, **labels)

    assert grew("box_rpc_calls_total", action="box_health", result="ok") == 1
    assert grew("box_rpc_calls_total", action="box_delete_session") == 1
    assert grew("box_rpc_calls_total", action="box_delete_session", result="ok") == 0
    assert grew("box_rpc_calls_total", action="unknown") == 1
    assert "no_such_action" not in str(after)
    assert grew("box_websockets_opened_total") == 1
    calls = [r for r in records(talkative) if r["msg"] == "rpc"]  # written before the socket closed
    assert {"box_health", "box_delete_session", "unknown"} <= {r["action"] for r in calls}
    ids = [r["request"] for r in calls]
    assert len(set(ids)) == len(ids)


def test_the_process_itself(client, talkative):
    found = scrape(client)
    resident = total(found, "process_resident_memory_bytes")
    assert abs(resident - talkative.rss_kb() * 1024) < 4 << 20
    assert 5 < total(found, "process_open_fds") < total(found, "process_max_fds")
    assert total(found, "process_start_time_seconds") > 1.6e9
    assert total(found, "process_cpu_seconds_total") > 0
    assert total(found, "box_backend_up", backend="native") == 1
    assert total(found, "box_build_info") == 1
    assert "box_audit_lost_total" in found


def test_the_manual_names_every_metric(client):
    """docs/how-to/operators.md, and nothing that is not there."""
    text = (ROOT / "docs/how-to/operators.md").read_text()
    client._conn.request("GET", "/metrics")
    names = set(re.findall(r"^# TYPE (\S+)", client._conn.getresponse().read().decode(), re.M))
    told = set(re.findall(r"`((?:box|process)_[a-z_]+)`", text)) - {"box_init"}  # a call of LangBot's
    assert told == names


def test_idle_sessions_count_as_expired():
    daemon = Boxd(env={"BOX_SESSION_TTL_SEC": "1"})
    try:
        client = daemon.client()
        client.new("idle")
        found = until(lambda: (now := scrape(client)) and total(now, "box_sessions_ended_total", reason="expired")
                      and now)
        assert total(found, "box_sessions_ended_total", reason="deleted") == 0
        client.close()
    finally:
        daemon.close()


# Tokens.


@pytest.fixture(scope="module")
def guarded():
    """On TCP, with tokens of different scopes."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        where = s.getsockname()
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as f:
        tools = {"scraper": ["metrics"], "worker": ["exec", "session"]}
        f.write("tokens:\n")
        for name, token in TOKENS.items():
            f.write(f"  - name: {name}\n    sha256: {hashlib.sha256(token.encode()).hexdigest()}\n"
                    f"    tools: {json.dumps(tools[name])}\n    sessions: [\"*\"]\n    profiles: [default]\n")
        f.flush()
        daemon = Boxd("--ws-control-port", str(where[1]), env={"BOX_TOKENS_FILE": f.name, "BOX_ACCESS_LOG": "info"})
        daemon.where = where
        yield daemon
        daemon.close()


def get(daemon, path, token=None, more=b""):
    with Wire(daemon.where) as w:
        auth = f"Authorization: Bearer {token}\r\n" if token else ""
        w.send(f"GET {path} HTTP/1.1\r\nHost: {w.host}\r\n{auth}".encode() + more + b"\r\n")
        return w.answer()


def test_metrics_want_the_scope(guarded):
    assert get(guarded, "/metrics")[0] == 401
    assert get(guarded, "/metrics", "x" * 40)[0] == 401
    assert get(guarded, "/metrics", TOKENS["worker"])[0] == 403
    assert get(guarded, "/metrics", TOKENS["scraper"])[0] == 200
    assert get(guarded, "/v1/sessions", TOKENS["worker"])[0] == 200
    # The unix socket is free, and knows that one was refused.
    client = guarded.client()
    found = scrape(client)
    assert total(found, "box_policy_refusals_total", code="denied") == 1
    assert total(found, "box_http_requests_total", route="/metrics", status="401") == 2
    client.close()


def test_no_secret_is_ever_in_the_log(guarded):
    get(guarded, f"/v1/sessions?token={SECRET}", SECRET, f"Cookie: {SECRET}\r\nX-Api-Key: {SECRET}\r\n".encode())
    get(guarded, "/v1/sessions", TOKENS["worker"], f"X-Request-Id: {SECRET} \"\x7f\r\n".encode())
    client = guarded.client()
    client.call("POST", "/v1/sessions", {"session_id": "s", "env": {"KEY": SECRET}})
    client.x("s", "sh", "-c", "true", env={"KEY": SECRET})
    client.rm("s")
    client.close()
    get(guarded, "/v1/health")  # all of the others are on record when this is answered
    text = guarded.log()
    assert SECRET not in text and TOKENS["worker"] not in text and TOKENS["scraper"] not in text
    who = {r["who"] for r in records(guarded) if r["msg"] == "http"}
    assert {"worker", "local", "nobody"} <= who


# Request ids.


def answer(daemon, more=""):
    with Wire(daemon.sock) as w:
        w.send(f"GET /v1/sessions HTTP/1.1\r\nHost: localhost\r\n{more}\r\n".encode())
        status, headers, _ = w.answer()
        assert status == 200
        return headers["X-Request-Id"]


def test_a_request_keeps_its_sane_id(talkative):
    for good in ("a", "Abc.9_z-", "x" * 64):
        assert answer(talkative, f"X-Request-Id: {good}\r\n") == good
    bad = ("", "x" * 65, "a b", 'a"b', "a;b", "a/b", "ä", "{}", "a\tb")
    made = [answer(talkative, f"X-Request-Id: {value}\r\n") for value in bad]
    made.append(answer(talkative, "X-Request-Id: one\r\nX-Request-Id: two\r\n"))
    made.append(answer(talkative))
    assert all(re.fullmatch(r"[0-9a-f]{16}", value) for value in made), made
    assert len(set(made)) == len(made)


def test_the_access_log_carries_the_id(client, talkative):
    client._conn.request("GET", "/v1/sessions?secret=1", headers={"X-Request-Id": "find-me.1"})
    client._conn.getresponse().read()
    found = until(lambda: [r for r in records(talkative) if r.get("request") == "find-me.1"])  # after the answer
    assert len(found) == 1
    line = found[0]
    assert (line["level"], line["msg"], line["method"], line["path"]) == ("info", "http", "GET", "/v1/sessions")
    assert line["status"] == 200 and line["bytes"] > 0 and line["duration_us"] >= 0 and line["who"] == "local"


def test_what_a_request_causes_later_carries_its_id():
    """Sandboxes are made by another process; what goes wrong there is told later, and still under its name."""
    top = mount_dir("box-ops-")
    (top / "link").symlink_to("/usr/share")  # box-priv, and nobody before it, finds out
    daemon = Boxd("--log-level", "debug")
    try:
        clients = [daemon.client() for _ in range(8)]
        body = {"host_path": str(top / "link")}
        for n, client in enumerate(clients):  # all under way at once
            client._conn.request("POST", "/v1/sessions", json.dumps({"session_id": f"s{n}", **body}),
                                 {"X-Request-Id": f"request-{n}"})
        for client in clients:
            response = client._conn.getresponse()
            assert response.status == 403 and response.read()
            client.close()
        failed = {r["session"]: r.get("request") for r in records(daemon) if r["msg"].startswith("create: ")}
        assert failed == {f"s{n}": f"request-{n}" for n in range(8)}
    finally:
        daemon.close()
        shutil.rmtree(top)


def test_levels_and_formats(tmp_path):
    config = tmp_path / "c.yaml"
    config.write_text("log_level: warn\naccess_log: info\n")
    daemon = Boxd("--config", str(config))
    try:
        assert answer(daemon) and answer(daemon)  # the first is on record before the second is read
        assert not [r for r in records(daemon) if r["level"] not in ("warn", "error")]
    finally:
        daemon.close()
    daemon = Boxd("--log-format", "human", "--log-level", "debug")
    try:
        answer(daemon, "X-Request-Id: seen\r\n")
        line = re.compile(r"^\d\d:\d\d:\d\d debug \[seen\] http method=GET path=/v1/sessions status=200", re.M)
        until(lambda: line.search(daemon.log()), what="the record")
        assert "\x1b" not in daemon.log()
    finally:
        daemon.close()


@pytest.mark.parametrize("name, value", [("log_level", "loud"), ("log_format", "xml"), ("access_log", "sometimes")])
def test_a_misspelt_setting_is_told(tmp_path, name, value):
    config = tmp_path / "c.yaml"
    config.write_text(f"{name}: {value}\n")
    # Tests set the format by the environment, which wins over the file.
    flag = ["--log-format", value] if name == "log_format" else []
    with pytest.raises(RuntimeError, match=f"{name} must be .*{value}"):
        Boxd("--config", str(config), *flag)
