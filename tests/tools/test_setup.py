# SPDX-License-Identifier: Apache-2.0
"""setup.sh against a make-believe dpkg and apt-get: nothing is installed here."""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parents[2]
SETUP = TREE / "tools" / "setup.sh"

# Both programs keep the set of installed packages in $FAKE/installed.
DPKG_QUERY = r"""#!/bin/bash
shift 3
status=0
for p in "$@"; do
    if grep -qxF -- "$p" "$FAKE/installed"; then echo "$p installed"
    elif grep -qxF -- "$p" "$FAKE/removed"; then echo "$p config-files"
    else status=1; fi
done
exit $status
"""
APT_GET = r"""#!/bin/bash
echo "$*" >>"$FAKE/calls"
[ -x "$FAKE/usr/sbin/policy-rc.d" ] && { "$FAKE/usr/sbin/policy-rc.d"; echo "policy $?" >>"$FAKE/policies"; }
for a in "$@"; do case $a in update) exit "${FAKE_UPDATE:-0}" ;; esac; done
if [ -e "$FAKE/fail-once" ]; then rm "$FAKE/fail-once"; echo "E: 404" >&2; exit 100; fi
[ -e "$FAKE/fail" ] && { echo "E: no such package" >&2; exit 100; }
shift
for a in "$@"; do case $a in -*|*=*) ;; *) echo "$a" >>"$FAKE/installed" ;; esac; done
"""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="setup.sh installs only as root")


class Fake:
    def __init__(self, path):
        self.path = path
        for name, text in (("dpkg-query", DPKG_QUERY), ("apt-get", APT_GET)):
            (path / name).write_text(text)
            (path / name).chmod(0o755)
        for name in ("installed", "removed", "calls"):
            (path / name).touch()

    def run(self, *purposes, uid=None, **env):
        # By standard input: another user may not be able to reach the checkout.
        with SETUP.open() as script:
            return self.start(script, purposes, uid, env)

    def start(self, script, purposes, uid, env):
        return subprocess.run(
            ["bash", "-s", "--", *purposes],
            stdin=script,
            env={"PATH": f"{self.path}:/usr/bin:/bin", "FAKE": str(self.path), **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            user=uid,
        )

    def calls(self):
        return (self.path / "calls").read_text().splitlines()


@pytest.fixture
def fake():
    with tempfile.TemporaryDirectory(prefix="box-setup.", dir="/tmp") as path:
        os.chmod(path, 0o755)
        yield Fake(Path(path))


@as_root
def test_installs_what_is_missing_and_then_leaves_apt_alone(fake):
    (fake.path / "installed").write_text("gcc\nmeson\n")
    done = fake.run("build")
    assert done.returncode == 0, done.stderr
    assert "libjansson-dev" in done.stdout and "gcc" not in done.stdout.split()
    before = fake.calls()
    assert any("update" in c for c in before) and any("--no-install-recommends" in c for c in before)
    again = fake.run("build")
    assert (again.returncode, again.stdout, fake.calls()) == (0, "", before)


@as_root
def test_package_removed_but_not_purged_is_missing(fake):
    fake.run("build")
    lines = (fake.path / "installed").read_text().split()
    (fake.path / "installed").write_text("\n".join(x for x in lines if x != "meson") + "\n")
    (fake.path / "removed").write_text("meson\n")
    assert fake.run("build").stdout == "setup: installing meson\n"


@as_root
def test_stale_lists_are_tried_again_once(fake):
    (fake.path / "fail-once").touch()
    done = fake.run("build", FAKE_UPDATE="100")
    assert done.returncode == 0, done.stderr
    assert len(fake.calls()) == 4


@as_root
def test_failure_shows_what_apt_said_and_the_command(fake):
    (fake.path / "fail").touch()
    done = fake.run("vm")
    assert done.returncode == 1
    assert "E: no such package" in done.stderr
    assert "apt-get install -y --no-install-recommends" in done.stderr
    assert len(fake.calls()) == 4


SYSTEMCTL = r"""#!/bin/bash
echo "$*" >>"$FAKE/units"
"""


@as_root
def test_services_of_an_engine_are_not_started(fake):
    (fake.path / "usr" / "sbin").mkdir(parents=True)
    (fake.path / "systemctl").write_text(SYSTEMCTL)
    (fake.path / "systemctl").chmod(0o755)
    done = fake.run("test", BOX_SETUP_ROOT=str(fake.path))
    assert done.returncode == 0, done.stderr
    assert set((fake.path / "policies").read_text().split("\n")[:-1]) == {"policy 101"}
    assert not list((fake.path / "usr" / "sbin").iterdir()), "the policy goes with us"
    assert {"disable docker.service", "disable podman.socket"} <= set((fake.path / "units").read_text().splitlines())


@as_root
def test_a_policy_that_is_there_stays(fake):
    (fake.path / "usr" / "sbin").mkdir(parents=True)
    policy = fake.path / "usr" / "sbin" / "policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 104\n")
    policy.chmod(0o755)
    assert fake.run("test", BOX_SETUP_ROOT=str(fake.path)).returncode == 0
    assert "104" in policy.read_text() and "policy 104" in (fake.path / "policies").read_text()


def engine_programs():
    """Every program that the suite's engines are started from."""
    return ("dockerd", "containerd", "podman", "conmon", "runc", "busybox", "tini", "unshare", "nsenter",
            "setpriv")


@pytest.mark.parametrize("program", engine_programs())
def test_package_of_every_program_of_an_engine_is_installed(program):
    listed = set(re.search(r"\[test\]=\"([^\"]*)\"", SETUP.read_text())[1].split())
    path = os.path.realpath(shutil.which(program, path="/usr/sbin:/usr/bin:/sbin:/bin"))
    owners = subprocess.check_output(["dpkg", "-S", f"*/{os.path.basename(path)}"], text=True).splitlines()
    owner = next(line.split(":")[0] for line in owners if os.path.realpath(line.split(": ")[1]) == path)
    pulled = subprocess.check_output(["dpkg-query", "-W", "-f", "${Depends}\n", *listed], text=True)
    assert owner in listed or re.search(rf"\b{re.escape(owner)}\b", pulled), owner


def test_ordinary_user_is_told_the_exact_line(fake):
    installed = "gcc libc6-dev ninja-build pkgconf python3 libseccomp-dev libsqlite3-dev"
    installed += " libssl-dev libyaml-dev zlib1g-dev"
    (fake.path / "installed").write_text("\n".join(installed.split()) + "\n")
    done = fake.run("build", uid=65534 if os.geteuid() == 0 else None)
    assert done.returncode == 1
    assert "sudo apt-get install -y --no-install-recommends libjansson-dev meson" in done.stderr
    assert fake.calls() == []


def test_unknown_purpose_is_refused(fake):
    done = fake.run("nonsense")
    assert done.returncode == 2
    assert "unknown purpose 'nonsense'" in done.stderr


def libraries():
    """Every name that a meson.build hands to dependency()."""
    builds = [TREE / "meson.build", *TREE.glob("src/**/meson.build"), *TREE.glob("tests/**/meson.build")]
    return sorted({n for b in builds for n in re.findall(r"\bdependency\('(\w+)'", b.read_text())})


@pytest.mark.parametrize("library", libraries())
def test_package_of_every_linked_library_is_listed(library):
    directory = subprocess.check_output(
        ["pkg-config", "--variable=pcfiledir", library], text=True
    ).strip()
    owner = subprocess.check_output(["dpkg", "-S", f"{directory}/{library}.pc"], text=True)
    assert owner.split(":")[0] in SETUP.read_text().split("wanted=")[0]
