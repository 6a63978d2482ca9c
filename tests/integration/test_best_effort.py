# SPDX-License-Identifier: Apache-2.0
"""What was asked for and cannot be enforced is an error on the command line and in /v1, unless the caller takes a
session without it; what nobody asked for never is."""

import os
import subprocess

import pytest
from boxlib import BUILD, ApiError, Boxd, scratch

USER = 12345
AS_USER = ["setpriv", "--reuid", str(USER), "--regid", str(USER), "--clear-groups"]
ASKED = {"memory_mb": 64, "cpus": 1, "pids_limit": 20, "workspace_quota_mb": 16}
OPTIONS = {"memory_mb": "--memory-mb", "cpus": "--cpus", "pids_limit": "--pids", "workspace_quota_mb": "--quota-mb"}

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="daemons of root and of a user are compared")


@pytest.fixture(scope="module")
def unlimited():
    """A daemon of an ordinary user, to whom no control group was given."""
    with scratch("box-effort-") as top:
        state = top / "state"
        state.mkdir()
        os.chown(state, USER, USER)
        daemon = Boxd(state=state, prefix=AS_USER)
        client = daemon.client()
        try:
            client.new("plain")
            if not client.get("plain")["unenforced"]:
                pytest.skip("this host gives ordinary users control groups")
            client.rm("plain")
            yield daemon, client
        finally:
            client.close()
            daemon.close()


def box(daemon, *args):
    return subprocess.run([str(BUILD / "box"), *args], env={**os.environ, "BOX_HOST": f"unix://{daemon.sock}"},
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)


def test_a_default_is_never_a_reason_to_refuse(unlimited):
    daemon, client = unlimited
    assert client.new("d")["memory_mb"] == 512
    told = {u["field"]: u["reason"] for u in client.get("d")["unenforced"]}
    client.rm("d")
    assert set(told) == {"memory_mb", "cpus", "pids_limit"} and all(told.values())  # no quota was asked for
    done = box(daemon, "run", "--", "echo", "runs")
    assert (done.returncode, done.stdout, done.stderr) == (0, "runs\n", "")


@pytest.mark.parametrize("field", ASKED)
def test_what_was_asked_for_and_is_not_enforced_is_an_error(unlimited, field):
    daemon, client = unlimited
    with pytest.raises(ApiError) as error:
        client.new("e", **{field: ASKED[field]})
    assert error.value.status == 501 and error.value.detail.startswith(f"{field} cannot be enforced here: ")
    assert "--best-effort" in error.value.detail and client.ps() == []
    done = box(daemon, "run", OPTIONS[field], str(ASKED[field]), "--", "echo", "runs")
    assert (done.returncode, done.stdout) == (125, "") and f"{field} cannot be enforced here" in done.stderr


@pytest.mark.parametrize("field", ASKED)
def test_best_effort_runs_and_says_so(unlimited, field):
    daemon, client = unlimited
    made = client.new("b", best_effort=True, **{field: ASKED[field]})
    assert field in {u["field"] for u in made["unenforced"]} and made[field] == ASKED[field]
    client.rm("b")
    done = box(daemon, "run", OPTIONS[field], str(ASKED[field]), "--best-effort", "--", "echo", "runs")
    assert (done.returncode, done.stdout) == (0, "runs\n")
    assert done.stderr.startswith(f"box: {field} is not enforced: ") and done.stderr.count("\n") == 1


def test_an_image_is_an_error_or_is_told(unlimited):
    daemon, client = unlimited
    done = box(daemon, "run", "--image", "debian:12", "--", "true")
    assert done.returncode == 125 and "image 'debian:12' is not available" in done.stderr
    done = box(daemon, "run", "--image", "debian:12", "--best-effort", "--", "echo", "runs")
    assert (done.returncode, done.stdout) == (0, "runs\n") and "image is not enforced" in done.stderr
    assert client.new("i", image="host")["session_id"] == "i"
    assert "image" not in {u["field"] for u in client.get("i")["unenforced"]}
    client.rm("i")


def test_mcp_run_refuses_too(unlimited):
    daemon, _ = unlimited
    done = box(daemon, "mcp", "run", "--memory-mb", "64", "--retry-delays", "1", "--", "true")
    assert done.returncode != 0 and "memory_mb cannot be enforced here" in done.stderr
    done = box(daemon, "mcp", "run", "--memory-mb", "64", "--network", "off", "--best-effort", "--", "true")
    assert "cannot be enforced" not in done.stderr and "memory_mb is not enforced: " in done.stderr


def test_best_effort_is_true_or_false(unlimited):
    _, client = unlimited
    with pytest.raises(ApiError) as error:
        client.new("t", best_effort="yes")
    assert (error.value.code, error.value.detail) == ("invalid", "best_effort must be true or false")


def test_a_host_that_enforces_everything_has_nothing_to_tell(boxd_shared, api):
    made = api.new("full", **ASKED)
    try:
        assert made["unenforced"] == [] and api.get("full")["unenforced"] == []
        assert all(limit["enforced"] for name, limit in api.receipt("full")["limits"].items()
                   if name in ("memory_bytes", "pids", "cpu_quota_us_per_100ms", "disk_bytes"))
    finally:
        api.rm("full")


def test_a_caller_that_wants_a_limit_does_not_join_a_session_without_it(unlimited):
    daemon, client = unlimited
    client.new("j", best_effort=True, memory_mb=64)
    with pytest.raises(ApiError, match="memory_mb cannot be enforced here") as error:
        client.new("j", memory_mb=64)
    assert error.value.status == 501
    client.new("j")  # asks for no limit
    done = box(daemon, "run", "--session", "j", "--memory", "64m", "--", "echo", "runs")
    assert (done.returncode, done.stdout) == (125, "")
    client.rm("j")


def test_a_kept_session_without_its_limits_is_there_after_a_restart(unlimited):
    daemon, client = unlimited
    limits = ("--memory", "64m", "--quota-mb", "16", "--best-effort")
    assert box(daemon, "run", "--session", "k", *limits, "--", "sh", "-c", "echo mine >f").returncode == 0
    daemon.stop()
    daemon.start()
    assert box(daemon, "exec", "k", "--", "cat", "f").stdout == "mine\n"
    assert box(daemon, "run", "--session", "k", *limits, "--", "cat", "f").stdout == "mine\n"
    assert box(daemon, "rm", "k").returncode == 0
