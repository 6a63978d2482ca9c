# SPDX-License-Identifier: Apache-2.0
"""LangBot's default configuration: host_root is ./data/box, and means the directory that LangBot runs in."""

import contextlib
import os
import pathlib

import pytest
from boxlib import Boxd
from lbwire import Rpc, free_port
from peerlib import directory, elsewhere

# As LangBot 4.11 sends it without a setting of anybody's.
DEFAULT = {"local": {"host_root": "./data/box", "default_workspace": "",
                     "allowed_mount_roots": ["./data/box", "/tmp"]}}


@contextlib.contextmanager
def daemon(*args, **options):
    port = free_port()
    d = Boxd("--ws-control-port", str(port), *args, **options)
    try:
        yield d, ("127.0.0.1", port)
    finally:
        d.close()


@pytest.fixture(scope="module")
def served():
    with daemon() as both:
        yield both


def langbot(address, config=None):
    """What LangBot does with its default workspace: initialise, make it its own, run a command there."""
    with Rpc(address) as r:
        r.call("box_init", config or DEFAULT, ctx=None)
        place = os.path.realpath("data/box/default")
        r.call("box_create_session", {"session_id": "s", "host_path": place})
        out = r.call("box_exec", {"session_id": "s", "host_path": place, "cmd": "echo hi > made; pwd"})
        r.call("box_delete_session", {"session_id": "s"})
        return [out["exit_code"], out["stdout"], pathlib.Path(place, "made").read_text()]


WORKS = [0, "/workspace", "hi\n"]


@pytest.mark.parametrize("wire", ["tcp", "unix"])
def test_relative_root_is_where_the_peer_runs(served, wire):
    d, tcp = served
    with directory() as cwd:
        assert elsewhere(lambda: langbot(tcp if wire == "tcp" else d.sock), cwd) == WORKS
        assert os.path.isfile(cwd + "/data/box/default/made")
        assert not os.path.exists("/data/box/default")


@pytest.mark.parametrize("parent", ["/root", "/var/lib"])
def test_relative_root_outside_of_the_built_in_roots(served, parent):
    """Also in a directory that boxd's own user could not even enter."""
    with directory(parent, mode=0o700) as cwd:
        assert elsewhere(lambda: langbot(served[1]), cwd) == WORKS


def test_what_lies_beside_the_place_stays_out_of_reach(served):
    """A place opens what is in it: neither its neighbours nor, to others, root's home."""
    def look():
        with Rpc(served[1]) as r:
            r.call("box_init", DEFAULT, ctx=None)
            said = []
            for path in (os.getcwd(), os.getcwd() + "/data", "/root", "/etc"):
                try:
                    r.call("box_create_session", {"session_id": "n", "host_path": path})
                    said.append("mounted " + path)
                except Exception as e:  # noqa: B902
                    said.append(str(e))
            return said

    with directory("/root", mode=0o700) as cwd:
        os.makedirs(cwd + "/data/box")
        said = elsewhere(look, cwd)
        assert [s.endswith("is blocked for security") for s in said] == [True] * 4, said
        api = served[0].client()
        with pytest.raises(Exception, match="outside|blocked"):
            api.new("other", host_path=cwd + "/data/box")


def test_relative_root_does_not_lead_out_of_the_directory(served):
    """`..` gets as far as an absolute path would, and root's home is open to nobody by it."""
    with directory("/root", mode=0o700) as outside, directory() as cwd:
        up = "../" * cwd.count("/") + outside[1:]
        with pytest.raises(RuntimeError, match="add it to allowed_mount_roots"):
            elsewhere(lambda: langbot(served[1], {"local": {"host_root": up}}), cwd)
        assert os.listdir(outside) == []


def test_relative_root_of_a_stranger_is_refused_and_says_what_to_set():
    """boxd is told by the peer, or by a setting, or it says so; it does not use a directory of its own."""
    def init():
        with Rpc(address) as r:
            # Somebody else holds the connection as well, in another directory: who is meant?
            pid = os.fork()
            if pid == 0:
                os.chdir("/")
                os.read(hold, 1)
                os._exit(0)
            while os.readlink(f"/proc/{pid}/cwd") != "/":
                pass
            try:
                r.call("box_init", DEFAULT, ctx=None)
            finally:
                os.write(let_go, b"x")
                os.waitpid(pid, 0)

    hold, let_go = os.pipe()
    with daemon() as (_, address), directory() as cwd:
        with pytest.raises(RuntimeError) as e:
            elsewhere(init, cwd)
        text = str(e.value)
        for part in ("box.local.host_root './data/box'", "several processes", "absolute path in LangBot",
                     "langbot_base_dir"):
            assert part in text, text
        assert not os.path.exists(cwd + "/data")
    with directory("/var/lib") as base, directory() as cwd, \
            daemon(env={"BOX_LANGBOT_BASE_DIR": base}) as (_, address):
        elsewhere(init, cwd)
        assert os.path.isdir(base + "/data/box/default")
        assert not os.path.exists(cwd + "/data")


def test_link_in_a_relative_root_is_followed_only_into_what_may_be_mounted(served):
    with directory() as cwd, directory() as allowed, directory("/var/lib") as outside:
        os.symlink(allowed, cwd + "/data")
        assert elsewhere(lambda: langbot(served[1]), cwd) == WORKS
        os.unlink(cwd + "/data")
        os.symlink(outside, cwd + "/data")
        with pytest.raises(RuntimeError, match="add it to allowed_mount_roots") as e:
            elsewhere(lambda: langbot(served[1]), cwd)
        assert "'./data/box' is " + outside + "/box" in str(e.value)
        assert os.listdir(outside) == []


def test_roots_that_somebody_has_chosen_are_all_there_are():
    """The rule of places fills a list that nobody wrote; it does not widen one that somebody did."""
    with directory() as allowed, directory("/var/lib") as cwd, \
            daemon(env={"BOX_ALLOWED_MOUNT_ROOTS": allowed}) as (_, address):
        with pytest.raises(RuntimeError, match="not below one of allowed_mount_roots; add it there"):
            elsewhere(lambda: langbot(address), cwd)
        assert os.listdir(cwd) == []
        os.mkdir(allowed + "/langbot")
        assert elsewhere(lambda: langbot(address), allowed + "/langbot") == WORKS


@pytest.mark.rootless
def test_relative_root_without_root():
    with directory() as cwd, daemon() as (_, address):
        assert elsewhere(lambda: langbot(address), cwd) == WORKS
