# SPDX-License-Identifier: Apache-2.0
"""What is measured. Each phase fills `run.series` and `run.bars`; rounds are interleaved, so that noise hits all alike."""

import itertools
import os
import time

from machine import GLOBAL, KERNEL, empty_group_kib, init_kib, memory, own_anon_kib
from peers import HOLDER, IMAGE
from stats import Bar, Series, median

MIB = 1024.0


class Run:
    """A run's state: the sizes, the daemon, the load generator, the peers, the results."""

    def __init__(self, sizes, daemon, load, peers, cpus):
        self.sizes, self.daemon, self.load, self.peers, self.cpus = sizes, daemon, load, peers, cpus
        self.sock = str(daemon.sock)
        self.series, self.bars, self.facts, self.notes = {}, [], {}, []
        self.started = time.monotonic()
        self._names = itertools.count()

    def name(self, what):
        return f"{what}{next(self._names)}-"

    def add(self, key, name, times):
        if times:
            self.series.setdefault(key, Series(name)).add(times)

    def late(self, share):
        """That share of the run's time is over: a slow machine gets fewer rounds, never a longer run."""
        return time.monotonic() - self.started > share * self.sizes["budget_s"]

    def ratio(self, what, promise, limit, top, bottom, at_least=False, peer=None):
        """A bar on p50(top) / p50(bottom)."""
        bar = Bar(what, promise, limit=limit, at_least=at_least)
        over, under = self.series.get(top), self.series.get(bottom)
        if over is None or under is None:
            bar.why = f"{peer.name} {peer.reason}" if peer is not None and peer.reason else "no samples"
        else:
            bar.measured, bar.undisturbed = over.p50 / under.p50, over.p10 / under.p10
        self.bars.append(bar)


def engine_round(run, n):
    """What takes long is started less often, and comes first: the caches it cools are warmed again after it."""
    peers = run.peers
    run.add("docker_exec", "docker exec", peers.docker_exec.measure(n["docker_exec"]))
    run.add("docker_run", "docker run", peers.docker_run.measure(n["engine"]))
    run.add("podman", "podman run", peers.podman.measure(n["engine"]))
    run.add("runc", "runc run", peers.runc.measure(n["slow"]))
    run.add("crun", "crun run", peers.crun.measure(n["slow"]))
    warm_up(run)


def warm_up(run):
    run.peers.bare.measure(3)
    run.peers.bwrap.measure(2)
    run.load.ask("exec", 3, run.sock, "warm")
    run.load.ask("exec-ws", 3, run.sock, "warm")
    run.load.ask("cycle", 2, run.sock, run.name("w"))


def launch_round(run, n):
    """One round of everything that is started or executed once."""
    peers, load, sock = run.peers, run.load, run.sock
    run.add("bare", "bare fork+exec", peers.bare.measure(n["exec"]))
    run.add("exec_http", "box: warm exec, HTTP keep-alive", load.ask("exec", n["exec"], sock, "warm"))
    run.add("exec_ws", "box: warm exec, WebSocket each", load.ask("exec-ws", n["exec"], sock, "warm"))
    run.add("bwrap", "bwrap --unshare-all", peers.bwrap.measure(n["launch"]))
    cycle = load.ask("cycle", n["launch"], sock, run.name("c"))
    run.add("cycle", "box: new session + exec + delete", cycle[0::4])
    for i, part in enumerate(("create", "exec", "delete"), 1):
        run.add(f"cycle_{part}", f"  of it: {part}", cycle[i::4])
    run.add("throwaway", "box: the same, as `box run`", load.ask("throwaway", n["launch"], sock))
    run.add("bwrap_usual", "bwrap with proc, dev, tmp", peers.bwrap_usual.measure(n["launch"]))


def launches(run):
    n = run.sizes
    run.daemon.client().new("warm")
    warm_up(run)
    for done in range(n["rounds"]):
        if done % n["engine_every"] == 0:
            engine_round(run, n)
        launch_round(run, n)
        if run.late(0.5) and done >= 2:
            run.facts["rounds_cut_to"] = done + 1
            break
    peers = run.peers
    bare = "≤ 2× a bare fork+exec"
    run.ratio("warm exec of echo, HTTP keep-alive", bare, 2.0, "exec_http", "bare")
    run.ratio("warm exec of echo, WebSocket each time", bare, 2.0, "exec_ws", "bare")
    run.ratio("warm exec of echo", "≥ 20× faster than docker exec", 20.0, "docker_exec", "exec_http", True,
              peers.docker_exec)
    run.ratio("new session + first exec + delete", "≤ 1× bwrap --unshare-all", 1.0, "cycle", "bwrap", peer=peers.bwrap)
    run.ratio("the same, as `box run` does it", "≤ 1× bwrap --unshare-all", 1.0, "throwaway", "bwrap",
              peer=peers.bwrap)
    run.ratio("new session + first exec + delete", "≥ 40× faster than docker run", 40.0, "docker_run", "cycle", True,
              peers.docker_run)


