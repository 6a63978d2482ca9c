# SPDX-License-Identifier: Apache-2.0
"""The boot after the power was cut: sessions are found again, started and reached; the package is removed and purged."""

import json
import pathlib

from machinelib import FACTS, PORT, UNITS, boot, fetch, look, package, serve, sh, state_of, traces

pytestmark = boot(2)


def test_sessions_are_kept_over_a_power_cut():
    facts = json.loads(FACTS.read_text())
    assert sh(f"systemctl is-active {' '.join(UNITS)}").split() == ["active", "active"]  # systemd has started them
    assert {name: state_of(name) for name in ("kept", "disk", "off", "late")} == dict.fromkeys(
        ("kept", "disk", "off", "late"), "stopped")
    sh("box start kept disk")
    assert look("kept") == facts["kept"] and look("disk") == facts["disk"]
    full = sh("box exec disk -- sh -c 'head -c 20000000 /dev/zero > g || echo full; rm g'")
    assert full == "full\n"  # the quota came back with its image
    assert sh("box exec late -- echo here") == "here\n"
    assert f"127.0.0.1:{PORT}" in sh("box port kept")
    serve("kept")
    assert fetch() == "hello from kept\n"


def test_a_removal_leaves_the_files_and_an_installation_finds_them():
    facts = json.loads(FACTS.read_text())
    sh("dpkg -r box")
    assert sh("systemctl is-active boxd.service boxd.socket", check=False).split() == ["inactive", "inactive"]
    assert sh("pgrep -x 'boxd|box-priv|box-init'", check=False) == "" and "box" not in sh("cat /proc/mounts")
    assert sh("find /sys/fs/cgroup -maxdepth 3 -name 'box*'") == ""
    assert sh("ls /etc/box") == "config.yaml\n" and sh("getent group box") != ""
    sh(f"dpkg -i {package('later')}")
    assert state_of("kept") == "stopped" and look("disk") == facts["disk"] and look("kept") == facts["kept"]


def test_a_purge_leaves_nothing():
    facts = json.loads(FACTS.read_text())
    sh("dpkg -P box")
    assert traces() == facts["before"]
    assert not [f for f in facts["files"] if pathlib.Path(f).is_file()]
    assert sh("systemctl list-units --all --no-legend 'boxd*'") == ""
    assert sh("getent passwd box; getent group box", check=False) == ""
