# SPDX-License-Identifier: Apache-2.0
"""Tables A and B of the test catalogue inside containers: box-attack, as on the native backend. What a
host refuses is all that may be missing (test_posture.py has the rest); what upstream's own flags give is measured
beside it."""

import os
import pathlib
import re
import shutil
import sys
import tempfile

import pytest
from boxlib import BUILD, ROOT

sys.path.insert(0, str(ROOT / "tests" / "escape"))

from escapelib import Report, probe_argv, ran, run_probe, stream  # noqa: E402

pytestmark = [pytest.mark.real, pytest.mark.engine]
ROWS = re.compile(r"[AB]\d")

# Killed by the engine's filter, where ours says that there is no such call.
OTHERWISE = {"B09.x32"}


@pytest.fixture(scope="module")
def probe():
    made = pathlib.Path(tempfile.mkdtemp(prefix="box-probe-"))
    made.chmod(0o755)
    shutil.copy(BUILD / "box-attack", made / "probe")
    yield {"host_path": str(made), "mount_path": "/probe", "mode": "ro"}
    shutil.rmtree(made)


def refused(box, sid):
    """Namespaces that this host does not let box-guest make; the receipt says why."""
    walls = {row["wall"] for row in box.receipt(sid)["weaker_than_native"]}
    return {f"A06.{ns}" for ns in ("user", "time", "cgroup") if f"{ns}-namespace" in walls}


def failed(report):
    return {k for k, (state, _) in report.lines.items() if state == "FAIL" and ROWS.match(k)}


def test_A_B_every_check_that_an_engine_can_pass_passes(box, probe):
    sid = box.new(extra_mounts=[probe])
    report = run_probe(box, sid, "all", timeout_sec=300)
    assert failed(report) <= OTHERWISE | refused(box, sid), {k: report.lines[k] for k in failed(report)}
    assert len([k for k in report.lines if ROWS.match(k)]) > 120
    assert report.lines["B09.x32"][1] in ("SIGSYS", "ENOSYS")
    assert {v[1] for v in report.row("B02").values()} <= {"EPERM", "ENOSYS"}
    for row in ("A02", "A04", "A09", "A10", "B01", "B04", "B05", "B07", "B10", "B14", "B18"):
        report.check(row)
    run_probe(box, sid, "uring").check("B04b", least=2)


def test_check_C02_what_the_kernel_says_about_the_host_is_masked(box, probe):
    report = run_probe(box, box.new(extra_mounts=[probe]), "files", timeout_sec=300)
    report.check("C02", least=42)


def test_check_A03_every_way_in_has_the_same_posture(box, probe):
    sid = box.new(extra_mounts=[probe])
    argv = probe_argv("identity")
    want = run_probe(box, sid, "identity", timeout_sec=300).states()
    daemon = box.backend.daemon
    for how, text in (("shell", ran(box.sh(sid, " ".join(argv)))["stdout"]),
                      ("long script", ran(box.sh(sid, "#" * 200_000 + "\n" + " ".join(argv)))["stdout"]),
                      ("stream", ran(stream(daemon.sock, sid, *argv, stdin=b"x"))["stdout"]),
                      ("terminal", ran(stream(daemon.sock, sid, *argv, tty=True))["stdout"])):
        assert Report(text).states() == want, how


def test_check_A03_a_writable_root_is_no_weaker(box, probe):
    """Programs are the image's root there: of all the walls that is one, and the others stand."""
    sid = box.new(extra_mounts=[probe], read_only_rootfs=False)
    report = run_probe(box, sid, "identity", timeout_sec=300)
    for row in ("A02", "A04"):
        report.check(row)
    assert not failed(run_probe(box, sid, "kernel", timeout_sec=300)) - OTHERWISE


def test_check_B08_nothing_types_into_the_terminal(box, probe):
    sid = box.new(extra_mounts=[probe])
    result = ran(stream(box.backend.daemon.sock, sid, *probe_argv("tty"), tty=True))
    Report(result["stdout"]).check("B08", least=5)


def status_of(path):
    return dict(line.split(":\t", 1) for line in path.read_text().splitlines() if ":\t" in line)


def ids_of(marker):
    """Every id of every process that is in one pid namespace with a program of that command line."""
    spaces, all_of = {}, []
    for proc in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            space = os.stat(proc / "ns/pid").st_ino
            if (proc / "cmdline").read_bytes() == marker:
                spaces[space] = proc
            all_of.append((space, status_of(proc / "status")))
        except OSError:
            continue
    assert len(spaces) == 1
    return {int(n) for space, lines in all_of if space in spaces for key in ("Uid", "Gid") for n in lines[key].split()}


def test_check_A01_ids_seen_from_the_host_are_private_and_disjoint(box):
    seen = []
    for n, sid in enumerate((box.new(), box.new())):
        box.sh(sid, f"sleep {os.getpid()}{n} >/dev/null 2>&1 &")
        ids = ids_of(f"sleep\0{os.getpid()}{n}\0".encode())
        assert ids and min(ids) >= 2_000_000_000, ids
        seen.append(ids)
    assert not seen[0] & seen[1]


def upstream(engine, probe):
    """What section 6.1 of the wire specification starts, word for word, with the probe as its program."""
    made = engine.api("POST", "/v1.40/containers/create", {
        "Image": "box-test:latest", "Cmd": probe_argv("all"), "HostConfig": {
            "NetworkMode": "none", "NanoCpus": 1000000000, "Memory": 512 << 20, "PidsLimit": 128,
            "ReadonlyRootfs": True, "Tmpfs": {"/tmp": "size=64m"}, "Binds": [f"{probe['host_path']}:/probe:ro"],
            # Podman does not start here without.
            **({"Ulimits": [{"Name": n, "Soft": 1024, "Hard": 1024} for n in ("nofile", "nproc")]}
               if engine.kind == "podman" else {})}})["Id"]
    try:
        engine.api("POST", f"/v1.40/containers/{made}/start")
        engine.api("POST", f"/v1.40/containers/{made}/wait", timeout=300)
        raw, text, at = engine.api("GET", f"/v1.40/containers/{made}/logs?stdout=1", raw=True), b"", 0
        while at + 8 <= len(raw):  # in frames: a kind, a length, bytes
            size = int.from_bytes(raw[at + 4:at + 8], "big")
            text += raw[at + 8:at + 8 + size]
            at += 8 + size
    finally:
        engine.api("DELETE", f"/v1.40/containers/{made}?force=1")
    return Report(text.decode())


def test_A_B_the_posture_beats_that_of_upstream(box, probe):
    ours = run_probe(box, box.new(extra_mounts=[probe]), "all", timeout_sec=300)
    theirs = upstream(box.engine, probe)
    mine, others = failed(ours), failed(theirs)
    print(f"{box.name}: {len(mine)} of {len(ours.lines)} checks missed, {len(others)} with upstream's flags")
    # Being killed for a call of another architecture is no worse than being told that there is none.
    assert mine - {"B09.x32"} <= others
    assert len(mine) * 5 < len(others), (mine, others)
    assert {"A02.CapEff", "A04"} <= others