def engines(run):
    """A session on Docker beside what Docker's own API takes for the least that does the same."""
    peers, n = run.peers, run.sizes
    bars = (("warm exec of echo, on Docker", "≤ 1.1× a bare exec through Docker's API", "docker_box_exec", "docker_api_exec"),
            ("new session, on Docker", "≤ 1.1× create + start through Docker's API", "docker_box_0", "docker_api_0"))
    if peers.docker_exec.reason is None:
        sock = str(peers.work / "docker.sock")
        os.chmod(peers.work, 0o755)  # boxd is nobody there
        os.chmod(sock, 0o660)
        daemon = run.new_daemon("--backend", "docker", env={"BOX_ENGINE_SOCKET": sock})
        try:
            engine_rounds(run, daemon, sock, n["engine_rounds"])
        finally:
            daemon.stop_hard()
    for what, promise, top, bottom in bars:
        run.ratio(what, promise, 1.1, top, bottom, peer=peers.docker_exec)


def add_cycle(run, key, name, parts, times):
    """Two times for each: it was made, it was removed."""
    run.add(key, name, [a + b for a, b in zip(times[0::2], times[1::2])])
    for i, part in enumerate(parts):
        run.add(f"{key}_{i}", f"  of it: {part}", times[i::2])


def engine_rounds(run, daemon, sock, rounds):
    load = run.load
    daemon.client().new("warm", image=f"{IMAGE}:latest")
    load.ask("engine-create", 1, sock, IMAGE)
    for done in range(rounds):
        run.add("docker_api_exec", "docker: exec through the API", load.ask("engine-exec", 3, sock, HOLDER))
        run.add("docker_box_exec", "box on Docker: warm exec", load.ask("exec", 3, str(daemon.sock), "warm"))
        add_cycle(run, "docker_api", "docker: create + start + remove through the API", ("create + start", "remove"),
                  load.ask("engine-create", 2, sock, IMAGE))
        add_cycle(run, "docker_box", "box on Docker: new session + delete", ("new session", "delete"),
                  load.ask("session", 2, str(daemon.sock), run.name("d"), f"{IMAGE}:latest"))
        if run.late(0.7) and done >= 4:
            break


def burst(run):
    n, size = run.sizes, run.sizes["burst"]
    bar = Bar(f"{size} new sessions at once, with first exec", f"≤ 3× {size} bwrap in sequence / cores", limit=3.0)
    run.bars.append(bar)
    bar.why = "see below"
    ratios, parts = [], []
    for _ in range(n["burst_rounds"]):
        sequence = run.peers.bwrap.measure(size)
        times = run.load.ask("burst", size, run.sock, run.name("b"), timeout=n["burst_timeout_s"])
        parts.append([t / 1e6 for t in times])
        if sequence is None:
            bar.why = f"bwrap {run.peers.bwrap.reason}"
        else:
            ratios.append((times[0] + times[1]) / (sum(sequence) / run.cpus))
        if run.late(0.6):
            break
    made, execed, gone = (median(column) for column in zip(*parts))
    run.facts["burst_ms"] = {"sessions": size, "all_made": round(made, 1), "all_execed": round(execed, 1),
                             "all_deleted": round(gone, 1)}
    if ratios:
        bar.measured = median(ratios)
        run.facts["burst_ratios"] = [round(r, 2) for r in ratios]


def exec_block(run, key, name):
    """Execs with the daemon as it is now; bare ones in between tell what the machine does meanwhile."""
    for _ in range(run.sizes["scale_blocks"]):
        run.add(f"{key}_bare", f"bare fork+exec, {name}", run.peers.bare.measure(20))
        run.add(key, f"box: warm exec, {name}", run.load.ask("exec", 20, run.sock, "warm"))
        cycle = run.load.ask("cycle", 2, run.sock, run.name("s"))
        run.add(f"{key}_cycle", f"box: new + exec + delete, {name}", cycle[0::4])


