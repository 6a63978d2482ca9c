# SPDX-License-Identifier: Apache-2.0
"""Full disks, power cuts, damaged databases, boots and upgrades: checks J04, J05, J06, J12 and J16 of the catalogue."""

import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import threading
import time

import pytest
from boxlib import BUILD, ApiError, Boxd, Client
from faultlib import Strace
from hostlib import SCALE, adopt_orphans, alive, assert_no_leak, need, reap_orphans, until
from lbwire import Rpc, RpcError, context, physical, relay

CUTS = int(os.environ.get("BOX_POWER_CUTS", "40" if SCALE == 1 else "4"))


@pytest.fixture
def scratch():
    adopt_orphans()
    top = pathlib.Path(tempfile.mkdtemp(prefix="box-durable-"))
    top.chmod(0o755)
    yield top
    shutil.rmtree(top, ignore_errors=True)
    reap_orphans()


def records(state):
    """Names in a copy of a state directory's database; its log is read along."""
    db = sqlite3.connect(state / "state.db")
    try:
        return {name for (name,) in db.execute("SELECT id FROM session")}
    finally:
        db.close()


def works(client, name="probe"):
    client.new(name)
    assert client.sh(name, "echo ok > f; cat f")["stdout"] == "ok\n"
    client.rm(name)


# J04: the disk of the state directory.


class Small(Boxd):
    """On a file system of its own, in a mount namespace of its own, that tests can fill."""

    SIZE = 48 << 20

    def __init__(self, state):
        script = f'mount -t tmpfs -o size={self.SIZE},mode=755 box "{state}" && exec "$@"'
        state.mkdir()
        super().__init__(state=state, prefix=["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh"])
        self.inside = pathlib.Path(f"/proc/{self.pid}/root{state}")
        self.sock = self.inside / "boxd.sock"

    def client(self, timeout=120):
        # The path is too long for a socket's address in some places; a link is not.
        link = self.state.parent / "boxd.sock"
        if not link.is_symlink():
            link.symlink_to(self.sock)
        return Client(link, timeout)

    def fill(self):
        """To the last byte. The file that does it, for whoever removes it."""
        with open(self.inside / "filler", "wb", buffering=0) as f:
            for block in (1 << 20, 4096, 1):
                with contextlib.suppress(OSError):
                    while True:
                        f.write(b"x" * block)
        return self.inside / "filler"


@pytest.fixture
def small(scratch):
    need("unshare", "mount")
    daemon = Small(scratch / "state")
    yield daemon
    daemon.close()


def assert_typed(error):
    """What a caller can tell from a bug of ours."""
    assert error.status >= 500 and error.status != 500 or error.code in ("limit", "system", "backend"), error
    assert error.detail and error.code, error


def test_a_full_disk_loses_no_durable_session(small):
    client = small.client()
    for name in ("runs", "stopped"):
        client.new(name, durable=True)
        client.sh(name, f"echo {name} > /workspace/f")
    client.call("POST", "/v1/sessions/stopped/stop")
    small.fill()
    client.call("POST", "/v1/sessions/runs/stop")
    assert client.sh("stopped", "cat /workspace/f")["stdout"] == "stopped\n"  # it starts on a full disk
    for name in ("runs", "stopped"):
        client.call("POST", f"/v1/sessions/{name}/stop")
        client.call("POST", f"/v1/sessions/{name}/start")
        assert client.sh(name, "cat /workspace/f")["stdout"] == f"{name}\n"
    with pytest.raises(ApiError) as e:  # its record does not fit, and the old one stays
        for i in range(1000):
            client.call("POST", f"/v1/sessions/{'runs' if i == 0 else f'name{i - 1}'}/rename", {"name": f"name{i}"})
    assert_typed(e.value)
    assert {s["state"] for s in client.ps()} == {"ready"} and len(client.ps()) == 2
    client.rm("stopped")
    assert len(client.ps()) == 1


