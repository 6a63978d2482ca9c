# SPDX-License-Identifier: Apache-2.0
"""Bad input, as a list that was asked for: over HTTP, and by the command line with status 125."""

import os
import pathlib
import tempfile
import threading

import pytest
from boxlib import BUILD, ApiError, Boxd, box
from hostlib import SCALE, assert_no_leak


@pytest.fixture(scope="module")
def places():
    with tempfile.TemporaryDirectory(prefix="box-places-") as top:
        os.chmod(top, 0o755)
        p = pathlib.Path(top)
        (p / "allowed/sub").mkdir(parents=True)
        (p / "outside").mkdir()
        (p / "outside/secret").write_text("SECRET")
        (p / "allowed/out").symlink_to(p / "outside")
        daemon = Boxd(env={"BOX_ALLOWED_MOUNT_ROOTS": str(p / "allowed")})
        daemon.places = p
        yield daemon
        daemon.close()


def big_environment():
    return {f"V{i}": "x" * 100_000 for i in range(105)}  # 10 MB


@pytest.mark.parametrize("spec,words", [
    (lambda p: {"bogus": True}, "bogus"), (lambda p: {"workdir": "relative"}, "absolute"), (lambda p: {"memory_mb": 3}, "at least 32"),
    (lambda p: {"host_path": str(p / "allowed/missing")}, "does not exist"),
    (lambda p: {"host_path": str(p / "allowed/out")}, "symbolic link"),
    (lambda p: {"host_path": str(p / "outside")}, "outside"),
    (lambda p: {"env": big_environment()}, "env"),
], ids=["unknown", "workdir", "memory", "missing", "link", "outside", "environment"])
def test_bad_input_over_http(places, spec, words):
    api = places.client()
    with pytest.raises(ApiError) as caught:
        api.new("bad", **spec(places.places))
    assert 400 <= caught.value.status < 500 and words in caught.value.detail, caught.value
    assert api.ps() == []
    assert_no_leak(places)
    assert sorted(os.listdir(places.places / "allowed")) == ["out", "sub"]


CLI = [
    (["run", "--bogus", "--", "true"], "bogus"), (["--bogus"], "bogus"), (["frobnicate"], "frobnicate"), (["run"], ""),
    (["run", "--workdir", "relative", "--", "true"], "absolute"), (["run", "--memory-mb", "3", "--", "true"], "32"),
    (["run", "--memory-mb", "many", "--", "true"], "memory"), (["run", "--memory-mb", "", "--", "true"], "memory"),
    (["run", "--memory-mb", "99999999999999999999", "--", "true"], "memory"), (["run", "--cpus", "0", "--", "true"], "cpus"),
    (["run", "--pids", "-1", "--", "true"], "pids"), (["run", "--network", "maybe", "--", "true"], "network"),
    (["run", "--timeout", "0", "--", "true"], "timeout"), (["run", "--quota-mb", "-5", "--", "true"], "quota"),
    (["run", "--env", "NOVALUE=", "--env", "=x", "--", "true"], "env"), (["run", "--session", "../x", "--", "true"], "id"),
    (["run", "--mount", "{allowed}/missing:/mnt/x", "--", "true"], "does not exist"),
    (["run", "--mount", "{allowed}/out:/mnt/x", "--", "true"], "outside allowed_mount_roots"),
    (["run", "--mount", "{outside}:/mnt/x", "--", "true"], "outside allowed_mount_roots"),
    (["run", "--mount", "{allowed}/sub:/usr", "--", "true"], "reserved"), (["run", "--mount", "nonsense", "--", "true"], "mount"),
    (["run", "--mount", "{allowed}/sub:/mnt/x:exec", "--", "true"], "mount"),
    (["exec", "nobody", "--", "true"], "nobody"), (["rm", "nobody"], "nobody"),
]


@pytest.mark.skipif(not (BUILD / "box").exists(), reason="build/box is not there")
@pytest.mark.parametrize("args,words", CLI, ids=[" ".join(a)[:40] for a, _ in CLI])
def test_bad_input_by_the_command_line(places, args, words):
    p = places.places
    args = [a.format(allowed=p / "allowed", outside=p / "outside") for a in args]
    r = box(*args, sock=places.sock)
    status = {125, 1} if args[0] == "rm" else {125}
    assert r.returncode in status, (r.returncode, r.stdout, r.stderr)
    assert r.stdout == "" and words in r.stderr and len(r.stderr) < 2000, r.stderr
    assert places.client().ps() == []
    assert_no_leak(places)


@pytest.mark.skipif(not (BUILD / "box").exists(), reason="build/box is not there")
def test_bad_input_by_the_command_line_a_huge_environment(places):
    """10 MB do not fit one command line of the host; as much as fits is refused by box."""
    args = []
    for i in range(20):
        args += ["--env", f"V{i}=" + "x" * 100_000]
    r = box("run", *args, "--", "true", sock=places.sock)
    assert r.returncode == 125 and "env" in r.stderr, r
    assert places.client().ps() == []
    assert_no_leak(places)


@pytest.mark.skipif(not (BUILD / "box").exists(), reason="build/box is not there")
def test_bad_input_by_the_command_line_a_path_that_is_swapped(places):
    """The source is a directory and a link out of the list by turns, while box run is at work."""
    p = places.places
    (p / "allowed/flip").mkdir(exist_ok=True)
    (p / "allowed/flip/marker").write_text("inside")
    (p / "allowed/flop").symlink_to(p / "outside")
    stop = threading.Event()

    def swap():
        while not stop.is_set():
            os.rename(p / "allowed/flip", p / "allowed/tmp")
            os.rename(p / "allowed/flop", p / "allowed/flip")
            os.rename(p / "allowed/tmp", p / "allowed/flop")

    t = threading.Thread(target=swap)
    t.start()
    seen = set()
    try:
        for _ in range(30 if SCALE == 1 else 5):
            r = box("run", "--mount", f"{p}/allowed/flip:/mnt/x:ro", "--", "ls", "/mnt/x", sock=places.sock)
            assert "secret" not in r.stdout
            assert r.returncode == 125 and r.stderr or (r.returncode == 0 and r.stdout == "marker\n"), r
            seen.add(r.returncode)
    finally:
        stop.set()
        t.join()
        for name in ("flip", "flop", "tmp"):
            path = p / "allowed" / name
            if path.is_symlink():
                path.unlink()
            elif path.exists():
                (path / "marker").unlink()
                path.rmdir()
    assert 125 in seen
    assert_no_leak(places)
