# SPDX-License-Identifier: Apache-2.0
"""`box mcp run` in front of servers that are downloaded when they start, with the network on.

boxd runs in a network namespace of the test's own. Behind it is another that stands for the internet: with a name
server, and with an npm registry and a Python index behind TLS, whose authority is known to that host alone. No packet
leaves the machine. npm and uv are not among what the other tests need: `make interop` has both, and runs this, too.
"""

import json
import os
import pathlib
import shutil
import socket

import pytest
from boxlib import BUILD, box
from hostlib import mount_dir
from mcplib import Wrapper
from netstage import HOST, INTERNET, PRIVATE, has_programs
from packagelib import BUNDLE, NAME, NODE_SERVER, PYTHON_SERVER, REGISTRY, VERSION, World

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not has_programs("nft", "ip", "nsenter", "unshare", "openssl"),
                                reason="needs root, nftables, iproute2 and openssl")

REFUSED = {"ECONNREFUSED", "EHOSTUNREACH", "ENETUNREACH", "EACCES", "EPERM"}
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
    world.packages.forget()

    def start(*words, **kwargs):
        options = {"network": None, "sock": world.daemon.sock, "limit": 300, **kwargs}
        started.append(Wrapper(*words, **options))
        return started[-1]

    yield start
    for wrapper in started:
        wrapper.end()


def need_npm():
    if shutil.which("npx", path="/usr/local/bin:/usr/bin:/bin") is None:
        pytest.skip("npm is not installed (tools/setup.sh interop)")


@pytest.fixture
def uv(project):
    """An environment with uv and uvx on PATH where their installer puts them: in a directory of the user's."""
    place = BUILD / "interop" / "mcp" / "python" / ".venv" / "bin" / "uvx"
    found = str(place) if place.exists() else shutil.which("uvx")
    if found is None:
        pytest.skip("uv is not installed (make interop has it from PyPI)")
    programs = project / ".local" / "bin"
    programs.mkdir(parents=True)
    for name in ("uv", "uvx"):
        shutil.copy(os.path.join(os.path.dirname(os.path.realpath(found)), name), programs / name)
    return {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(project)}


def test_npx_downloads_and_runs_a_server(world, run):
    need_npm()
    w = run(*world.npm_env(), "--", "npx", "-y", NAME, "--flag", "value")
    facts = world.check(w, "node")
    assert facts["argv"] == ["--flag", "value"] and facts["file"].startswith("/home/box/.npm/_npx/")
    assert f"/npm/{NAME}/-/{NAME}-{VERSION}.tgz" in world.packages.asked
    assert w.close()[0] == 0


def test_uvx_of_the_users_own_downloads_and_runs_a_server(world, run, uv):
    w = run(*world.uv_env(), "--", "uvx", NAME, "--flag", env=uv)
    facts = world.check(w, "python")
    assert facts["argv"] == ["--flag"] and facts["file"].startswith("/home/box/.cache/uv/")
    assert f"/simple/{NAME}/" in world.packages.asked
    assert w.close()[0] == 0


def test_uv_runs_a_project_that_it_may_not_write_to(world, run, uv, project):
    server = project / "server"
    server.mkdir()
    (server / "main.py").write_text(PYTHON_SERVER)
    (server / "pyproject.toml").write_text('[project]\nname = "mine"\nversion = "1.0"\nrequires-python = ">=3.9"\n'
                                           'dependencies = ["tiny-needed"]\n')
    w = run(*world.uv_env(), "--", "uv", "--directory", server, "run", "main.py", env=uv)
    facts = world.check(w, "python")
    assert facts["executable"].startswith("/home/box/.box-mcp/project/.venv/")
    assert sorted(p.name for p in server.iterdir()) == ["main.py", "pyproject.toml"]
    assert w.close()[0] == 0