def test_check_J04_a_full_disk_refuses_what_is_new_and_keeps_what_runs(small):
    client = small.client()
    client.new("runs")
    client.sh("runs", "echo kept > /workspace/f")
    refused = set()
    for _ in range(3):
        filler = small.fill()
        for i in range(20):
            try:
                client.new(f"new{i}")
            except ApiError as error:
                assert_typed(error)
                refused.add(error.detail.split(":")[0])
                break
        else:
            pytest.fail("twenty sessions fitted onto a full disk")
        for _ in range(3):
            assert client.sh("runs", "cat /workspace/f; echo ok")["stdout"] == "kept\nok\n"
        # Its own disk is full as well, and that is said in the usual way.
        r = client.sh("runs", "echo more > /workspace/g")
        assert (r["outcome"], r["exit_code"]) == ("exited", 1), r
        assert client.doctor()["checks"] and len(client.ps()) >= 1
        filler.unlink()
        works(client, "again")
        for s in client.ps():
            if s["session_id"].startswith("new"):
                client.rm(s["session_id"])
    assert refused
    client.sh("runs", "rm -f /workspace/g")
    assert [s["session_id"] for s in client.ps()] == ["runs"]
    assert set(os.listdir(small.inside / "trash")) == {n for n in os.listdir(small.inside / "trash")
                                                       if n.startswith("spare-")}


def test_check_J04_what_a_full_disk_did_not_take_is_not_there_after_a_crash(small, scratch):
    """A session counts as made when its record is written: what was refused leaves no record, what was told does."""
    client = small.client()
    client.new("before")
    filler = small.fill()
    told = {"before"}
    for i in range(30):
        try:
            client.new(f"s{i}")
            told.add(f"s{i}")
        except ApiError as error:
            assert_typed(error)
    filler.unlink()
    client.new("after")
    told.add("after")
    small.process.send_signal(signal.SIGSTOP)
    try:
        copy = scratch / "copy"
        copy.mkdir()
        for path in small.inside.glob("state.db*"):
            shutil.copy(path, copy / path.name)
        assert records(copy) == told
        assert sqlite3.connect(copy / "state.db").execute("PRAGMA integrity_check").fetchone() == ("ok",)
    finally:
        small.process.send_signal(signal.SIGCONT)
    # A refused session is listed until its sandbox is gone.
    until(lambda: {s["session_id"] for s in client.ps()} == told, what="the end of the refused sessions")


@pytest.mark.parametrize("error", ["EIO", "EROFS", "ENOSPC", "EDQUOT"])
def test_check_J04_a_database_that_cannot_be_written(scratch, error):
    need("strace")
    daemon = Boxd()
    try:
        client = daemon.client()
        client.new("runs")
        with Rpc(daemon.sock) as rpc:
            rpc.call("box_create_session", {"session_id": "r"})
            with Strace(daemon.pid, "-e", "trace=pwrite64,ftruncate,fdatasync,fsync,fallocate",
                        "-e", f"inject=pwrite64,ftruncate,fdatasync,fsync,fallocate:error={error}:when=1+"):
                with pytest.raises(ApiError) as caught:
                    client.new("victim")
                assert_typed(caught.value)
                assert "state database" in caught.value.detail
                with pytest.raises(RpcError, match="state database"):
                    rpc.call("box_create_session", {"session_id": "victim"})
                with pytest.raises(RpcError, match="state database"):
                    rpc.call("box_start_managed_process", {"session_id": "r", "spec": {"command": "cat"}})
                assert client.sh("runs", "echo ok")["stdout"] == "ok\n"
                assert rpc.exec("r", "echo ok")["stdout"] == "ok"
                # What is asked to end ends; that the record stays is said, and put right by the next start.
                client.rm("runs")
                until(lambda: [s["session_id"] for s in client.ps()] == [physical("r")], what="the end of the others")
            works(client)
            rpc.call("box_start_managed_process", {"session_id": "r", "spec": {"command": "cat"}})
        daemon.process.kill()
        daemon.process.wait()
        daemon.start()
        assert [s["session_id"] for s in daemon.client().ps()] == [physical("r")]
        assert "ignoring" in daemon.log()
        daemon.client().rm(physical("r"))
        assert_no_leak(daemon)
    finally:
        daemon.close()


