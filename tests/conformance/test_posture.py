# SPDX-License-Identifier: Apache-2.0
"""box-attack on every backend, held against the receipt: a check fails only where the receipt names the
wall that is missing, and a wall that the receipt calls missing is missing. And what a command inherits, on every
backend against the one golden file of it."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import pytest
from boxlib import BUILD, ROOT

sys.path.insert(0, str(ROOT / "tests" / "escape"))

from escapelib import posture, run_probe  # noqa: E402
from posturelib import USER, check_posture, normal_posture  # noqa: E402

pytestmark = pytest.mark.real

# Which checks show that a wall is missing. No check of the probe sees Landlock, the second refusal, or
# who else on the host has an id.
CHECKS = {
    "user-namespace": {"A06.user"},
    "cgroup-namespace": {"A06.cgroup"},
    "time-namespace": {"A06.time"},
    "read-only-dev": {"C05./dev"},
    "no-control-groups": {"C04"},
    "mount-flags": {"C07.flags"},
    "mount-paths": {"C07.root"},
    "first-process": {"A10.environ", "A10.maps", "A10.auxv", "A10.fd/0"},
    "priorities": {"B18.nice", "B18.oom_score_adj"},
    "masks": {"C02.cmdline", "C05", "C12.version"},
    "landlock": set(),
    "private-ids": set(),
    "second-refusal-of-namespaces": set(),
}

# Refusals that the probe does not know: none is weaker than what it expects.
OTHERWISE = {
    "native": {"C07.root": "the mount table shows where a workspace is; the caller has named it, or boxd's state is"},
    "engine": {"B09.x32": "killed by the engine's filter, where ours says that there is no such call"},
    "gvisor": {
        "A02.CapAmb": "its status has no such line; the other four sets are empty",
        "A04": "its status has no NoNewPrivs; the receipt asks by prctl(2)",
        **{f"A06.{ns}": "it has no such link: its kernel is the session's own"
           for ns in ("cgroup", "ipc", "mnt", "time", "uts")},
        "B17.securebits": "EINVAL: it has none",
        "B09.int80": "answers with an error of its own table; there is no host kernel behind it",
        "B16.landlock": "refused, where it has none",
        "B18.fifo": "EINVAL: it has no real-time class",
        **{f"C03.{d}": "EACCES before EROFS" for d in ("/", "/usr", "/etc", "/bin", "/lib", "/proc")},
        "C05./dev": "EACCES: root's, and programs are not root",
    },
}
TESTED_GVISOR = "0.0~20221219"


@pytest.fixture(scope="module")
def probe():
    made = pathlib.Path(tempfile.mkdtemp(prefix="box-probe-"))
    made.chmod(0o755)
    shutil.copy(BUILD / "box-attack", made / "probe")
    yield {"host_path": str(made), "mount_path": "/probe", "mode": "ro"}
    shutil.rmtree(made)


def kind_of(box):
    return "gvisor" if box.runtime else "native" if box.name == "native" else "engine"


def is_tested_gvisor():
    return TESTED_GVISOR in subprocess.run(["runsc", "--version"], capture_output=True, text=True, check=True).stdout


def missing(receipt):
    rows = receipt.get("weaker_than_native", [])
    assert all(row["reason"] for row in rows)
    return {row["wall"] for row in rows}


def check(box, probe):
    sid = box.new(extra_mounts=[probe])
    report = run_probe(box, sid, "all", timeout_sec=300)
    walls, otherwise = missing(box.receipt(sid)), OTHERWISE[kind_of(box)]
    assert walls <= set(CHECKS), "a wall without a row here"
    failed = {name for name, (state, _) in report.lines.items() if state == "FAIL"}
    good = [name for name, (state, _) in report.lines.items() if state == "ok"]
    print(f"{box.name} {box.runtime}: {len(good)} of {len(report.lines)} checks as native's, missed {sorted(failed)}")

    allowed = set(otherwise).union(*(CHECKS[wall] for wall in walls))
    assert failed <= allowed, {name: report.lines[name] for name in failed - allowed}
    stands = {wall for wall in walls if CHECKS[wall] and not CHECKS[wall] & failed}
    assert not stands, f"the receipt calls walls missing that stand: {stands}"
    # What is answered otherwise depends on versions; on the one that was tested, all of the table is needed.
    if kind_of(box) == "gvisor" and is_tested_gvisor():
        known = {name for name in otherwise if name in report.lines} - {"B16.landlock", "C03./lib"}
        assert known <= failed, f"no longer answered otherwise: {known - failed}"


def test_a_check_fails_only_where_the_receipt_names_the_wall(box, probe):
    check(box, probe)


@pytest.mark.gvisor
def test_a_check_fails_only_where_the_receipt_of_an_engine_with_gvisor_names_the_wall(box, probe):
    check(box, probe)


def variants(box):
    kind = {"native": USER, "runsc": ("gvisor of ours",), "docker": ("engine",), "podman": ("engine", "podman")}
    kind = kind[box.name]
    return ("gvisor", *(v.replace("engine", "gvisor of an engine") for v in kind)) if box.runtime else kind


def check_command(box, probe):
    sid = box.new(extra_mounts=[probe])
    text, own = posture(box, sid), box.receipt(sid).get("uid")
    lines = normal_posture(text.replace(str(own), "<id>") if own else text, box.backend.daemon.state)
    # Mounts are the image's and the backend's; the first process is another one.
    check_posture(lines, *variants(box), part=lambda line: not line.startswith(("mount ", "pid1 ", "init ")))


def test_a_command_inherits_the_same_on_every_backend(box, probe):
    check_command(box, probe)


@pytest.mark.gvisor
def test_a_command_inherits_the_same_on_an_engine_with_gvisor(box, probe):
    check_command(box, probe)


@pytest.mark.engine
def test_namespaces_and_ids_are_the_sessions_own(box):
    """User, time and cgroup namespaces are box-guest's work: no engine gives them to one container."""
    sid = box.new()
    receipt = box.receipt(sid)
    refused = {wall for wall in missing(receipt) if wall.endswith("-namespace")}
    if refused:
        pytest.skip(f"this host refuses: {[r for r in receipt['weaker_than_native'] if r['wall'] in refused]}")
    assert set(receipt["namespaces"].values()) == {"private"}
    uid = receipt["uid"]
    assert uid >= 2_000_000_000
    ask = ("cat /proc/self/uid_map /proc/self/gid_map; for n in user time cgroup; do readlink /proc/self/ns/$n; done; "
           "cat /proc/uptime")
    first, second = (box.sh(sid, ask)["stdout"].splitlines() for _ in range(2))
    assert [line.split() for line in first[:2]] == [[str(uid), str(uid), "1"]] * 2
    assert first[:5] == second[:5]  # one for all commands
    up, later = float(first[5].split()[0]), float(second[5].split()[0])
    assert 0 <= up <= later and up < float(pathlib.Path("/proc/uptime").read_text().split()[0])
    # The clock begins with the first process, not after it: else that would have begun in the far future.
    assert int(box.sh(sid, "cut -d ' ' -f 22 /proc/1/stat")["stdout"]) <= up * os.sysconf("SC_CLK_TCK")


