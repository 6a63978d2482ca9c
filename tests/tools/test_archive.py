# SPDX-License-Identifier: Apache-2.0
"""The archive for other distributions: it needs nothing of the host, and its installer nothing but busybox."""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "tests/lib"))

from boxlib import Boxd  # noqa: E402

# Debian's busybox has not those of Alpine's that change the lists of users and groups.
APPLETS = {
    "addgroup": 'test "$*" = "-S box" && echo box:x:101: >>/etc/group',
    "adduser": 'test "$*" = "-S -D -H -h /nonexistent -s /sbin/nologin -G box box" && echo box:x:100:101::/:/ >>/etc/passwd',
    "deluser": "sed -i /^box:/d /etc/passwd /etc/group",
    "delgroup": "sed -i /^box:/d /etc/group",
}
INSTALLED = ("usr/local/bin/box", "usr/local/bin/boxd", "usr/local/libexec/box/box-priv", "usr/local/share/man/man1/box.1",
             "usr/local/share/bash-completion/completions/box", "etc/box/config.yaml")


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    if os.geteuid() != 0:
        pytest.skip("needs root, for a root directory of its own")
    found = list((TREE / "build/release").glob("box-*-linux-*.tar.gz"))
    if not found:
        pytest.skip("there is no archive in build/release; `make release` builds it")
    top = tmp_path_factory.mktemp("release")
    for parent in (top, *top.parents[:2]):
        parent.chmod(parent.stat().st_mode | 0o055)
    with tarfile.open(found[0]) as archive:
        archive.extractall(top)
    (tree,) = top.iterdir()
    return tree


@pytest.fixture
def bare(tmp_path, unpacked):
    """A root with busybox and the archive, and no library."""
    busybox = shutil.which("busybox")
    if busybox is None or b"statically linked" not in subprocess.run(["file", "-L", busybox], capture_output=True).stdout:
        pytest.skip("busybox-static is not installed here (tools/setup.sh vm)")
    root = tmp_path / "root"
    for name in ("bin", "sbin", "etc", "tmp", "proc", "dev", "run", "var/lib"):
        (root / name).mkdir(parents=True)
    shutil.copy(busybox, root / "bin/busybox")
    subprocess.run(["chroot", str(root), "/bin/busybox", "--install", "-s", "/bin"], check=True)
    for name, text in APPLETS.items():
        (root / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (root / "bin" / name).chmod(0o755)
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    # Of plug-ins that this names none is there; glibc would look for them.
    (root / "etc/nsswitch.conf").write_text("passwd: sss files systemd\ngroup: sss files systemd\nhosts: resolve files dns\n")
    shutil.copytree(unpacked, root / "box", symlinks=True)

    def run(command):
        return subprocess.run([shutil.which("chroot"), str(root), "/bin/sh", "-c", command], capture_output=True, text=True,
                              timeout=60, env={"PATH": "/usr/local/bin:/bin"})

    run.root = root
    return run


def files(root):
    return {str(p.relative_to(root)) for d in ("usr", "etc", "var", "opt") for p in (root / d).rglob("*") if not p.is_dir()}


def test_it_runs_where_there_is_no_library(bare):
    for _ in range(2):  # the second time over the first
        done = bare("/box/install.sh")
        assert done.returncode == 0, done.stdout + done.stderr
    assert set(INSTALLED) <= files(bare.root)
    assert not [n for n in files(bare.root) if "systemd" in n or n.endswith(".new")]
    assert "box:x:" in (bare.root / "etc/passwd").read_text() and "box:x:" in (bare.root / "etc/group").read_text()
    for program in ("box", "boxd"):
        done = bare(f"{program} --version")
        assert done.returncode == 0 and done.stdout.startswith(f"{program} "), done.stderr
    assert bare("box config").returncode == 0
    (bare.root / "etc/box/config.yaml").write_text("port: 0\n")
    assert bare("/box/install.sh").returncode == 0 and (bare.root / "etc/box/config.yaml").read_text() == "port: 0\n"
    (bare.root / "var/lib/box").mkdir()
    (bare.root / "var/lib/box/precious").write_text("")
    # What an earlier version had and this one has not goes with an upgrade.
    (bare.root / "usr/local/bin/box-old").write_text("")
    with open(bare.root / "usr/local/share/box/files", "a") as f:
        f.write("bin/box-old\n")
    assert bare("/box/install.sh").returncode == 0 and not (bare.root / "usr/local/bin/box-old").exists()
    done = bare("rm -r /box; /usr/local/share/box/install.sh --uninstall")
    assert done.returncode == 0, done.stdout + done.stderr
    left = {n for n in files(bare.root) if n.startswith(("usr", "var")) or "box" in n}
    assert left == {"etc/box/config.yaml", "var/lib/box/precious"}, left


def test_a_purge_leaves_nothing(bare):
    before = files(bare.root), (bare.root / "etc/passwd").read_text(), (bare.root / "etc/group").read_text()
    (bare.root / "etc/apparmor.d/abi").mkdir(parents=True)
    (bare.root / "etc/apparmor.d/abi/4.0").touch()
    assert bare("/box/install.sh --prefix /opt/box").returncode == 0
    assert "profile box-priv /opt/box/libexec/box/box-priv " in (bare.root / "etc/apparmor.d/box-priv").read_text()
    (bare.root / "etc/apparmor.d/abi/4.0").unlink()
    assert bare("/opt/box/bin/box --version").returncode == 0
    (bare.root / "var/lib/box").mkdir()
    done = bare("/opt/box/share/box/install.sh --purge")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (files(bare.root), (bare.root / "etc/passwd").read_text(), (bare.root / "etc/group").read_text()) == before
    assert not (bare.root / "var/lib/box").exists()


def test_a_sandbox_of_it_works_here(unpacked):
    class Archive(Boxd):
        program = unpacked / "bin/boxd"

    daemon = Archive()
    try:
        done = subprocess.run([str(unpacked / "bin/box"), "run", "--quota-mb", "8", "--", "sh", "-c", "id -u; echo from the archive"],
                              text=True, timeout=120, env={**os.environ, "BOX_HOST": f"unix://{daemon.sock}"}, capture_output=True)
        assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["from the archive"]), done.stderr
    finally:
        daemon.close()


def test_no_program_names_a_library(unpacked):
    for path in [*(unpacked / "bin").iterdir(), *(unpacked / "libexec/box").iterdir()]:
        text = subprocess.run(["readelf", "-d", "-l", str(path)], capture_output=True, text=True, check=True, timeout=60).stdout
        assert "NEEDED" not in text and "INTERP" not in text, path
