# SPDX-License-Identifier: Apache-2.0
"""Skills over LangBot's wire, from the socket to the files and back, in a store that is not boxd's."""

import io
import os
import pathlib
import shutil
import tempfile
import zipfile

import pytest

import lbwire
from boxlib import Boxd
from fetchlib import skill_md
from lbwire import upload

pytestmark = pytest.mark.rootless

ROOT = os.geteuid() == 0
OWNER, GROUP = (61234, 61235) if ROOT else (os.geteuid(), os.getegid())


@pytest.fixture
def place():
    """A directory of somebody else, closed to boxd. Not below pytest's own, which is root's alone."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="box-skills-"))
    path.chmod(0o700)
    os.chown(path, OWNER, GROUP)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def rpc(boxd, place):
    with lbwire.Rpc(boxd.sock) as client:
        client.call("box_init", {"local": {"host_root": str(place / "box")}}, ctx=None)
        yield client


def owners(path):
    return {(os.lstat(os.path.join(base, name)).st_uid, os.lstat(os.path.join(base, name)).st_gid)
            for base, dirs, files in os.walk(path) for name in dirs + files}


def archive(files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        for name, content in files.items():
            made.writestr(name, content)
    return out.getvalue()


def test_a_skill_of_somebody_else(rpc, place):
    made = rpc.call("box_create_skill", {"skill": {"name": "demo", "instructions": "Do it"}})["skill"]
    package = pathlib.Path(made["package_root"])
    assert package.is_relative_to(place / "box/skills/tenants") and (package / "SKILL.md").is_file()
    assert owners(place) == {(OWNER, GROUP)}
    assert [s["name"] for s in rpc.call("box_list_skills")["skills"]] == ["demo"]
    rpc.call("box_write_skill_file", {"name": "demo", "path": "a/b", "content": "ü"})
    assert rpc.call("box_read_skill_file", {"name": "demo", "path": "a/b"})["content"] == "ü"
    with pytest.raises(lbwire.RpcError, match='^BoxValidationError: Skill "no" not found$'):
        rpc.call("box_delete_skill", {"name": "no"})
    with pytest.raises(lbwire.RpcError, match="^KeyError: 'name'$"):
        rpc.call("box_get_skill")
    assert rpc.call("box_delete_skill", {"name": "demo"}) == {"deleted": "demo"}
    assert rpc.call("box_get_skill", {"name": "demo"}) == {"skill": None}


def test_an_upload(rpc, place):
    data = archive({"SKILL.md": skill_md("zipped"), "data": os.urandom(300_000)})
    preview = rpc.call("box_preview_skill_zip", {"file_key": upload(rpc, data), "filename": "my.zip"})
    assert [s["name"] for s in preview["skills"]] == ["zipped"]
    done = rpc.call("box_install_skill_zip", {"file_key": upload(rpc, data), "filename": "my.zip"})
    root = pathlib.Path(done["skills"][0]["package_root"])
    assert root.name == "my-upload" and (root / "data").stat().st_size == 300_000
    assert owners(place) == {(OWNER, GROUP)}
    with pytest.raises(lbwire.RpcError, match="^BoxValidationError: Uploaded file is empty$"):
        rpc.call("box_preview_skill_zip", {"file_key": upload(rpc, b"")})


def test_workspaces_have_stores_of_their_own(boxd, rpc):
    rpc.call("box_create_skill", {"skill": {"name": "mine"}})
    with lbwire.Rpc(boxd.sock, ctx=lbwire.context(workspace="another")) as other:
        assert other.call("box_list_skills")["skills"] == []
        with pytest.raises(lbwire.RpcError, match="must stay within the Workspace skill root"):
            path = rpc.call("box_get_skill", {"name": "mine"})["skill"]["package_root"]
            other.call("box_scan_skill_directory", {"path": path})


def test_calls_at_once_are_all_answered(rpc):
    numbers = [rpc.start("box_create_skill", {"skill": {"name": f"s{i}"}}) for i in range(20)]
    for number in numbers:
        assert rpc.wait(number)["skill"]["name"].startswith("s")
    assert len(rpc.call("box_list_skills")["skills"]) == 20


def test_a_store_outside_the_allow_list(place):
    inside = place / "in"
    inside.mkdir()
    os.chown(inside, OWNER, GROUP)
    daemon = Boxd(env={"BOX_ALLOWED_MOUNT_ROOTS": str(inside)})
    try:
        with lbwire.Rpc(daemon.sock) as rpc:
            rpc.call("box_init", {"local": {"host_root": str(inside), "skills_root": str(place / "out")}}, ctx=None)
            with pytest.raises(lbwire.RpcError, match="^BoxValidationError: .*allowed_mount_roots"):
                rpc.call("box_create_skill", {"skill": {"name": "demo"}})
            assert not (place / "out").exists()
            rpc.call("box_init", {"local": {"host_root": str(inside)}}, ctx=None)
            assert rpc.call("box_list_skills") == {"skills": []}
    finally:
        daemon.close()


@pytest.mark.skipif(not ROOT, reason="only root can look into boxd and box-priv")
def test_jobs_leave_nothing(boxd, rpc):
    rpc.call("box_list_skills")
    before = boxd.leaks()
    for _ in range(10):
        rpc.call("box_list_skills")
        with pytest.raises(lbwire.RpcError):
            rpc.call("box_scan_skill_directory", {"path": "/"})

    def nothing_more():
        """The first job's descriptors may have been counted, and are gone by now."""
        now = boxd.leaks()
        return {**now, "fds": 0} == {**before, "fds": 0} and all(now["fds"][w] <= before["fds"][w] for w in now["fds"])

    assert lbwire.eventually(nothing_more), (before, boxd.leaks())
