# SPDX-License-Identifier: Apache-2.0
"""What supervises a program is out of its reach, so whatever it does to it, it ends when it is to end, and alone; and
who asked for that is answered when nothing of it runs any more."""

import pathlib
import shutil
import tempfile
import time

import pytest
from boxlib import BUILD, scratch
from lbwire import eventually
from ssetext import Events
from test_session_processes import Wire

pytestmark = pytest.mark.real

PROGRAM = "/probe/unruly"
BEAT = "/workspace/beat"


@pytest.fixture(scope="module")
def unruly():
    """A mount that has the program."""
    made = pathlib.Path(tempfile.mkdtemp(prefix="box-unruly-"))
    made.chmod(0o755)
    shutil.copy(BUILD / "tests/escape/unruly", made / "unruly")
    yield {"extra_mounts": [{"host_path": str(made), "mount_path": "/probe", "mode": "ro"}]}
    shutil.rmtree(made)


@pytest.fixture
def wire(backend):
    made = Wire(backend)
    yield made
    made.close()


def beats(sh):
    return int(sh(f"cat {BEAT} 2>/dev/null | wc -c")["stdout"])


def stands_still(sh):
    before = beats(sh)
    sh("sleep 0.4")
    return beats(sh) == before


@pytest.mark.parametrize("whom", ["parent", "1"])
def test_nothing_can_be_done_to_the_supervisor(box, unruly, whom):
    sid = box.new(**unruly)
    r = box.x(sid, PROGRAM, whom)
    assert r["outcome"] == "exited", r
    did = dict(line.split() for line in r["stdout"].splitlines())
    assert len(did) == 11 and "done" not in did.values(), r
    assert box.sh(sid, "echo fine; echo fine >&2")["stdout"] == "fine\n"


def test_a_time_out_ends_a_program_that_attacks_its_supervisor(box, unruly):
    sid = box.new(**unruly)
    r = box.x(sid, PROGRAM, "parent", BEAT, timeout_sec=3)
    assert r["outcome"] == "timed_out", r
    assert beats(lambda cmd: box.sh(sid, cmd)) > 0
    assert stands_still(lambda cmd: box.sh(sid, cmd))


def test_a_command_that_attacks_its_supervisor_is_ended_alone(box, unruly):
    sid = box.new(**unruly)

    def sh(cmd):
        return box.sh(sid, cmd)

    def launch(exec_id, *argv):
        box.call("POST", f"/v1/sessions/{sid}/exec", {"argv": argv, "exec_id": exec_id, "detach": True})

    launch("other", "sleep", "1000")
    launch("unruly", PROGRAM, "parent", BEAT)
    eventually(lambda: beats(sh) > 0)
    box.call("DELETE", f"/v1/sessions/{sid}/execs/unruly")
    assert stands_still(sh)
    assert box.call("GET", f"/v1/sessions/{sid}/execs/other")["status"] == "running"


def test_a_reader_that_reads_nothing_does_not_hold_back_a_kill(box):
    sid = box.new()
    path = f"/v1/sessions/{sid}/execs/slow"

    def stopped():
        before = box.call("GET", path)["output"]["end"]
        time.sleep(0.2)
        return before > 0 and box.call("GET", path)["output"]["end"] == before

    with Events(box.backend.daemon.sock, "POST", f"/v1/sessions/{sid}/exec", {"cmd": "yes", "exec_id": "slow"}) as events:
        eventually(stopped)
        box.call("DELETE", path)
        # It was not cut off for that, and is told of the end.
        *_, (kind, _, data) = events
        assert (kind, data["outcome"]) == ("exit", "signaled")


def test_a_process_that_attacks_its_supervisor_is_stopped_alone(wire, unruly):
    def sh(cmd):
        return wire.sh(cmd, **unruly)

    wire.new(**unruly)
    wire.run("sleep", "1000", process_id="other")
    wire.run(PROGRAM, "parent", BEAT)
    eventually(lambda: beats(sh) > 0)
    wire.rpc.call("box_stop_managed_process", {"session_id": "s", "process_id": "default"})
    assert stands_still(sh)
    assert wire.info("other")["status"] == "running"


def test_who_stops_the_one_that_is_to_kill_it_for_its_quota_does_not_live_on(box, unruly):
    """Either that one was quicker, or it has not killed anybody: then the session goes."""
    def size():
        return sum(f.stat().st_size for f in made.iterdir())

    def ended():
        before = size()
        time.sleep(2)
        return before > 1 << 20 and size() == before

    with scratch("box-quota-", 0o777) as made:
        sid = box.new(**unruly, host_path=str(made), host_path_mode="rw", workspace_quota_mb=1)
        # It writes for as long as it lives: a size that stays is the proof that it does not.
        box.sh(sid, f"setsid {PROGRAM} all {BEAT} >/dev/null 2>&1 &")
        assert eventually(ended, 100)