def scale_round(run, client, count):
    daemon = run.daemon
    exec_block(run, "exec_one", "1 session")
    before, own_before = memory(), own_anon_kib(daemon.pid) + own_anon_kib(daemon.priv_pid())
    prefix = run.name("m")
    start = time.monotonic()
    for i in range(count):
        client.new(f"{prefix}{i}")
    filled = time.monotonic() - start
    after, own_after = memory(), own_anon_kib(daemon.pid) + own_anon_kib(daemon.priv_pid())
    per = {key: (after[key] - before[key]) / count for key in GLOBAL}
    per["init"] = init_kib(daemon.priv_pid())
    per["daemons"] = (own_after - own_before) / count
    rss = daemon.rss_kb()
    exec_block(run, "exec_many", f"{count} sessions")
    for i in range(count):
        client.rm(f"{prefix}{i}")
    left = memory()
    return {"in_all_kib": round(sum(per[key] for key in (*KERNEL, "init", "daemons")), 1),
            "per_session_kib": {k: round(v, 1) for k, v in per.items()}, "boxd_rss_kib": rss,
            "fill_s": round(filled, 2), "left_after_delete_kib": round(left["used"] - before["used"])}


def crowd_block(run, level):
    """Sessions made and deleted with `level` others alive; a bare fork+exec in between tells what the machine does."""
    name = "1 live session" if level == 1 else f"{level} live sessions"
    for _ in range(run.sizes["crowd_blocks"]):
        run.add(f"crowd_bare_{level}", f"bare fork+exec, {name}", run.peers.bare.measure(5))
        cycle = run.load.ask("cycle", 10, run.sock, run.name("k"))
        for i, part in enumerate(("create", "exec", "delete"), 1):
            run.add(f"crowd_{part}_{level}", f"box: {part}, {name}", cycle[i::4])


def crowd(run):
    """What creation and deletion cost with 1, 1,000 and 5,000 live sessions, in one run."""
    levels = run.sizes["crowd"]
    run.daemon.stop_hard()  # for a larger limit of sessions
    run.daemon = run.new_daemon(env={"BOX_MAX_SESSIONS": str(levels[-1] + 100)})
    run.sock = str(run.daemon.sock)
    client, prefix, live = run.daemon.client(), run.name("l"), 0
    run.load.ask("cycle", 20, run.sock, run.name("k"))
    for level in levels:
        while live < level:
            client.new(f"{prefix}{live}")
            live += 1
        crowd_block(run, level)
    for i in range(live):
        client.rm(f"{prefix}{i}")
    for level in levels[1:]:
        for part, limit in (("create", 1.5), ("exec", 1.5), ("delete", 1.5)):
            run.ratio(f"{part} with {level} live sessions", f"≤ {limit}× that with one", limit, f"crowd_{part}_{level}",
                      f"crowd_{part}_{levels[0]}")


def scale(run):
    """Many idle sessions: their memory, and what they do to an exec."""
    n, count = run.sizes, run.sizes["sessions"]
    client = run.daemon.client()
    client.new("warm")  # made or reused
    for i in range(20):  # what the first sessions allocate once is not theirs
        client.new(f"w{i}")
    for i in range(20):
        client.rm(f"w{i}")
    rounds = []
    while len(rounds) < n["scale_rounds"] and not (rounds and run.late(0.75)):
        rounds.append(scale_round(run, client, count))
    run.facts["memory_rounds"] = rounds
    run.facts["empty_memory_cgroup_kib"] = empty = empty_group_kib(f"{run.daemon.tag()}-empty")
    if empty is not None:
        run.notes.append(f"of the memory of an idle session {empty:.0f} KiB is what a memory cgroup takes on this host that "
                         "nothing is in: that grows with the superblocks the host ever had at one time.")
    used = median([r["in_all_kib"] for r in rounds]) / MIB
    rss = median([r["boxd_rss_kib"] for r in rounds]) / MIB
    run.bars += [
        Bar(f"memory of an idle session in all ({count} sessions)", "≤ 0.5 MiB", used, 0.5, unit=" MiB"),
        Bar(f"boxd with {count} sessions", "≤ 16 MiB + 16 KiB per session", rss, 16 + count / 64, unit=" MiB"),
    ]
    run.ratio(f"exec latency with {count} live sessions", "≤ 1.25× that with one", 1.25, "exec_many", "exec_one")
