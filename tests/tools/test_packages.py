# SPDX-License-Identifier: Apache-2.0
"""What the packages hold, and what their scripts do: to a root of their own, with make-believe tools."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parents[2]
DEBIAN = TREE / "packaging" / "debian"
TOOLS = ("deb-systemd-helper", "deb-systemd-invoke", "systemctl", "addgroup", "adduser", "delgroup", "deluser", "getent",
         "aa-enabled", "apparmor_parser")
# Knows the user and the group once they were added; everything else succeeds. Every call is written down.
FAKE = r"""#!/bin/sh
echo "${0##*/} $*" >>"$CALLS"
case "${0##*/} $1" in
"getent passwd") grep -q '^adduser ' "$CALLS" && ! grep -q '^deluser ' "$CALLS" ;;
"getent group") grep -q '^addgroup ' "$CALLS" && ! grep -q '^delgroup ' "$CALLS" ;;
esac
"""


class Host:
    """A machine whose /etc, /run, /usr/share/box and /var/lib are directories of the test."""

    def __init__(self, top):
        self.top = top
        for name in ("bin", "etc/box", "etc/apparmor.d/abi", "run/systemd/system", "lib/box/sessions", "box/apparmor"):
            (top / name).mkdir(parents=True)
        shutil.copy(TREE / "packaging/apparmor/box-priv", top / "box/apparmor/box-priv")
        (top / "etc/box/config.yaml").write_text("")
        (top / "lib/box/sessions/file").write_text("precious")
        for tool in TOOLS:
            (top / "bin" / tool).write_text(FAKE)
            (top / "bin" / tool).chmod(0o755)

    def script(self, name, *args):
        """What it calls, in order."""
        calls = self.top / "calls"
        begin = len(calls.read_text().splitlines()) if calls.exists() else 0
        binds = " && ".join(f"mount --bind {self.top}/{a} {b}" for a, b in (
            ("etc", "/etc"), ("run", "/run"), ("lib", "/var/lib"), ("box", "/usr/share/box")) if os.path.isdir(b) or
            b == "/usr/share/box")
        command = f"mount -t tmpfs none /usr/share && mkdir /usr/share/box && {binds} && exec sh {DEBIAN}/{name} \"$@\""
        subprocess.run(["unshare", "--mount", "sh", "-ec", command, "sh", *args], check=True, timeout=60,
                       env={"PATH": f"{self.top}/bin:{os.environ['PATH']}", "CALLS": str(calls)})
        return calls.read_text().splitlines()[begin:]


@pytest.fixture
def host(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs root, for mounts of its own")
    return Host(tmp_path)


def test_an_installation_makes_the_user_and_starts_the_units(host):
    calls = host.script("box.postinst", "configure", "")
    assert [c.split()[0] for c in calls if c.split()[0] in ("addgroup", "adduser")] == ["addgroup", "adduser"]
    assert [c for c in calls if c.startswith("deb-systemd-invoke")] == [
        "deb-systemd-invoke start boxd.socket", "deb-systemd-invoke start boxd.service"]


def test_an_upgrade_restarts_boxd_and_never_stops_it(host):
    """A stop ends sessions; a restart leaves them to the next boxd (RestartKillSignal=SIGUSR2)."""
    host.script("box.postinst", "configure", "")
    calls = host.script("box.prerm", "upgrade", "2.0") + host.script("box.postrm", "upgrade", "2.0")
    calls += host.script("box.postinst", "configure", "1.0")
    assert [c for c in calls if c.startswith("deb-systemd-invoke")] == [
        "deb-systemd-invoke try-restart boxd.service", "deb-systemd-invoke start boxd.socket",
        "deb-systemd-invoke start boxd.service"]
    assert not [c for c in calls if c.startswith(("adduser", "addgroup"))]
    assert "RestartKillSignal=SIGUSR2" in (TREE / "systemd/boxd.service.in").read_text()
    assert (host.top / "lib/box/sessions/file").read_text() == "precious"


def test_removal_keeps_the_files_and_purge_leaves_nothing(host):
    host.script("box.postinst", "configure", "")
    calls = host.script("box.prerm", "remove") + host.script("box.postrm", "remove")
    assert "deb-systemd-invoke stop boxd.socket boxd.service" in calls
    assert (host.top / "lib/box/sessions/file").read_text() == "precious" and (host.top / "etc/box").is_dir()
    calls = host.script("box.postrm", "purge")
    assert not (host.top / "lib/box").exists() and not (host.top / "etc/box").exists()
    assert [c.split()[0] for c in calls if c.startswith("del")] == ["deluser", "delgroup"]
    assert sorted(p.name for p in (host.top / "lib").iterdir()) == []


def test_the_apparmor_profile_is_for_hosts_that_know_its_rule(host):
    profile = host.top / "etc/apparmor.d/box-priv"
    host.script("box.postinst", "configure", "")
    assert not profile.exists()
    (host.top / "etc/apparmor.d/abi/4.0").write_text("")
    calls = host.script("box.postinst", "configure", "")
    assert profile.read_text() == (TREE / "packaging/apparmor/box-priv").read_text() and "userns," in profile.read_text()
    assert any(c.startswith("apparmor_parser -r") for c in calls)
    host.script("box.postrm", "remove")
    assert not profile.exists()


def setup_list(purpose):
    text = re.search(rf'\[{purpose}\]="([^"]*)"', (TREE / "tools/setup.sh").read_text())[1]
    return set(text.split())


def test_a_build_needs_no_test_tool_and_the_package_needs_the_same():
    build = setup_list("build")
    tools = r"cmocka|clang|pytest|websockets|cppcheck|curl|docker|podman"
    assert not {p for p in build | setup_list("run") if re.search(tools, p)}
    plan = subprocess.run(["make", "-n", "run"], cwd=TREE, capture_output=True, text=True, check=True, timeout=60).stdout
    assert set(" ".join(re.findall(r"tools/setup.sh (.*)", plan)).split()) == {"build", "run"}  # a first run wants no more
    wanted = re.search(r"^Build-Depends: (.*?)^\w", (DEBIAN / "control").read_text(), re.S | re.M)[1]
    assert {re.sub(r"\(.*?\)", "", p).strip() for p in wanted.split(",")} == build


@pytest.fixture
def packages():
    found = {p.name.split("_")[0]: p for p in (TREE / "build/deb").glob("*.deb")}
    if set(found) != {"box", "box-doc"}:
        pytest.skip("there are no packages in build/deb; `make deb` builds them")
    return found


def contents(deb):
    rows = subprocess.run(["dpkg-deb", "-c", str(deb)], capture_output=True, text=True, check=True, timeout=60).stdout
    return {r.split()[5].lstrip("."): r.split()[:2] for r in rows.splitlines()}


def test_the_packages_hold_what_an_installation_has(packages):
    found = contents(packages["box"])
    for name in ("/usr/bin/box", "/usr/bin/boxd", "/usr/libexec/box/box-priv", "/usr/libexec/box/box-init",
                 "/usr/lib/systemd/system/boxd.socket", "/etc/box/config.yaml", "/usr/share/man/man1/box.1.gz",
                 "/usr/share/doc/box/copyright", "/usr/share/doc/box/changelog.Debian.gz"):
        assert name in found, name
    assert {owner for _, owner in found.values()} == {"root/root"}
    assert not [n for n, (mode, _) in found.items() if mode[8] == "w" or "s" in mode[1:].lower()]
    assert not [n for n in found if n.startswith(("/var", "/run", "/usr/local"))]
    assert "/usr/share/doc/box-doc/docs/how-to/install.md" in contents(packages["box-doc"])


def test_lintian_finds_nothing(packages):
    if shutil.which("lintian") is None:
        pytest.skip("lintian is not installed here (tools/setup.sh deb)")
    done = subprocess.run(["lintian", "--fail-on", "error,warning", "--suppress-tags",
                           "initial-upload-closes-no-bugs,no-manual-page", *map(str, packages.values())],
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout
