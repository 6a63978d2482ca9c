# SPDX-License-Identifier: Apache-2.0
"""The first boot of a machine with systemd: the package is installed, used and upgraded. Then the power is cut."""

import json
import os

from machinelib import FACTS, FILL, PORT, UNITS, boot, fetch, look, package, serve, sh, state_of, traces

pytestmark = boot(1)
facts = {}


def test_an_installation_serves_the_group():
    facts["before"] = traces()
    sh(f"dpkg -i {package('now')}")
    facts["files"] = sh("dpkg -L box").splitlines()
    assert sh(f"systemctl is-active {' '.join(UNITS)}").split() == ["active", "active"]
    assert sh(f"systemctl is-enabled {' '.join(UNITS)}").split() == ["enabled", "enabled"]
    assert sh("stat -c '%a %U %G' /run/box/boxd.sock") == "660 root box\n"
    assert sh("box run -- echo installed") == "installed\n"
    # An ordinary user who is in the group uses the same boxd, and sees own sessions only.
    sh("useradd --no-create-home member && usermod -aG box member && box run --session roots -- true")
    member = "setpriv --reuid member --regid member --init-groups --reset-env"
    assert sh(f"{member} box run -- echo mine") == "mine\n"
    assert json.loads(sh(f"{member} box ps -a --json"))["sessions"] == []
    sh("box rm roots")


def test_an_upgrade_keeps_what_runs_and_every_byte():
    sh(f"box run --session kept -p 127.0.0.1:{PORT}:3000 -- sh -c '{FILL}'")
    sh(f"box run --session disk --quota-mb 16 -- sh -c '{FILL}'")
    sh(f"box run --session off -- sh -c '{FILL}' && box stop off")
    server = serve("kept")
    assert fetch() == "hello from kept\n"
    facts.update({name: look(name) for name in ("kept", "disk")})
    before = sh("systemctl show -P MainPID boxd")
    sh(f"dpkg -i {package('later')}")
    assert sh("dpkg-query -W -f '${Version}' box").endswith("+later")
    assert sh("systemctl is-active boxd.service") == "active\n"
    assert sh("systemctl show -P MainPID boxd") != before
    sh(f"box exec kept -- sh -c 'kill -0 {server}'")  # the server was not disturbed
    assert fetch() == "hello from kept\n"
    assert {name: look(name) for name in ("kept", "disk")} == {name: facts[name] for name in ("kept", "disk")}
    assert state_of("off") == "stopped"


def test_the_power_is_cut():
    """The last session has nothing that anybody synced: boxd itself answers for its record."""
    FACTS.write_text(json.dumps(facts))
    with FACTS.open() as f:
        os.fsync(f.fileno())
    sh("box run --session late -- true")
