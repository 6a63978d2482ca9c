# SPDX-License-Identifier: Apache-2.0
"""docs/tutorials/langbot.md, done: a LangBot that was just installed, one setting, a chat whose tool runs in Box."""

import os
import pathlib
import re
import signal
import subprocess

import pytest
import worlds
from boxlib import BUILD
from hostlib import mount_dir

ROOT = pathlib.Path(__file__).resolve().parents[2]
RELEASE = "4.11.2"
TOKEN = "newcomer" * 8


def commands():
    """What the page tells to type."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "docs/tutorials/langbot.md").read_text(), re.S)
    return [block.strip() for block in blocks]


class Terminal:
    """A command that runs until it is interrupted, with all that it started."""

    def __init__(self, place, name, command, **env):
        self.log = place / f"{name}.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(["sh", "-c", f"exec env {command}"], cwd=place, stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log, env={**os.environ, **env}, start_new_session=True)

    def close(self):
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture
def place():
    """Where the newcomer works, with what the first step installed."""
    top = mount_dir("box-newcomer-")
    (top / "langbot-env").symlink_to(worlds.python_of(RELEASE).parents[1])
    (top / "state").mkdir(mode=0o755)
    yield top
    subprocess.run(["rm", "-rf", str(top)], check=True)


@pytest.fixture
def terminal(place):
    opened = []

    def start(name, command, **env):
        opened.append(Terminal(place, name, command, **env))
        return opened[-1]

    yield start
    for each in reversed(opened):
        each.close()


def test_the_page_installs_what_is_tried_here():
    wanted = re.search(r"pip install (.*)", commands()[0]).group(1).split()
    installer = (ROOT / "tools" / "langbot.sh").read_text()
    assert wanted[0] == "langbot" and wanted[1] in installer


def test_the_first_chat_runs_its_tool_in_box(place, terminal):
    _, boxd, langbot, ps = commands()
    box = {"PATH": f"{BUILD}:{os.environ['PATH']}", "BOX_STATE_DIR": str(place / "state"),
           "BOX_HOST": f"unix://{place}/state/boxd.sock"}
    daemon = terminal("boxd", boxd, **box)
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    if pathlib.Path("/.dockerenv").exists():  # in a container LangBot wants its plugin runtime beside it
        quiet["LANGBOT_PLUGIN_RUNTIME_CONTROL_TOKEN"] = TOKEN
        terminal("plugins", "langbot-env/bin/python -m langbot_plugin.cli.__init__ rt", **quiet)
        quiet["PLUGIN__RUNTIME_WS_URL"] = "ws://127.0.0.1:5400/control/ws"
    started = terminal("langbot", langbot, **quiet)
    user = subprocess.run([str(place / "langbot-env/bin/python"), str(pathlib.Path(__file__).parent / "newcomer.py"),
                           "http://127.0.0.1:5300"], capture_output=True, text=True, timeout=600, cwd=place)
    said = "".join(t.log.read_text(errors="replace")[-3000:] for t in (daemon, started))
    assert user.returncode == 0, user.stderr[-2000:] + said
    assert '"stdout": "made in /workspace by python42"' in user.stdout and '"backend": "native"' in user.stdout
    listed = subprocess.run(["sh", "-c", ps], capture_output=True, text=True, timeout=60, env={**os.environ, **box})
    assert "runner-" in listed.stdout, listed.stderr
    assert list((place / "data" / "box" / "default" / "tenants").glob("*")), "the files of the chat are LangBot's"
