# SPDX-License-Identifier: Apache-2.0
"""LangBot: its protocol and the relay, timed by our load generator; its own client, against boxd and its runtime."""

import contextlib
import hashlib
import json
import pathlib
import socket
import subprocess
import time
import urllib.error
import urllib.request

from load import Load
from peers import IMAGE, Peer, Refused
from stats import Bar

ROOT = pathlib.Path(__file__).resolve().parents[2]
INSTANCE, WORKSPACE = "bench", "bench"
SAME_COMMAND = ["/bin/sh", "-c", "/bin/echo hello"]  # not -l: what a host puts into its profile is its own affair
LINE_MIB = 32 / 1024
READY_TIMEOUT = 40.0
RELEASE = "0.7.16"  # of langbot-plugin: the one that LangBot 4.11.2 pins


def request(action, **data):
    context = {"instance_uuid": INSTANCE, "workspace_uuid": WORKSPACE, "placement_generation": 1}
    return json.dumps({"seq_id": 1, "action": action, "data": data, "context": context})


def relay_target(session):
    digest = hashlib.sha256(f"{INSTANCE}\0{WORKSPACE}".encode()).hexdigest()[:24]
    return f"/v1/sessions/ws-{digest}-g1-{session}/managed-process/default/ws"


def protocol(run):
    """Warm exec over the RPC WebSocket, and the relay, beside the bare things."""
    n, load, sock = run.sizes, run.load, run.sock
    bare = Peer("bare sh -c", load, SAME_COMMAND)
    load.ask("rpc", sock, INSTANCE, request("box_create_session", session_id="rpc"),
             request("box_start_managed_process", session_id="rpc", spec={"command": "cat"}))
    who = (sock, INSTANCE, WORKSPACE)
    target = relay_target("rpc")
    session = target.split("/")[3]  # the same sandbox, under the name that this boxd has for it
    load.ask("exec-rpc", 5, *who, "rpc")
    for done in range(n["rounds"]):
        run.add("bare_sh", "bare fork+exec of sh -c", bare.measure(n["exec"]))
        run.add("exec_rpc", "box: warm exec, RPC WebSocket", load.ask("exec-rpc", n["exec"], *who, "rpc"))
        run.add("exec_http_sh", "box: the same, HTTP keep-alive", load.ask("exec-sh", n["exec"], sock, session))
        run.add("socketpair", "bare socketpair echo", load.ask("socketpair", n["echo"], 1))
        run.add("chain", "bare echo through four processes", load.ask("socketpair", n["echo"], 4))
        run.add("relay", "box: relay echo", load.ask("relay", n["echo"], *who, target))
        if run.late(0.6) and done >= 2:
            break
    bulk = (("cat_bulk", "bare cat, each of many lines of 32 KiB", ("cat-bulk", n["bulk"])),
            ("relay_bulk", "box: relay, each of many lines of 32 KiB", ("relay-bulk", n["bulk"], *who, target)))
    for _ in range(3):
        for key, name, words in bulk:
            run.add(key, name, [load.ask(*words)[0] / n["bulk"]])
    run.facts["relay_mib_s"] = {key: round(LINE_MIB * 1e9 / run.series[key].p50) for key in ("cat_bulk", "relay_bulk")}
    load.ask("rpc", sock, INSTANCE, request("box_delete_session", session_id="rpc"))
    run.ratio("warm exec of echo, RPC WebSocket", "≤ 2× a bare fork+exec of the same", 2.0, "exec_rpc", "bare_sh")
    run.ratio("warm exec of echo, RPC WebSocket", "≥ 20× faster than docker exec", 20.0, "docker_exec", "exec_rpc",
              True, run.peers.docker_exec)
    run.ratio("warm exec of echo, HTTP keep-alive", "≤ 1.2× the RPC path", 1.2, "exec_http_sh", "exec_rpc")
    run.ratio("relay echo round trip", "≤ 5× a socketpair echo", 5.0, "relay", "socketpair")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def client_python():
    """The Python of the release, installed when it is missing."""
    done = subprocess.run([str(ROOT / "tools" / "langbot.sh"), "install", RELEASE], capture_output=True, text=True,
                          timeout=300)
    if done.returncode != 0:
        raise Refused((done.stderr.strip().splitlines() or ["LangBot's client cannot be installed"])[-1])
    return done.stdout.strip().splitlines()[-1]