def test_a_durable_session_is_told_as_made_when_its_record_is_on_the_disk(scratch):
    need("strace")
    daemon = Boxd()
    try:
        client = daemon.client()
        client.new("first")  # SQLite syncs what it begins with
        with Strace(daemon.pid, "-e", "trace=fdatasync,fsync", "-e", "inject=fdatasync,fsync:error=EIO:when=1+") as trace:
            client.new("temporary")
            assert trace.calls() == []  # the disk holds up nobody else
            with pytest.raises(ApiError) as caught:
                client.new("kept", durable=True)
            assert_typed(caught.value)
        client.new("kept", durable=True)
        assert client.sh("kept", "echo ok")["stdout"] == "ok\n"
    finally:
        daemon.close()


def test_check_J04_a_state_directory_that_cannot_be_written_is_said(scratch):
    need("unshare", "mount")
    state = scratch / "state"
    state.mkdir()
    script = f'mount -t tmpfs -o size=1m,mode=755,ro box "{state}" && exec "$@"'
    with pytest.raises(RuntimeError, match="file system that is read-only; choose another"):
        Boxd(state=state, prefix=["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh"])
    full = f'mount -t tmpfs -o size=4k,nr_inodes=2,mode=755 box "{state}" && exec "$@"'
    with pytest.raises(RuntimeError, match="the disk of .* is full .*make room"):
        Boxd(state=state, prefix=["unshare", "-m", "--propagation", "private", "sh", "-c", full, "sh"])


# J05: the power goes away.


class Churn:
    """Sessions and processes come and go. `known` is what was told and not taken back."""

    def __init__(self, daemon, hands=3):
        self.daemon, self.known, self.errors = daemon, set(), []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(hands)]

    def _run(self, number):
        rng = random.Random(number)
        try:
            with Rpc(self.daemon.sock, ctx=context(f"ws-{number}"), timeout=120 * SCALE) as rpc:
                mine = []
                while not self._stop.is_set():
                    if len(mine) < 3 or rng.random() < 0.4:
                        name = f"n{rng.randrange(1 << 40)}"
                        spec = {"workspace_quota_mb": 8} if rng.random() < 0.2 else {}
                        rpc.call("box_create_session", {"session_id": name, "memory_mb": 32, **spec})
                        mine.append(name)
                        self.known.add(physical(name, f"ws-{number}"))
                    elif rng.random() < 0.5:
                        rpc.call("box_start_managed_process", {"session_id": rng.choice(mine), "spec": {
                            "command": "cat", "process_id": f"p{rng.randrange(2)}"}})
                    else:
                        name = mine.pop(rng.randrange(len(mine)))
                        self.known.discard(physical(name, f"ws-{number}"))
                        rpc.call("box_delete_session", {"session_id": name})
        except Exception as error:  # noqa: BLE001 - told by the test
            self.errors.append(error)

    def __enter__(self):
        for t in self._threads:
            t.start()
        return self

    def __exit__(self, *exc):
        self._stop.set()
        for t in self._threads:
            t.join(120 * SCALE)


