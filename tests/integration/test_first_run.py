# SPDX-License-Identifier: Apache-2.0
"""What a new user meets: which boxd `box` uses and why, `make run` before `make install`, and what boxd says when it
cannot start."""

import json
import os
import pathlib
import pwd
import signal
import socket
import subprocess

import pytest
from boxlib import BUILD, Boxd
from peerlib import directory

GROUP = "nogroup"
MEMBER, STRANGER = pwd.getpwnam("nobody"), pwd.getpwnam("www-data")


def in_mounts(script):
    """A prefix: what follows runs in mounts of its own, after the script."""
    return ["unshare", "--mount", "sh", "-ec", script + '\nexec "$@"', "sh"]


def as_user(user, *groups):
    how = ["--groups", ",".join(map(str, groups))] if groups else ["--clear-groups"]
    return ["setpriv", "--reuid", str(user.pw_uid), "--regid", str(user.pw_gid), *how]


def run(command, home, **env):
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("BOX_", "XDG_"))}
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120,
                          env={**plain, "HOME": str(home), "TMPDIR": str(home), **env})


@pytest.fixture(scope="module")
def system():
    """A boxd of root that stands where box looks for the system's, in the mounts of the prefix."""
    d = Boxd(env={"BOX_SOCKET_GROUP": GROUP})
    d.view = in_mounts(f"mount -t tmpfs none /run\nmkdir -m 711 /run/box\nln -s {d.sock} /run/box/boxd.sock")
    try:
        yield d
    finally:
        d.close()


def test_a_member_of_the_group_uses_the_systems_boxd(system):
    with directory(uid=MEMBER.pw_uid) as home:
        done = run([*system.view, *as_user(MEMBER), BUILD / "box", "info", "--json"], home)
        assert done.returncode == 0 and not done.stderr, done.stderr
        told = json.loads(done.stdout)
        assert told["endpoint"] == "unix:///run/box/boxd.sock" and "member of its group" in told["because"]
        done = run([*system.view, *as_user(MEMBER), BUILD / "box", "run", "--", "echo", "hi"], home)
        assert (done.returncode, done.stdout, done.stderr) == (0, "hi\n", "")
        done = run([*system.view, *as_user(MEMBER), BUILD / "box", "doctor"], home)
        assert "/run/box/boxd.sock: the system's boxd lets you in" in done.stdout


def test_who_is_not_in_the_group_is_told_once_and_goes_on_without_root(system):
    with directory(uid=STRANGER.pw_uid) as home:
        done = run([*system.view, *as_user(STRANGER), BUILD / "box", "info", "--json"], home)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("sudo usermod -aG nogroup www-data") == 1 and "without root" in done.stderr
        told = json.loads(done.stdout)
        assert told["endpoint"].startswith(f"unix://{home}/box-") and "private" in told["because"]


def test_who_is_in_the_group_from_the_next_login_on_is_told_that(system):
    """The list of groups has the user, the processes of this login do not yet."""
    with directory(uid=MEMBER.pw_uid) as home:
        new = ["setpriv", "--reuid", str(MEMBER.pw_uid), "--regid", str(STRANGER.pw_gid), "--clear-groups"]
        done = run([*system.view, *new, BUILD / "box", "info"], home)
        assert done.returncode == 0 and "next login" in done.stderr and "usermod" not in done.stderr, done.stderr


def test_root_and_a_named_host_are_told_as_such(system, tmp_path):
    done = run([*system.view, BUILD / "box", "info", "--json"], tmp_path)
    assert json.loads(done.stdout)["because"] == "it is the system's, and you are root"
    done = run([BUILD / "box", "info", "--json"], tmp_path, BOX_HOST=f"unix://{system.sock}")
    assert json.loads(done.stdout)["because"] == "BOX_HOST names it"


# `make run`, then `make install`.


def with_users(path, names):
    """Mounts in which the list of users has, of `box`, just that."""
    rows = [r for r in pathlib.Path("/etc/passwd").read_text().splitlines() if not r.startswith("box:")]
    path.write_text("\n".join(rows + names) + "\n")
    path.chmod(0o644)
    return in_mounts(f"mount --bind {path} /etc/passwd")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_state_of_before_the_user_box_goes_on_when_there_is_one(tmp_path, how):
    before = with_users(tmp_path / "before", [])
    after = with_users(tmp_path / "after", ["box:x:61234:61234::/nonexistent:/usr/sbin/nologin"])
    d = Boxd(prefix=before)
    try:
        old = os.stat(d.state).st_uid
        d.client().new("kept")
        d.client().sh("kept", "echo precious > file")
        d.process.send_signal(how)
        d.process.wait(60)
        d.prefix = after
        d.start()
        assert "goes on as uid" in d.log() and os.stat(d.state).st_uid == old != 61234
        if how == signal.SIGKILL:
            assert d.client().sh("kept", "cat file")["stdout"] == "precious\n"
        d.client().new("next")
        assert d.client().sh("next", "echo works")["stdout"] == "works\n"
    finally:
        d.close()


def test_a_new_state_is_the_user_boxs(tmp_path):
    d = Boxd(prefix=with_users(tmp_path / "after", ["box:x:61234:61234::/nonexistent:/usr/sbin/nologin"]))
    try:
        assert os.stat(d.state).st_uid == 61234
    finally:
        d.close()


# Messages.


def refused(*args, prefix=(), **env):
    done = subprocess.run([*prefix, str(BUILD / "boxd"), *map(str, args)], capture_output=True, text=True, timeout=120,
                          env={**os.environ, **env})
    assert done.returncode != 0
    return done.stderr


def test_a_port_that_is_in_use_names_the_setting_and_the_command(tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        said = refused("--state-dir", tmp_path / "s", "--ws-control-port", port)
    for word in (f"port {port} of 127.0.0.1 is in use", "ss -ltnp", "`port`", "--port"):
        assert word in said, said


def test_a_directory_of_another_names_the_owner_and_the_settings(tmp_path):
    (tmp_path / "s").mkdir()
    os.chown(tmp_path / "s", STRANGER.pw_uid, STRANGER.pw_gid)
    said = refused("--state-dir", tmp_path / "s", "--ws-control-port", "0")
    for word in (f"belongs to uid {STRANGER.pw_uid}", "state_dir", "--state-dir", "chown"):
        assert word in said, said


def test_a_place_where_one_may_not_write_names_the_setting(tmp_path):
    with directory(mode=0o755) as top:
        said = refused("--state-dir", f"{top}/s", "--ws-control-port", "0", prefix=as_user(STRANGER))
    assert "may not use" in said and "--state-dir" in said and "$BOX_STATE_DIR" in said, said


def test_a_full_disk_names_the_command_and_the_setting(tmp_path):
    """The disk has room for the directory and not for another file."""
    (tmp_path / "disk").mkdir()
    view = in_mounts(f"mount -t tmpfs -o nr_inodes=2 none {tmp_path}/disk")
    said = refused("--state-dir", tmp_path / "disk/s", "--ws-control-port", "0", prefix=view)
    assert "is full" in said and "df -h" in said and "--state-dir" in said, said
