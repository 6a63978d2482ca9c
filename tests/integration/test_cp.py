# SPDX-License-Identifier: Apache-2.0
"""box cp: files, directories and tar archives, in and out."""

import io
import os
import subprocess
import tarfile

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


def test_a_dash_is_a_tar_archive(api, sid, cp, tmp_path):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        info = tarfile.TarInfo("d/f")
        info.size = 5
        tar.addfile(info, io.BytesIO(b"bytes"))
    api.sh(sid, "mkdir -p /workspace/here")
    assert cp("-", f"{sid}:/workspace/here", stdin=archive.getvalue()) == b""
    assert api.sh(sid, "cat here/d/f")["stdout"] == "bytes"
    for path in ("/workspace/here/d", "here/d"):
        with tarfile.open(fileobj=io.BytesIO(cp(f"{sid}:{path}", "-"))) as tar:
            assert [os.path.normpath(n) for n in tar.getnames()] == ["d", "d/f"]
            assert tar.extractfile("./d/f").read() == b"bytes"
    assert cp("/dev/stdin", f"{sid}:raw", stdin=b"from a pipe\n") == b""
    assert api.sh(sid, "cat raw")["stdout"] == "from a pipe\n"


@pytest.fixture
def tree(tmp_path):
    top = tmp_path / "src"
    (top / "a" / "empty").mkdir(parents=True)
    (top / "a" / "file").write_bytes(os.urandom(300_000))
    (top / "tool").write_text("#!/bin/sh\necho run\n")
    (top / "tool").chmod(0o755)
    (top / "link").symlink_to("a/file")
    (top / "x y").write_text("blank")
    (top / "none").write_text("")
    (top / "none").chmod(0o444)
    return top


def snapshot(top):
    def look(path):
        if path.is_symlink():
            return os.readlink(path)
        return path.is_dir() or (path.stat().st_mode & 0o777, path.read_bytes())

    return {str(path.relative_to(top)): look(path) for path in sorted(top.rglob("*"))}


def test_a_tree_goes_in_and_comes_back_as_it_was(api, sid, cp, tmp_path, tree):
    cp("-r", tree, f"{sid}:/workspace/new")  # becomes it
    cp("-r", tree, f"{sid}:/workspace/new")  # goes into it
    got = api.sh(sid, "cd new; ./tool; readlink link; ls src/a; ./src/tool")["stdout"]
    assert got == "run\na/file\nempty\nfile\nrun\n"
    api.sh(sid, "mkdir dots")
    cp("-r", f"{tree}/.", f"{sid}:dots")  # only what is in it
    assert "tool" in api.sh(sid, "ls dots")["stdout"]
    cp("-r", f"{sid}:/workspace/new/src", "back")
    assert snapshot(tmp_path / "back") == snapshot(tree)
    (tmp_path / "into").mkdir()
    cp("-r", f"{sid}:dots", "into")
    assert snapshot(tmp_path / "into" / "dots") == snapshot(tree)


def test_a_tree_of_many_files_comes_out_whole(api, sid, cp, tmp_path):
    api.sh(sid, "mkdir many && cd many && for i in $(seq 1040); do : > f$i; done")
    cp("-r", f"{sid}:many", "many")
    assert len(os.listdir(tmp_path / "many")) == 1040


def test_nothing_that_is_here_is_replaced_or_followed(api, sid, cp, tmp_path):
    (tmp_path / "outside").mkdir()
    api.sh(sid, f"mkdir -p t && ln -s {tmp_path}/outside t/a")
    cp("-r", f"{sid}:t", "t")
    api.sh(sid, "rm t/a && mkdir t/a && echo planted > t/a/f")
    assert "exists; remove it, or choose another place" in cp("-r", f"{sid}:t", ".", ok=False)
    assert os.listdir(tmp_path / "outside") == []


def test_what_cannot_be_copied_is_told_and_the_rest_is(api, sid, cp, tmp_path, tree):
    os.mkfifo(tree / "fifo")
    said = cp("-r", tree, f"{sid}:new", ok=False)
    assert "skipped" in said and "fifo" in said
    assert api.sh(sid, "./new/tool")["stdout"] == "run\n"
    api.sh(sid, "mkdir odd && mkfifo odd/p && echo x > odd/f")
    assert "skipped 'odd/p'" in cp("-r", f"{sid}:odd", "odd", ok=False)
    assert os.listdir(tmp_path / "odd") == ["f"]
    assert "no such file" in cp("-r", f"{sid}:nothing", "x", ok=False)
    assert "not found" in cp("-r", tree, "nobody:x", ok=False)
    (tmp_path / "plain").write_text("p")
    cp("-r", "plain", f"{sid}:plain")
    assert "no directory" in cp("-r", tree, f"{sid}:plain", ok=False)


def test_what_goes_wrong_is_said_and_leaves_nothing(api, sid, cp, tmp_path):
    (tmp_path / "keep").write_text("old")
    missing = cp(f"{sid}:none", "keep", ok=False)
    assert "no such file" in missing and "list of its directory" in missing and "?" not in missing, missing
    assert (tmp_path / "keep").read_text() == "old" and os.listdir(tmp_path) == ["keep"]
    assert "No such file" in cp("none", f"{sid}:f", ok=False)
    assert "is a directory; add -r" in cp(tmp_path, f"{sid}:f", ok=False)
    assert "not found" in cp("keep", "nobody:f", ok=False)
    assert "SESSION:PATH" in cp("a", "b", ok=False) and "not both" in cp("a:b", "c:d", ok=False)
    (tmp_path / "large").write_bytes(b"x" * (24 << 20))
    for name in ("keep", "large"):  # the answer comes before all is sent
        assert "read-only" in cp(name, f"{sid}:/usr/x", ok=False)
    assert api.sh(sid, "ls -A")["stdout"] == ""