@pytest.mark.parametrize("tool", ["npx", "uvx"])
def test_a_mounted_cache_makes_the_network_unnecessary(world, run, project, tool, request):
    """Two boxes: the first fills the cache, the second has no network."""
    if tool == "npx":
        need_npm()
        options, place, env, words = world.npm_env(), "/home/box/.npm", {}, ["npx", "-y", NAME]
    else:
        env = request.getfixturevalue("uv")
        options, place, words = world.uv_env(), "/home/box/.cache/uv", ["uvx", NAME]
    cache = project / "cache"
    cache.mkdir()
    options += ["--mount", f"{cache}:{place}:rw"]
    first = run(*options, "--", *words, env=env)
    world.check(first, "node" if tool == "npx" else "python")
    assert first.close()[0] == 0
    world.packages.forget()
    second = run(*options, "--", *words, env=env, network="off")
    second.initialize()
    assert second.value("facts")["needed"] == 42 and world.packages.asked == []


@pytest.mark.parametrize("tool", ["npx", "uvx"])
def test_the_second_start_of_a_server_downloads_no_package_again(world, run, project, tool, request):
    """Nobody asked for a cache. Another command line is another server, which trusts nothing that the first has left."""
    if tool == "npx":
        need_npm()
        options, env, words = world.npm_env(), {}, ["npx", "-y", NAME]
    else:
        env = request.getfixturevalue("uv")
        options, words = world.uv_env(), ["uvx", NAME]
    env = {**env, "XDG_CACHE_HOME": str(project)}

    def packages_for(*more):
        world.packages.forget()
        w = run(*options, "--", *words, *more, env=env)
        w.initialize()
        assert w.value("facts")["needed"] == 42 and w.close()[0] == 0
        return {path for path in world.packages.asked if path.endswith((".tgz", ".whl"))}

    assert len(packages_for()) == 2
    assert packages_for() == set()
    assert len(packages_for("--another")) == 2
    assert (project / "box").stat().st_mode & 0o777 == 0o700
    assert len(list((project / "box/mcp").iterdir())) == 2


def test_an_agent_that_the_host_has_not_is_installed_in_its_session_once(world, project):
    need_npm()
    (project / ".git").mkdir()

    def start():
        world.packages.forget()
        done = box("agent", "codex", *world.npm_env(), "--", "a", "b", sock=world.daemon.sock, cwd=project,
                   env={"HOME": "/nowhere", "PATH": "/usr/local/bin:/usr/bin:/bin"})
        assert done.returncode == 0, done.stderr
        assert "'codex' is not on this host: npm installs @openai/codex in the session, once" in done.stderr
        return json.loads(done.stdout), world.packages.asked.copy()

    first, asked = start()
    assert first["argv"] == ["-c", 'sandbox_mode="danger-full-access"', "a", "b"] and first["cwd"] == "/workspace"
    assert first["file"].startswith("/home/box/.local/") and any(path.endswith(".tgz") for path in asked)
    assert start() == (first, [])


def test_requirements_are_downloaded_before_the_start(world, run, project):
    (project / "server.py").write_text(PYTHON_SERVER)
    (project / "requirements.txt").write_text("tiny-needed\n")
    w = run(*world.pip_env(), "--", "python3", project / "server.py")
    facts = world.check(w, "python")
    assert facts["file"] == "/workspace/server.py" and "/.box-mcp/venv/" in facts["executable"]
    assert "dep_install\n" in w.so_far()
    assert w.close()[0] == 0


def test_a_project_of_python_is_built_and_its_dependencies_downloaded(world, run, project):
    """Its backend comes with it, so that nothing is wanted that the index does not have."""
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "builder"\nbackend-path = ["."]\n'
        '[project]\nname = "mine"\nversion = "1.0"\ndependencies = ["tiny-server"]\n')
    (project / "builder.py").write_text(BUILDER)
    w = run(*world.pip_env(), "--", "python3", "-m", "tiny_server", project, f"--data={project}/x")
    facts = world.check(w, "python")
    assert "/.box-mcp/venv/lib/" in facts["file"] and facts["argv"] == ["/workspace", "--data=/workspace/x"]
    assert w.close()[0] == 0


