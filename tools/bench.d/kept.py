# SPDX-License-Identifier: Apache-2.0
"""Servers behind `-p` beside the same servers on loopback, and stop and start of a durable session."""

import contextlib
import http.client
import socket
import subprocess
import tempfile
import time

from stats import Bar

PYTHON = "/usr/bin/python3"  # of the host and of a session alike
WEB, ECHO = 3000, 3001
SMALL, LARGE = 2_000, 64 << 20
PROMISE = "≤ 2× the same server on loopback"
# One connection after the other.
ECHO_SERVER = f"""import socket
listener = socket.create_server(("127.0.0.1", {ECHO}))
while True:
    c = listener.accept()[0]
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := c.recv(65536):
        c.sendall(data)
"""
FILES = f"head -c {SMALL} /dev/zero > small; head -c {LARGE} /dev/zero > large"


def until_served(port):
    end = time.monotonic() + 30
    while True:
        try:
            return download(port, "/small", SMALL)
        except (OSError, http.client.HTTPException):
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def download(port, path, size):
    """A connection each, as `python3 -m http.server` has it."""
    start = time.perf_counter_ns()
    conn = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    conn.request("GET", path)
    got = len(conn.getresponse().read())
    took = time.perf_counter_ns() - start
    conn.close()
    if got != size:
        raise RuntimeError(f"{path} has {got} bytes, not {size}")
    return took


def echoes(conn, n):
    line, times = b"x" * 62, []
    for _ in range(n):
        start = time.perf_counter_ns()
        conn.sendall(line)
        got = 0
        while got < len(line):
            got += len(conn.recv(65536)) or 1 << 30
        times.append(time.perf_counter_ns() - start)
        if got != len(line):
            raise RuntimeError("the echo ended")
    return times


def echo_connection(stack, port):
    conn = stack.enter_context(socket.create_connection(("127.0.0.1", port), 60))
    conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    echoes(conn, 50)
    return conn


def bare_servers(stack, log):
    """The same two on loopback, in a network of the host."""
    work = stack.enter_context(tempfile.TemporaryDirectory(prefix="box-bench-web-"))
    subprocess.run(["sh", "-c", FILES], cwd=work, check=True)
    for words in (["-m", "http.server", "--bind", "127.0.0.1", str(WEB)], ["-c", ECHO_SERVER]):
        server = subprocess.Popen([PYTHON, *words], cwd=work, stdout=log, stderr=log)
        stack.callback(server.wait)
        stack.callback(server.kill)
    return WEB, ECHO


def boxed_servers(client):
    client.new("web", durable=True)
    client.sh("web", FILES)
    for name, words in (("web", ["-m", "http.server", "--bind", "127.0.0.1", str(WEB)]), ("echo", ["-c", ECHO_SERVER])):
        client.call("POST", "/v1/sessions/web/processes", {"process_id": name, "command": "sh", "cwd": "/workspace",
                                                           "args": ["-c", 'exec "$0" "$@" >/dev/null 2>&1', PYTHON, *words]})
    return tuple(client.call("POST", "/v1/sessions/web/ports", {"port": port})["host_port"] for port in (WEB, ECHO))


def ports(run):
    with contextlib.ExitStack() as stack:
        client = run.daemon.client()
        stack.callback(client.rm, "web")
        pairs = (("bare", "loopback", *bare_servers(stack, run.log)), ("boxed", "box -p", *boxed_servers(client)))
        for _, _, web, _ in pairs:
            until_served(web)
        lines = {key: echo_connection(stack, echo) for key, _, _, echo in pairs}
        for _ in range(run.sizes["port_rounds"]):
            for key, title, web, _ in pairs:
                run.add(f"port_get_{key}", f"{title}: GET of 2 kB, python3 -m http.server", [download(web, "/small", SMALL) for _ in range(20)])
                run.add(f"port_bulk_{key}", f"{title}: GET of 64 MiB, the same", [download(web, "/large", LARGE)])
                run.add(f"port_echo_{key}", f"{title}: echo of 62 bytes, open connection", echoes(lines[key], 100))
    run.ratio("request to a server through `-p`", PROMISE, 2.0, "port_get_boxed", "port_get_bare")
    run.ratio("64 MiB from a server through `-p`", PROMISE, 2.0, "port_bulk_boxed", "port_bulk_bare")
    run.ratio("echo through `-p`, connection open", PROMISE, 2.0, "port_echo_boxed", "port_echo_bare")


def durable(run):
    """Nothing runs in it but PID 1: what a stop and a start cost by themselves."""
    client = run.daemon.client()
    client.new("thousand", durable=True)
    client.sh("thousand", "for i in $(seq 1000); do echo $i > f$i; done")
    for _ in range(run.sizes["durable_rounds"]):
        for verb in ("stop", "start"):
            start = time.perf_counter_ns()
            client.call("POST", f"/v1/sessions/thousand/{verb}")
            run.add(f"durable_{verb}", f"box: {verb} of a durable session with 1,000 files", [time.perf_counter_ns() - start])
    if client.sh("thousand", "ls | wc -l")["stdout"].strip() != "1000":
        raise RuntimeError("the session has lost files")
    client.rm("thousand")
    for verb in ("stop", "start"):
        series = run.series[f"durable_{verb}"]
        run.bars.append(Bar(f"{verb} of a durable session with 1,000 files", "≤ 20 ms", series.p50 / 1e6, 20.0,
                            undisturbed=series.p10 / 1e6, unit=" ms"))
