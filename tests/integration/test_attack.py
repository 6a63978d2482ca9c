# SPDX-License-Identifier: Apache-2.0
"""`box doctor --attack`: what it prints and how it ends, that it leaves nothing, and that it finds a wall that is gone."""

import json
import os
import pathlib
import re
import signal
import subprocess
import xml.etree.ElementTree

import pytest
from boxlib import BUILD, CGROUPS, ApiError, Boxd, box
from watch import wait_for

pytestmark = pytest.mark.rootless
IS_ROOT = os.geteuid() == 0
OVER = ("the time for all attempts is over",)
SUMMARY = re.compile(r"^(\d+) checks on native in [0-9.]+ s: (\d+) held, (\d+) broken, (\d+) not promised, (\d+) not tried$",
                     re.M)


def attacked(daemon):
    return [s["session_id"] for s in daemon.client().ps() if s["session_id"].startswith("attack-")]


@pytest.fixture(scope="module")
def daemon():
    made = Boxd()
    yield made
    assert attacked(made) == []
    made.close()


@pytest.fixture(scope="module")
def report(daemon):
    result = box("doctor", "--attack", "--format", "json", sock=daemon.sock)
    assert (result.returncode, result.stderr) == (0, ""), result
    return json.loads(result.stdout)


def of(report, prefix):
    """States of a row; attempts that a slow machine had no time for are left out."""
    return {c["id"]: c["state"] for c in report["checks"]
            if (c["id"] == prefix or c["id"].startswith(prefix + ".")) and c["reason"] not in OVER}


def test_json_has_every_check_with_its_state(report):
    assert set(report) == {"version", "backend", "kernel", "result", "duration_ms", "counts", "checks"}
    assert (report["backend"], report["kernel"], report["result"]) == ("native", "host", "held")
    assert sum(report["counts"].values()) == len(report["checks"]) > 200
    for check in report["checks"]:
        assert set(check) == {"id", "group", "title", "state", "detail", "reason"}
        assert check["group"] == ("abuse" if check["id"][0] in "EF" else "escape")
    ids = [check["id"] for check in report["checks"]]
    assert len(set(ids)) == len(ids)


def test_a_native_session_holds_against_every_escape(report):
    for row in ("A02", "A04", "A06", "A09", "A10", *(f"B{n:02}" for n in range(1, 19))):
        allowed = {"held", "not_tried"} if row in ("B09", "B15", "B16") else {"held"}  # as the kernel has them
        assert of(report, row) and set(of(report, row).values()) <= allowed, (row, of(report, row))
    for row in ("D01", "D02", "D04", "M03"):
        assert set(of(report, row).values()) <= {"held"}, (row, of(report, row))


def test_abuse_is_stopped_where_the_receipt_promises_it(report):
    for row in ("E06", "E08", "E10", "E11"):
        assert set(of(report, row).values()) <= {"held", "not_tried"}, of(report, row)
    wanted = {"held", "not_tried"} if IS_ROOT else {"held", "not_promised", "not_tried"}
    for row in ("E01", "E02", "E03", "E05", "F01"):
        assert set(of(report, row).values()) <= wanted, of(report, row)


def test_text_ends_with_a_summary_and_junit_goes_to_a_file(daemon, tmp_path):
    target = tmp_path / "attack.xml"
    result = box("doctor", "--attack", "--format", "junit", "--output", str(target), sock=daemon.sock)
    assert (result.returncode, result.stderr) == (0, "")
    total, held, broken, not_promised, not_tried = map(int, SUMMARY.fullmatch(result.stdout.rstrip()).groups())
    assert broken == 0 and total == held + not_promised + not_tried
    suite = xml.etree.ElementTree.parse(target).getroot().find("testsuite")
    cases = suite.findall("testcase")
    assert int(suite.get("tests")) == len(cases) == total and int(suite.get("failures")) == 0
    skipped = [case.find("skipped") for case in cases if case.find("skipped") is not None]
    assert len(skipped) == int(suite.get("skipped")) == not_promised + not_tried
    assert all(node.get("message") for node in skipped)