def test_modules_of_a_node_project_are_downloaded_from_where_its_npmrc_says(world, run, project):
    need_npm()
    (project / "server.js").write_text(NODE_SERVER)
    (project / "package.json").write_text(json.dumps({"name": "mine", "dependencies": {"tiny-needed": "^1.0.0"}}))
    (project / ".npmrc").write_text(f"registry={world.packages.npm}\ncafile={BUNDLE}\n")
    w = run("--", "node", project / "server.js")
    facts = world.check(w, "node")
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
            assert result in REFUSED, (place, result)
        assert w.value("resolve", name=REGISTRY) == INTERNET[1]
        world.stage.resolver.address = PRIVATE[0]
        assert "error" in w.answer(w.call("resolve", name="leads-inside.example.org"))
    finally:
        world.stage.resolver.address = INTERNET[1]
        inside.close()
        on_host.close()


@pytest.mark.skipif(not pathlib.Path("/dev/net/tun").exists() or not has_programs("slirp4netns", "setpriv"),
                    reason="needs /dev/net/tun and slirp4netns")
def test_a_boxd_of_an_ordinary_user_downloads_too_and_has_the_same_rules(world, run):
    need_npm()
    inside, on_host = world.stage.net.listen(8080), world.stage.host.listen(8080)
    daemon = world.stage.boxd_of_user()
    try:
        w = run(*world.npm_env(), "--", "npx", "-y", NAME, sock=daemon.sock)
        world.check(w, "node")
        assert "trying without a cache" in w.so_far(), "the cache of one user cannot be mounted by another's boxd"
        places = [[a, 8080] for a in (*PRIVATE, "127.0.0.1", HOST)]
        assert set(w.value("connect", places=places)) <= REFUSED
        assert w.value("connect", places=[[INTERNET[1], 8080]]) == ["connected"]
        assert w.close()[0] == 0
    finally:
        daemon.close()
        inside.close()
        on_host.close()


@pytest.mark.parametrize("kind", ["requirements", "package"])
def test_without_a_network_it_is_said_what_failed_and_what_to_do(world, run, project, kind):
    if kind == "requirements":
        (project / "server.py").write_text(PYTHON_SERVER)
        (project / "requirements.txt").write_text("tiny-needed\n")
        w = run(*world.pip_env(), "--", "python3", project / "server.py", network="off", delays="0.05")
    else:
        need_npm()
        (project / "server.js").write_text(NODE_SERVER)
        (project / "package.json").write_text(json.dumps({"name": "mine", "dependencies": {"tiny-needed": "^1.0.0"}}))
        w = run(*world.npm_env(), "--", "node", project / "server.js", network="off", delays="0.05")
    message = w.answer(w.ask("initialize"))["error"]["message"]
    assert "dep_install: Dependency install failed" in message and "the network of this box is off" in message, message
    assert "--network on" in message and "--install off" in message
    assert world.packages.asked == []


def test_a_proxy_that_was_not_given_is_told(world, run):
    need_npm()
    w = run(*world.npm_env(), "--", "npx", "-y", "no-such-server", delays="0.05",
            env={"HTTPS_PROXY": "http://proxy.example.org:3128"})
    message = w.answer(w.ask("initialize"))["error"]["message"]
    assert "--env HTTPS_PROXY" in message and "npm err" in message.lower() and "404" in message, message


def test_npx_without_a_network_is_told_as_that(world, run):
    need_npm()
    w = run(*world.npm_env(), "--", "npx", "-y", NAME, network="off", delays="0.05")
    message = w.answer(w.ask("initialize"))["error"]["message"]
    assert "the network of this box is off" in message and "--network on" in message, message
