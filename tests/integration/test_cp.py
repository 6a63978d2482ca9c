# SPDX-License-Identifier: Apache-2.0
"""box cp: one file, in or out."""

import os
import subprocess

import pytest
from boxlib import BUILD


@pytest.fixture
def cp(boxd_shared, tmp_path):
    def run(*args, stdin=None, ok=True):
        done = subprocess.run([str(BUILD / "box"), "cp", *map(str, args)], input=stdin, capture_output=True,
                              timeout=120, cwd=tmp_path, env={**os.environ, "BOX_HOST": f"unix://{boxd_shared.sock}"})
        assert (done.returncode == 0) == ok, done
        return done.stdout if ok else done.stderr.decode()

    return run


def test_there_and_back(api, sid, cp, tmp_path):
    data = os.urandom(5 << 20)
    (tmp_path / "a b").write_bytes(data)
    (tmp_path / "a b").chmod(0o755)
    cp("a b", f"{sid}:/workspace/d/x y")
    assert api.sh(sid, "stat -c '%a %s' 'd/x y'")["stdout"] == f"755 {len(data)}\n"
    cp("a b", f"{sid}:d/")
    cp(f"{sid}:d/a b", "back")
    assert (tmp_path / "back").read_bytes() == data
    (tmp_path / "here").mkdir()
    cp(f"{sid}:d/x y", "here")
    assert (tmp_path / "here" / "x y").read_bytes() == data
    assert sorted(os.listdir(tmp_path)) == ["a b", "back", "here"], "no draft is left"


def test_standard_streams(api, sid, cp):
    assert cp("-", f"{sid}:f", stdin=b"from a pipe\n") == b""
    assert cp(f"{sid}:f", "-") == b"from a pipe\n"
    assert cp("-", f"{sid}:empty", stdin=b"") == b"" and cp(f"{sid}:empty", "-") == b""


def test_what_goes_wrong_is_said_and_leaves_nothing(api, sid, cp, tmp_path):
    (tmp_path / "keep").write_text("old")
    assert "no such file" in cp(f"{sid}:none", "keep", ok=False)
    assert (tmp_path / "keep").read_text() == "old" and os.listdir(tmp_path) == ["keep"]
    assert "No such file" in cp("none", f"{sid}:f", ok=False)
    assert "directory" in cp(tmp_path, f"{sid}:f", ok=False)
    assert "not found" in cp("keep", "nobody:f", ok=False)
    assert "SESSION:PATH" in cp("a", "b", ok=False) and "not both" in cp("a:b", "c:d", ok=False)
    (tmp_path / "large").write_bytes(b"x" * (24 << 20))
    for name in ("keep", "large"):  # the answer comes before all is sent
        assert "read-only" in cp(name, f"{sid}:/usr/x", ok=False)
    assert api.sh(sid, "ls -A")["stdout"] == ""
