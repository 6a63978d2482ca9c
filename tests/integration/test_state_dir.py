# SPDX-License-Identifier: Apache-2.0
"""Which directories boxd takes for its own. Any other stays as it is, to the byte."""

import os
import shutil
import signal
import subprocess

import pytest
from boxlib import BUILD, Boxd, program_for

pytestmark = pytest.mark.rootless
OURS = ("sessions/mine/thesis.txt", "trash/keep.txt", "templates", "etc-off/hosts", "audit/audit.log", "lock")


def picture(top):
    """Everything about a tree that somebody would miss."""
    found = {}
    for path in [top, *sorted(top.rglob("*"))]:
        st = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path)] = (st.st_mode, st.st_uid, st.st_gid, st.st_mtime_ns, content)
    return found


def refused(state, *args):
    done = subprocess.run([str(program_for(args)), "--state-dir", str(state), "--ws-control-port", "0", *args],
                          capture_output=True, text=True, timeout=120)
    return done.returncode != 0 and done.stderr


@pytest.mark.parametrize("backend", ["native", "fake"])
@pytest.mark.parametrize("names", [("notes.txt",), OURS, ("sessions/mine",), ("state.db", "lock"),
                                   ("lost+found/x", "photos/1.jpg"), (".hidden",)])
def test_a_directory_of_somebody_is_refused_and_stays(tmp_path, names, backend):
    state = tmp_path / "theirs"
    for name in names:
        (state / name).parent.mkdir(parents=True, exist_ok=True)
        (state / name).write_text("precious")
    state.chmod(0o750)
    before = picture(state)
    told = refused(state, "--backend", backend)
    assert told and "neither empty nor a state directory of Box" in told and "--state-dir" in told
    assert str(state) in told
    assert picture(state) == before


def test_a_mark_that_is_no_file_counts_for_nothing(tmp_path):
    for kind in ("symlink", "fifo", "directory"):
        state = tmp_path / kind
        state.mkdir()
        (tmp_path / "real").touch()
        (state / "notes").write_text("precious")
        {"symlink": lambda p: p.symlink_to(tmp_path / "real"), "fifo": os.mkfifo,
         "directory": lambda p: p.mkdir()}[kind](state / "box-state")
        before = picture(state)
        assert refused(state, "--backend", "fake")
        assert picture(state) == before


def test_an_empty_one_is_marked_and_known_again(tmp_path):
    state = tmp_path / "state"
    (state / "lost+found").mkdir(parents=True)  # a file system of its own
    (state / "boxd.log").touch()  # `box` opens it before it starts boxd
    daemon = Boxd("--backend", "fake", state=state)
    try:
        assert "Keep nothing else" in (state / "box-state").read_text()
        daemon.process.send_signal(signal.SIGKILL)
        daemon.process.wait(60)
        (state / "note.of.the.operator").touch()
        daemon.start()
        assert (state / "note.of.the.operator").exists()
    finally:
        daemon.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_one_of_an_earlier_version_is_taken_over(how):
    daemon = Boxd()
    try:
        client = daemon.client()
        client.new("s")
        client.close()
        daemon.process.send_signal(how)
        daemon.process.wait(60)
        (daemon.state / "box-state").unlink()  # as those before the mark, which kept no session either
        for newer in ("kept", "etc"):
            (daemon.state / newer).rmdir()
        daemon.start()
        assert [s["session_id"] for s in daemon.client().ps()] == (["s"] if how == signal.SIGKILL else [])
        assert (daemon.state / "box-state").is_file()
        daemon.process.send_signal(signal.SIGTERM)
        daemon.process.wait(60)
        (daemon.state / "box-state").unlink()
        (daemon.state / "more").touch()
        assert "put an empty file 'box-state' there" in refused(daemon.state)
        (daemon.state / "box-state").touch()  # the step that the message names
        daemon.start()
    finally:
        daemon.close()


def test_box_priv_refuses_it_by_itself(tmp_path):
    """It is what removes things; it does not take boxd's word."""
    for name in OURS[:2]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("precious")
    before = picture(tmp_path)
    read, write = os.pipe()
    done = subprocess.run([str(BUILD / "box-priv"), "--sock", str(read), "--state", str(tmp_path), "--tag",
                           "box-0123456789a", "--init", str(BUILD / "box-init")], pass_fds=(read,),
                          capture_output=True, text=True, timeout=120)
    os.close(read)
    os.close(write)
    assert done.returncode == 1 and "neither empty nor a state directory of Box" in done.stderr
    assert picture(tmp_path) == before


def test_box_leaves_no_log_in_a_directory_of_somebody(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root's default state directory is /var/lib/box, which is not this test's to use")
    (tmp_path / "box").mkdir()
    (tmp_path / "box/theirs").touch()
    before = picture(tmp_path)
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "run")}
    env.pop("BOX_HOST", None)
    (tmp_path / "run").mkdir(mode=0o700)
    done = subprocess.run([str(BUILD / "box"), "run", "--session", "s", "--", "true"], env=env, capture_output=True,
                          text=True, timeout=120)
    shutil.rmtree(tmp_path / "run")
    assert done.returncode == 125 and "neither empty nor" in done.stderr
    after = picture(tmp_path)
    before.pop(str(tmp_path)), after.pop(str(tmp_path))  # `run` has come and gone
    assert after == before
