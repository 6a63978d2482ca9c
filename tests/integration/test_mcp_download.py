# SPDX-License-Identifier: Apache-2.0
"""`box mcp run` in front of servers that are downloaded when they start, with the network on.

boxd runs in a network namespace of the test's own. Behind it is another that stands for the internet: with a name
server, and with an npm registry and a Python index behind TLS, whose authority is known to that host alone. No packet
leaves the machine.
"""

import json
import os
import shutil
import socket

import pytest
from hostlib import mount_dir, need
from mcplib import Wrapper
from netstage import HOST, INTERNET, PRIVATE, Stage, has_programs
from packagelib import NAME, NODE_SERVER, PYTHON_SERVER, VERSION, Packages
from tlslib import Authority

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not has_programs("nft", "ip", "nsenter", "unshare", "openssl"),
                                reason="needs root, nftables, iproute2 and openssl")

REGISTRY = "packages.example.org"
BUNDLE = "/etc/ssl/certs/ca-certificates.crt"

BUILDER = r'''
import zipfile
def build_wheel(directory, config_settings=None, metadata_directory=None):
    with zipfile.ZipFile(directory + "/mine-1.0-py3-none-any.whl", "w") as z:
        z.writestr("mine-1.0.dist-info/METADATA",
                   "Metadata-Version: 2.1\nName: mine\nVersion: 1.0\nRequires-Dist: tiny-server\n")
        z.writestr("mine-1.0.dist-info/WHEEL",
                   "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr("mine-1.0.dist-info/RECORD", "")
    return "mine-1.0-py3-none-any.whl"
'''


class World:
    def __init__(self, top):
        self.stage = Stage()
        self.top = top
        authority = Authority(top / "tls")
        cert, key = authority.issue("packages", f"DNS:{REGISTRY}")
        # The host trusts this authority and no other.
        self.stage.host.run("sh", "-ec", 'mkdir /mnt/certs; cp "$1" /mnt/certs/ca-certificates.crt; '
                            "mount --bind /mnt/certs /etc/ssl/certs", "sh", str(authority.ca))
        self.packages = Packages(self.stage.net.listen(443, address=INTERNET[1]), REGISTRY, cert, key)
        self.daemon = self.stage.boxd()

    def close(self):
        self.daemon.close()
        self.packages.close()
        self.stage.close()


@pytest.fixture(scope="module")
def world():
    top = mount_dir("box-mcp-net-")
    w = World(top)
    yield w
    w.close()
    shutil.rmtree(top, ignore_errors=True)


@pytest.fixture
def project(world):
    """A directory that can be mounted."""
    top = mount_dir("box-mcp-")
    yield top
    shutil.rmtree(top, ignore_errors=True)


@pytest.fixture
def run(world):
    """run(word...) -> Wrapper with the network on, as it is when nobody says anything."""
    started = []
    world.packages.asked.clear()

    def start(*words, **kwargs):
        kwargs.setdefault("network", None)
        started.append(Wrapper(*words, sock=world.daemon.sock, limit=300, **kwargs))
        return started[-1]

    yield start
    for wrapper in started:
        wrapper.end()


def npm_env(world):
    """What a user of a registry of one's own has in the environment."""
    return ["--env", f"npm_config_registry={world.packages.npm}", "--env", f"NODE_EXTRA_CA_CERTS={BUNDLE}"]


def pip_env(world):
    return ["--env", f"PIP_INDEX_URL={world.packages.index}"]


def check_facts(world, w, language):
    assert w.initialize()["result"]["serverInfo"]["name"] == NAME
    facts = w.value("facts")
    assert (facts["language"], facts["needed"], facts["home"]) == (language, 42, "/home/box")
    assert world.packages.peers == {HOST}, "what was downloaded was downloaded through the box's own network"
    assert "trying again" not in w.so_far()
    return facts


def test_npx_downloads_and_runs_a_server(world, run):
    need("npx")
    w = run(*npm_env(world), "--", "npx", "-y", NAME, "--flag", "value")
    facts = check_facts(world, w, "node")
    assert facts["argv"] == ["--flag", "value"] and facts["file"].startswith("/home/box/.npm/_npx/")
    assert f"/npm/{NAME}/-/{NAME}-{VERSION}.tgz" in world.packages.asked
    assert w.close()[0] == 0