def config(directory, backend):
    return json.dumps({"enabled": True, "backend": backend, "local": {"host_root": str(directory)}})


def await_ready(process, port):
    deadline = time.monotonic() + READY_TIMEOUT
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10):
                return
        time.sleep(0.1)
    raise Refused("failed: LangBot's own runtime was not ready on Docker")


def upstream(run, python, work, stack):
    """The runtime of the same package, on the run's own Docker. Returns its port."""
    peers = run.peers
    if peers.docker_exec.reason is not None:
        raise Refused(f"docker {peers.docker_exec.reason}")
    port = free_port()
    environment = {**peers.env, "LANGBOT_BOX_CONFIG": config(work, "docker")}
    process = subprocess.Popen(
        peers.enter(python, "-m", "langbot_plugin.cli.__init__", "box", "--host", "127.0.0.1", "--ws-control-port",
                    str(port)),
        cwd=work, env=environment, stdin=subprocess.DEVNULL, stdout=run.log, stderr=run.log)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    await_ready(process, port)
    return port


def busy():
    """Clock ticks that the processors have worked so far."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, irq, softirq, steal = map(int, file.readline().split()[1:9])
    return user + nice + system + irq + softirq + steal


def settle(limit_s=2.0, window_s=0.1):
    """Waits until the processors are idle: an engine goes on cleaning up behind its last answer, and that is not to be
    counted to the side whose turn is next. Not longer than the limit, on a machine that has other work."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        before = busy()
        time.sleep(window_s)
        if busy() - before <= 1:
            return


def client(run):
    """LangBot's own client: boxd and LangBot's own runtime in turns."""
    n = run.sizes
    what = ("warm exec of echo, LangBot's client", "new session + exec + delete, LangBot's client")
    bars = [Bar(what[0], "≥ 20× faster than its own runtime on Docker", limit=20.0, at_least=True),
            Bar(what[1], "≥ 40× faster than its own runtime on Docker", limit=40.0, at_least=True)]
    run.bars += bars
    with contextlib.ExitStack() as stack:
        try:
            python = client_python()
            work = pathlib.Path(run.peers.work, "langbot")
            work.mkdir()
            theirs = upstream(run, python, work, stack)
        except (Refused, OSError, subprocess.SubprocessError) as refusal:
            for bar in bars:
                bar.why = str(refusal)
            return
        run.facts["langbot_plugin"] = pathlib.Path(python).parts[-3].removeprefix("langbot-")
        port = free_port()
        stack.enter_context(contextlib.closing(run.new_daemon("--ws-control-port", str(port))))
        load = Load([python, str(ROOT / "tools" / "bench.d" / "langbot_load.py")], run.log)
        stack.callback(load.close)
        shared = work / "shared"  # what LangBot and boxd both see; never boxd's own state
        shared.mkdir()
        sides = (("box", "host", port, config(shared, "local")),
                 ("own", IMAGE, theirs, config(work, "docker")))
        for name, image, where, settings in sides:
            load.ask("connect", name, f"ws://127.0.0.1:{where}/rpc/ws", INSTANCE, settings)
            load.ask("exec", 2, name, image, "warm")
        for _ in range(n["client_rounds"]):
            for name, image, _, _ in sides:
                titles = {"box": "box", "own": "LangBot's runtime on Docker"}
                few = n["client_few"] if name == "own" else n["client_many"]
                settle()
                run.add(f"client_exec_{name}", f"{titles[name]}: warm exec, LangBot's client",
                        load.ask("exec", few, name, image, "warm", timeout=120))
                times = load.ask("cycle", max(1, few // 4), name, image, run.name("k"), timeout=120)
                run.add(f"client_cycle_{name}", f"{titles[name]}: new + exec + delete, LangBot's client", times[0::4])
        for bar, key in zip(bars, ("client_exec", "client_cycle")):
            over, under = run.series[f"{key}_own"], run.series[f"{key}_box"]
            bar.measured, bar.undisturbed = over.p50 / under.p50, over.p10 / under.p10