def snapshot(daemon, churn, target):
    """What the disk says at one moment; and what had been told by then."""
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        until(lambda: pathlib.Path(f"/proc/{daemon.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        told = set(churn.known)
        # cp complains about sockets of its own accord; what goes away meanwhile is box-priv's.
        subprocess.run(["cp", "-a", "--sparse=always", f"{daemon.state}/.", str(target)], stderr=subprocess.DEVNULL)
        told &= churn.known
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
    return told


def tear(state, how, rng):
    """The tail of what was written may be lost, or be something else."""
    wal = state / "state.db-wal"
    if how == "whole" or not wal.exists() or wal.stat().st_size == 0:
        return
    size = wal.stat().st_size
    if how == "short":
        os.truncate(wal, rng.randrange(size))
    elif how == "gone":
        wal.unlink()
    else:
        with open(wal, "r+b") as f:
            f.seek(rng.randrange(size))
            f.write(bytes(4096) if how == "zeros" else rng.randbytes(512))


def test_check_J05_after_a_power_cut_at_any_moment_boxd_starts(scratch):
    rng = random.Random(5)
    daemon, copies = Boxd(), []
    try:
        with Churn(daemon) as churn:
            until(lambda: len(churn.known) > 5 or churn.errors, what="some sessions")
            for i in range(CUTS):
                time.sleep(rng.uniform(0, 0.05))
                copy = scratch / f"cut{i}"
                copy.mkdir()
                copies.append((copy, snapshot(daemon, churn, copy)))
        assert not churn.errors, churn.errors
    finally:
        daemon.close()
    kinds = ["whole", "short", "zeros", "noise", "gone"]
    for i, (copy, told) in enumerate(copies):
        how = kinds[i % len(kinds)]
        tear(copy, how, rng)
        if how == "whole":
            probe = scratch / "probe"
            shutil.rmtree(probe, ignore_errors=True)
            probe.mkdir()
            for path in copy.glob("state.db*"):
                shutil.copy(path, probe / path.name)
            assert told <= records(probe), f"cut {i}: told of, and not on the disk"
        # The kernel has nothing of it: another path is another instance.
        again = Boxd(state=copy)
        try:
            client = again.client()
            assert client.ps() == [], f"cut {i}, {how}"
            works(client)
            assert_no_leak(again, what=f"cut {i}, {how}")
            client.close()
        finally:
            again.close()
        shutil.rmtree(copy)


# J06: the database is not what we left.


@pytest.fixture
def kept():
    """A daemon that was killed, with three sessions and a process that wait for the next."""
    adopt_orphans()
    d = Boxd()
    client = d.client()
    with Rpc(d.sock) as rpc:
        for name in ("a", "b", "c"):
            rpc.call("box_create_session", {"session_id": name})
            rpc.exec(name, f"echo {name} > /workspace/f")
        rpc.call("box_start_managed_process", {"session_id": "c", "spec": {"command": "cat"}})
    d.pids = {n: client.receipt(physical(n))["host_pid"] for n in ("a", "b", "c")}
    client.close()
    d.process.kill()
    d.process.wait()
    yield d
    with contextlib.suppress(RuntimeError):
        d.stop()
    d.close()
    reap_orphans()


def names(daemon):
    return sorted(s["session_id"].rpartition("-")[2] for s in daemon.client().ps())


def edit(daemon, statement, *values):
    db = sqlite3.connect(daemon.state / "state.db")
    try:
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute(statement, values)
        db.commit()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        db.close()
    fix_owner(daemon)


def fix_owner(daemon):
    owner = daemon.state.stat()
    for path in daemon.state.glob("state.db*"):
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


BROKEN = {"not json": "{", "empty": "", "null": "null", "no spec": "{}", "wrong types": '{"spec": [], "state": {}}',
          "deep": "[" * 5000, "path": None, "other name": None, "other backend": None, "nul": '{"spec": "\\u0000"}'}


@pytest.mark.parametrize("kind", BROKEN)
def test_check_J06_a_broken_record_costs_its_own_session_alone(kept, kind):
    db = sqlite3.connect(kept.state / "state.db")
    (text,) = db.execute("SELECT record FROM session WHERE id = ?", (physical("b"),)).fetchone()
    db.close()
    record = json.loads(text)
    if kind == "path":
        record["state"]["sandbox"] = "../../../../etc"
    elif kind == "other name":
        record["spec"]["session_id"] = physical("a")
    elif kind == "other backend":
        record["state"]["backend"] = "docker"
    broken = json.dumps(record) if BROKEN[kind] is None else BROKEN[kind]
    edit(kept, "UPDATE session SET record = ? WHERE id = ?", broken, physical("b"))
    kept.start()
    assert names(kept) == ["a", "c"]
    assert "cannot be taken over" in kept.log()
    until(lambda: not alive(kept.pids["b"]), what="the end of what nobody can name")
    with Rpc(kept.sock) as rpc:
        assert rpc.exec("a", "cat /workspace/f")["stdout"] == "a"
        assert rpc.call("box_get_managed_process", {"session_id": "c"})["status"] == "running"
        assert rpc.exec("b", "ls /workspace")["stdout"] == ""  # the name is free
    assert alive(kept.pids["a"]) and alive(kept.pids["c"])


def test_check_J06_a_sandbox_that_two_records_claim_goes_to_one(kept):
    db = sqlite3.connect(kept.state / "state.db")
    rows = dict(db.execute("SELECT id, record FROM session"))
    db.close()
    record, other = json.loads(rows[physical("b")]), json.loads(rows[physical("a")])
    record["state"]["sandbox"] = other["state"]["sandbox"]
    edit(kept, "UPDATE session SET record = ? WHERE id = ?", json.dumps(record), physical("b"))
    kept.start()
    assert "c" in names(kept) and len(set(names(kept))) == len(names(kept))
    with Rpc(kept.sock) as rpc:
        for name in names(kept):
            assert rpc.exec(name, "cat /workspace/f")["stdout"] in ("a", "c")
        for s in rpc.call("box_get_sessions")["sessions"]:
            rpc.call("box_delete_session", {"session_id": s["session_id"]})
    assert_no_leak(kept)


@pytest.mark.parametrize("record", ["{", "{}", '{"spec": {"process_id": "other", "command": "cat"}, "number": 1}'])
def test_check_J06_a_broken_record_of_a_process_costs_the_process_alone(kept, record):
    edit(kept, "UPDATE process SET record = ?", record)
    kept.start()
    assert names(kept) == ["a", "b", "c"]
    with Rpc(kept.sock) as rpc:
        with pytest.raises(RpcError, match="BoxManagedProcessNotFoundError"):
            rpc.call("box_get_managed_process", {"session_id": "c"})
        rpc.call("box_start_managed_process", {"session_id": "c", "spec": {"command": "cat"}})
        assert rpc.exec("c", "cat /workspace/f")["stdout"] == "c"


def damage(state, kind, rng):
    path = state / "state.db"
    data = bytearray(path.read_bytes())
    if kind == "empty":
        data = bytearray()
    elif kind == "half":
        data = data[:len(data) // 2]
    elif kind == "noise":
        data[100:] = rng.randbytes(len(data) - 100)
    elif kind == "header":
        data[:100] = rng.randbytes(100)
    elif kind == "zeros":
        data = bytearray(len(data))
    else:
        for _ in range(8):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


@pytest.mark.parametrize("kind", ["empty", "half", "noise", "header", "zeros", *(f"flip {i}" for i in range(12))])
def test_check_J06_a_damaged_database_stops_nobody(kept, kind):
    """Whatever can still be read is used; what cannot is set aside and told of. Nothing is left running unknown."""
    db = sqlite3.connect(kept.state / "state.db")  # all into one file, so that the damage is there to be found
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    damage(kept.state, kind, random.Random(kind))
    fix_owner(kept)
    kept.start()
    found = names(kept)
    assert set(found) <= {"a", "b", "c"}
    if kind in ("half", "noise", "header", "zeros"):
        assert (kept.state / "state.db.damaged").exists() and "state.db.damaged" in kept.log()
    if not found:
        assert "cannot" in kept.log() or "state.db.damaged" in kept.log() or kind == "empty"
    for name in set("abc") - set(found):
        until(lambda n=name: not alive(kept.pids[n]), what="the end of what nobody can name")
    with Rpc(kept.sock) as rpc:
        for name in found:
            try:
                assert rpc.exec(name, "cat /workspace/f")["stdout"] == name
            except RpcError as error:  # a bit of what it was asked to be has changed: said, and never run as another
                assert kind.startswith("flip") and "BoxSessionConflictError" in str(error), error
        for s in rpc.call("box_get_sessions")["sessions"]:
            rpc.call("box_delete_session", {"session_id": s["session_id"]})
    works(kept.client())
    assert_no_leak(kept)


def test_check_J06_a_database_of_a_newer_boxd_is_left_alone_and_so_are_its_sessions(kept):
    with sqlite3.connect(kept.state / "state.db") as db:
        version = db.execute("PRAGMA user_version").fetchone()[0]
    edit(kept, "PRAGMA user_version = 99")
    before = (kept.state / "state.db").read_bytes()
    with pytest.raises(RuntimeError, match="newer boxd"):
        kept.start()
    assert (kept.state / "state.db").read_bytes() == before
    assert all(alive(pid) for pid in kept.pids.values()), "one that never served ended what was not its own"
    edit(kept, f"PRAGMA user_version = {version}")
    kept.start()
    assert names(kept) == ["a", "b", "c"]


@pytest.mark.parametrize("kind", ["link", "dangling", "directory", "fifo", "not ours"])
def test_check_J06_odd_objects_in_place_of_the_database(kept, kind, scratch):
    victim = scratch / "victim"
    victim.write_text("precious")
    victim.chmod(0o666)
    scratch.chmod(0o777)
    path = kept.state / "state.db"
    for old in kept.state.glob("state.db*"):
        old.rename(scratch / old.name)
    if kind == "link":
        path.symlink_to(victim)
    elif kind == "dangling":
        path.symlink_to(scratch / "nothing")
    elif kind == "directory":
        path.mkdir()
        (path / "file").write_text("x")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.write_text("not ours")
        path.chmod(0o600)
    if kind != "not ours":
        fix_owner(kept)
    kept.start()
    assert victim.read_text() == "precious" and not (scratch / "nothing").exists()
    assert names(kept) == []
    assert (kept.state / "state.db").stat().st_mode & 0o170777 == 0o100600
    until(lambda: not any(alive(pid) for pid in kept.pids.values()), what="the end of what nobody can name")
    works(kept.client())
    assert_no_leak(kept)


# J12: the machine was switched off.


def test_check_J12_after_a_boot_sessions_and_processes_are_told_as_lost(scratch):
    daemon = Boxd()
    try:
        with Rpc(daemon.sock) as rpc:
            for name in ("a", "b"):
                rpc.call("box_create_session", {"session_id": name, "workspace_quota_mb": 8, "persistent": True})
                rpc.call("box_start_managed_process", {"session_id": name, "spec": {"command": "cat"}})
        os.kill(daemon.pid, signal.SIGSTOP)
        state = scratch / "state"
        state.mkdir()
        subprocess.run(["cp", "-a", "--sparse=always", f"{daemon.state}/.", str(state)], stderr=subprocess.DEVNULL)
        os.kill(daemon.pid, signal.SIGCONT)
    finally:
        daemon.close()
    assert any((state / "sessions").iterdir())
    again = Boxd(state=state)
    try:
        for name in ("a", "b"):
            assert physical(name) in again.log() and "cannot be taken over" in again.log()
        with Rpc(again.sock) as rpc:
            assert rpc.call("box_get_sessions")["sessions"] == []
            for action in ("box_get_session", "box_get_managed_process", "box_delete_session"):
                with pytest.raises(RpcError, match="BoxSessionNotFoundError"):
                    rpc.call(action, {"session_id": "a"})
            assert rpc.exec("a", "ls -A /workspace", workspace_quota_mb=8, persistent=True)["stdout"] == ""
            rpc.call("box_delete_session", {"session_id": "a"})
        assert_no_leak(again)
    finally:
        again.close()
    assert records(state) == set()


# J16: an upgrade while sessions run.


class Installed(Boxd):
    """The programs of the build, copied to where they can be replaced."""

    def __init__(self, place):
        self.place, self.program = place, place / "boxd"
        place.mkdir()
        self.install()
        super().__init__()

    def install(self):
        """As package managers do: beside the old one, then in its place."""
        for name in ("boxd", "box-priv", "box-init", "box-fetch", "box-files", "box-guest", "box"):
            if (BUILD / name).exists():
                shutil.copy(BUILD / name, self.place / f"{name}.new")
                os.rename(self.place / f"{name}.new", self.place / name)


@pytest.mark.parametrize("way", ["kill", "usr2"])
def test_check_J16_an_upgrade_in_place_disturbs_nobody(scratch, way):
    daemon = Installed(scratch / "bin")
    try:
        with Rpc(daemon.sock) as rpc:
            rpc.call("box_create_session", {"session_id": "s", "workspace_quota_mb": 8})
            rpc.exec("s", "echo kept > /workspace/f; (while :; do echo beat >> /workspace/beat; sleep 0.02; done) "
                          ">/dev/null 2>&1 &", workspace_quota_mb=8)
            before = rpc.call("box_start_managed_process", {"session_id": "s", "spec": {
                "command": "sh", "args": ["-c", "n=0; while read -r line; do n=$((n + 1)); echo \"$n $line\"; done"]}})
            with relay(daemon.sock, "s") as ws:
                ws.send("one")
                assert ws.recv() == "1 one"
            pid1 = daemon.client().receipt(physical("s"))["host_pid"]
        for name in ("stopped", "kept"):
            daemon.client().new(name, durable=True)
            sleeps = daemon.client().sh(name, f"echo {name} > f; sleep 1000 >/dev/null 2>&1 & echo $!")["stdout"]
        daemon.client().call("POST", "/v1/sessions/stopped/stop")
        for number in (2, 3):
            daemon.install()
            assert " (deleted)" in os.readlink(f"/proc/{daemon.pid}/exe")
            # What runs goes on with what it has, also to start new things.
            works(daemon.client(), f"meanwhile{number}")
            daemon.process.send_signal(signal.SIGKILL if way == "kill" else signal.SIGUSR2)
            daemon.process.wait(60 * SCALE)
            assert alive(pid1)
            daemon.start()
            assert not os.readlink(f"/proc/{daemon.pid}/exe").endswith(" (deleted)")
            with Rpc(daemon.sock) as rpc, contextlib.ExitStack() as stack:
                info = rpc.call("box_get_managed_process", {"session_id": "s"})
                assert (info["status"], info["started_at"]) == ("running", before["started_at"])
                ws = stack.enter_context(relay(daemon.sock, "s"))
                ws.send("next")
                lines = [ws.recv()]
                while not lines[-1].endswith("next") or not lines[-1].startswith(f"{number} "):
                    lines.append(ws.recv())  # a line that may not have been had before the end comes again
                size = int(rpc.exec("s", "wc -l < /workspace/beat", workspace_quota_mb=8)["stdout"])
                until(lambda rpc=rpc, size=size: int(rpc.exec("s", "wc -l < /workspace/beat", workspace_quota_mb=8)
                                                     ["stdout"]) > size, what="the background command goes on")
            works(daemon.client(), f"after{number}")
            client = daemon.client()
            states = {s["session_id"]: s["state"] for s in client.ps()}
            assert (states["kept"], states["stopped"]) == ("ready", "stopped" if number == 2 else "ready")
            for name in ("stopped", "kept"):
                assert client.sh(name, "cat f")["stdout"] == f"{name}\n"
            assert client.sh("kept", f"kill -0 {sleeps}")["exit_code"] == 0
        client = daemon.client()
        assert client.receipt(physical("s"))["host_pid"] == pid1
        for name in (physical("s"), "kept", "stopped"):
            client.rm(name)
        assert_no_leak(daemon)
    finally:
        daemon.close()


def test_check_J16_usr2_lets_answers_out_before_it_ends(scratch):
    """An orderly change of boxd: what is under way is cut off with a word, never in silence."""
    daemon = Boxd()
    try:
        client = daemon.client()
        client.new("s")
        with Rpc(daemon.sock) as rpc:
            rpc.call("box_health", ctx=None)
            assert daemon.stop(signal.SIGUSR2) == 0
            opcode, data = rpc.ws.recv_frame()
            assert opcode == 8 and int.from_bytes(data[:2], "big") == 1001, data
        daemon.start()
        assert daemon.client().sh("s", "echo here")["stdout"] == "here\n"
    finally:
        daemon.close()