def test_requirements_are_downloaded_before_the_start(world, run, project):
    (project / "server.py").write_text(PYTHON_SERVER)
    (project / "requirements.txt").write_text("tiny-needed\n")
    w = run(*pip_env(world), "--", "python3", project / "server.py")
    facts = check_facts(world, w, "python")
    assert facts["file"] == "/workspace/server.py" and "/.box-mcp/venv/" in facts["executable"]
    assert "dep_install\n" in w.so_far()
    assert w.close()[0] == 0


def test_a_project_of_python_is_built_and_its_dependencies_downloaded(world, run, project):
    """Its backend comes with it, so that nothing is wanted that the index does not have."""
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "builder"\nbackend-path = ["."]\n'
        '[project]\nname = "mine"\nversion = "1.0"\ndependencies = ["tiny-server"]\n')
    (project / "builder.py").write_text(BUILDER)
    w = run(*pip_env(world), "--", "python3", "-m", "tiny_server", project, f"--data={project}/x")
    facts = check_facts(world, w, "python")
    assert "/.box-mcp/venv/lib/" in facts["file"] and facts["argv"] == ["/workspace", "--data=/workspace/x"]
    assert w.close()[0] == 0


def test_modules_of_a_node_project_are_downloaded_from_where_its_npmrc_says(world, run, project):
    need("npm")
    (project / "server.js").write_text(NODE_SERVER)
    (project / "package.json").write_text(json.dumps({"name": "mine", "dependencies": {"tiny-needed": "^1.0.0"}}))
    (project / ".npmrc").write_text(f"registry={world.packages.npm}\ncafile={BUNDLE}\n")
    w = run("--", "node", project / "server.js")
    facts = check_facts(world, w, "node")
    assert facts["file"] == "/home/box/.box-mcp/project/server.js"
    assert not (project / "node_modules").exists(), "the mount is read-only"
    assert w.close()[0] == 0


def test_the_rules_of_egress_hold_for_a_server_that_was_downloaded(world, run, project):
    (project / "server.py").write_text(PYTHON_SERVER)
    inside = world.stage.net.listen(8080)
    on_host = world.stage.host.listen(8080)
    try:
        w = run("--install", "off", "--", "python3", project / "server.py")
        w.initialize()
        # That somebody listens there at all: else a refusal would prove nothing.
        with world.stage.host.inside():
            for address in (*PRIVATE, "127.0.0.1", HOST):
                socket.create_connection((address, 8080), timeout=20).close()
        assert w.value("connect", places=[[INTERNET[1], 443]]) == ["connected"]
        places = [[a, 8080] for a in (*PRIVATE, "127.0.0.1", HOST, "localhost")]
        for place, result in zip(places, w.value("connect", places=places)):
            assert result in ("ECONNREFUSED", "EHOSTUNREACH", "ENETUNREACH", "EACCES", "EPERM"), (place, result)
        assert w.value("resolve", name=REGISTRY) == INTERNET[1]
        world.stage.resolver.address = PRIVATE[0]
        assert "error" in w.answer(w.call("resolve", name="leads-inside.example.org"))
    finally:
        world.stage.resolver.address = INTERNET[1]
        inside.close()
        on_host.close()


@pytest.mark.parametrize("kind", ["requirements", "package"])
def test_without_a_network_it_is_said_what_failed_and_what_to_do(world, run, project, kind):
    if kind == "requirements":
        (project / "server.py").write_text(PYTHON_SERVER)
        (project / "requirements.txt").write_text("tiny-needed\n")
        w = run(*pip_env(world), "--", "python3", project / "server.py", network="off", delays="0.05")
    else:
        need("npm")
        (project / "server.js").write_text(NODE_SERVER)
        (project / "package.json").write_text(json.dumps({"name": "mine", "dependencies": {"tiny-needed": "^1.0.0"}}))
        w = run(*npm_env(world), "--", "node", project / "server.js", network="off", delays="0.05")
    message = w.answer(w.ask("initialize"))["error"]["message"]
    assert "dep_install: Dependency install failed" in message and "the network of this box is off" in message, message
    assert "--network on" in message and "--install off" in message
    assert world.packages.asked == []


def test_npx_without_a_network_is_told_as_that(world, run):
    need("npx")
    w = run(*npm_env(world), "--", "npx", "-y", NAME, network="off", delays="0.05")
    message = w.answer(w.ask("initialize"))["error"]["message"]
    assert "the network of this box is off" in message and "--network on" in message, message