def test_text_without_a_boxd_uses_a_private_one():
    result = box("doctor", "--attack")
    assert result.returncode == 0, result
    assert SUMMARY.search(result.stdout.splitlines()[-1])
    assert re.search(r"^escape: no capabilities$", result.stdout, re.M)
    assert re.search(r"^  held +B01\.unshare-user +EPERM$", result.stdout, re.M)


def test_an_interrupted_attack_removes_its_sessions(daemon):
    env = {**os.environ, "BOX_HOST": f"unix://{daemon.sock}"}
    running = subprocess.Popen([BUILD / "box", "doctor", "--attack"], env=env, stdout=subprocess.PIPE, text=True)
    wait_for(lambda: len(attacked(daemon)) == 2, what="two sessions")
    running.send_signal(signal.SIGINT)
    out, _ = running.communicate(timeout=120)
    assert (running.returncode, out) == (130, "")
    assert attacked(daemon) == []


@pytest.mark.parametrize("args, words", [
    (("--attack", "--format", "xml"), "'xml' is not one of text, json, junit"),
    (("--format", "json"), "want --attack"),
    (("--attack", "--output", "/nonexistent/report"), "/nonexistent/report"),
    (("--attack", "--backend", "docker"), "makes sessions on native, not on docker"),
])
def test_bad_arguments_are_refused(daemon, args, words):
    result = box("doctor", *args, sock=daemon.sock)
    assert (result.returncode, result.stdout) == (125, "") and words in result.stderr, result


def test_a_boxd_elsewhere_is_not_attacked():
    result = box("doctor", "--attack", env={"BOX_HOST": "http://192.0.2.1:5410"})
    assert result.returncode == 125 and "run it there" in result.stderr


# A wall that a receipt promises is taken down behind boxd's back.


def raise_memory(daemon):
    """In every group of this boxd; the limit of memory and swap together goes first. How many there were."""
    raised = 0
    for root, _, files in os.walk(CGROUPS):
        if f"/{daemon.tag()}" not in root:
            continue
        for name, value in (("memory.memsw.limit_in_bytes", "-1"), ("memory.limit_in_bytes", "-1"), ("memory.max", "max")):
            if name in files:
                (pathlib.Path(root) / name).write_text(value)
                raised += 1
    return raised


def has_program(daemon, session):
    """Is box-attack in it? That is the last thing before it is attacked, and after its receipt was read."""
    client = daemon.client()
    try:
        return client.call("GET", f"/v1/sessions/{session}/files?stat=box-attack")["size"] > 100_000
    except ApiError:
        return False
    finally:
        client.close()


@pytest.mark.skipif(not IS_ROOT, reason="only root can write to the control groups of sessions")
def test_a_promised_limit_that_does_not_stand_is_found(daemon, tmp_path):
    target = tmp_path / "attack.xml"
    env = {**os.environ, "BOX_HOST": f"unix://{daemon.sock}"}
    running = subprocess.Popen([BUILD / "box", "doctor", "--attack", "--format", "junit", "--output", target], env=env,
                               stdout=subprocess.PIPE, text=True)
    wait_for(lambda: len(ready := attacked(daemon)) == 2 and all(has_program(daemon, s) for s in ready), what="the attack")
    running.send_signal(signal.SIGSTOP)  # eight attempts at memory follow: they wait until the wall is down
    assert raise_memory(daemon) > 0
    running.send_signal(signal.SIGCONT)
    out, _ = running.communicate(timeout=120)
    assert running.returncode == 1, out
    assert int(SUMMARY.fullmatch(out.rstrip())[3]) > 0
    cases = xml.etree.ElementTree.parse(target).getroot().iter("testcase")
    broken = {case.get("name").split(":")[0]: case.find("failure") for case in cases if case.find("failure") is not None}
    assert {name.split(".")[0] for name in broken} <= {"E02", "E03"}, broken
    assert broken and all("the limit is 128" in failure.get("message") for failure in broken.values()), broken