@pytest.mark.engine
def test_commands_of_one_session_reach_each_other(box, sid):
    box.sh(sid, "sleep 1000 >/dev/null 2>&1 & echo $! > /workspace/pid")
    assert box.sh(sid, "kill -0 $(cat /workspace/pid) && ls /proc/$(cat /workspace/pid)/fd")["exit_code"] == 0
    assert box.sh(sid, "kill $(cat /workspace/pid)")["exit_code"] == 0


@pytest.mark.engine
def test_sys_holds_nothing_but_the_sessions_own_group(box, sid):
    listed = box.sh(sid, "find /sys -path /sys/fs/cgroup -prune -o ! -type d -print; ls -A /sys/block")
    assert listed["stdout"] == "" and listed["exit_code"] == 0


@pytest.mark.engine
def test_the_receipt_says_what_a_writable_root_costs(box):
    """Programs are root there, and nobody without privileges can make a user namespace with root in it."""
    receipt = box.receipt(box.new(read_only_rootfs=False))
    why = {row["wall"]: row["reason"] for row in receipt["weaker_than_native"]}
    assert receipt["uid"] == 0 and "root can be written to" in why["private-ids"]
    assert receipt["namespaces"]["user"] == "shared with the host"
    assert "programs are root" in why["user-namespace"] and "programs are root" in why["time-namespace"]
