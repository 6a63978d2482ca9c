# SPDX-License-Identifier: Apache-2.0
"""LangBot in a container finds boxd, runs an MCP server in a sandbox of it, and shares workspaces with it: for each of the
files of deploy/langbot, as they are. Of LangBot only what its users have is used: its HTTP API."""

import http.client
import json
import pathlib
import secrets
import shutil
import sys
import tempfile
import time

import kubernetes
import pytest
from boxlib import Boxd
from compose import GATEWAY, Failed, Project, docker
from images import TOP

HERE = TOP / "deploy/langbot"
APPLICATION = sys.prefix
KEY = "deployed-and-tried"
PATIENCE_S = 240  # the first start of LangBot makes its database
FIRST_UID = 2_000_000_000  # of sessions
# What is the test's own in LangBot's container: the application, no plugins, nobody on the internet to ask.
LANGBOT = [f"--volume={APPLICATION}:/opt/langbot:ro", f"--env=API__GLOBAL_API_KEY={KEY}", "--env=PLUGIN__ENABLE=false",
           "--env=SPACE__DISABLE_MODELS_SERVICE=true", "--env=SPACE__DISABLE_TELEMETRY=true", "--dns=127.0.0.1"]
SERVER = r"""
import json, os, sys
def report():
    with open("/workspace/from-the-box", "w") as out:
        out.write("written inside\n")
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return {"on the host": int(open("/proc/self/uid_map").read().split()[1]), "capabilities": int(status["CapEff"], 16),
            "filter": status["Seccomp"].strip(), "tokens": os.environ.get("LANGBOT_BOX_CONTROL_TOKEN"),
            "docker": os.path.exists("/.dockerenv"), "state": os.path.exists("/var/lib/box/state.db")}
ANSWERS = {
    "initialize": lambda p: {"protocolVersion": p["protocolVersion"], "capabilities": {"tools": {}, "resources": {}},
                             "serverInfo": {"name": "probe", "version": "1"}},
    "ping": lambda p: {},
    "tools/list": lambda p: {"tools": [{"name": "probe", "description": "d", "inputSchema": {"type": "object"}}]},
    "resources/list": lambda p: {"resources": [{"uri": "box://report", "name": "report"}]},
    "resources/templates/list": lambda p: {"resourceTemplates": []},
    "resources/read": lambda p: {"contents": [{"uri": p["uri"], "mimeType": "text/plain", "text": json.dumps(report())}]},
}
for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        known = request["method"] in ANSWERS
        body = {"result": ANSWERS[request["method"]](request.get("params"))} if known else {
            "error": {"code": -32601, "message": "unknown"}}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **body}), flush=True)
"""


def until(check, what):
    end = time.monotonic() + PATIENCE_S
    while True:
        value = check()
        if value:
            return value
        assert time.monotonic() < end, f"{what}: did not come about"
        time.sleep(0.3)


def ask(address, port, method, path, body=None, **headers):
    """The status and the document; 0 while nobody listens."""
    connection = http.client.HTTPConnection(address, port, timeout=60)
    try:
        connection.request(method, path, json.dumps(body) if body is not None else None,
                           {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text[:1] == b"{" else {}
    except OSError:
        return 0, {}
    finally:
        connection.close()


class LangBot:
    """By its HTTP API, with an API key."""

    def __init__(self, address):
        self.address = address

    def ask(self, method, path, body=None):
        return ask(self.address, 5300, method, f"/api/v1/{path}", body, **{"X-API-Key": KEY})

    def box(self):
        status, answer = self.ask("GET", "box/status")
        return answer["data"] if status == 200 else {}

    def add(self):
        """The MCP server, whatever an earlier LangBot on the same data thought of it."""
        if self.ask("GET", "mcp/servers/probe")[0] == 200:
            self.ask("DELETE", "mcp/servers/probe")
        status, answer = self.ask("POST", "mcp/servers", {
            "name": "probe", "enable": True, "mode": "stdio",
            "extra_args": {"command": "python3", "args": ["-c", SERVER], "env": {}}})
        assert status == 200, answer

    def server(self):
        status, answer = self.ask("GET", "mcp/servers/probe")
        return (answer["data"]["server"].get("runtime_info") or {}) if status == 200 else {}

    def connected(self):
        return self.server().get("status") == "connected"

    def report(self):
        status, answer = self.ask("POST", "mcp/servers/probe/resources/read", {"uri": "box://report"})
        assert status == 200, answer
        [content] = answer["data"]["contents"]
        return json.loads(content["text"])


@pytest.fixture(scope="module")
def data():
    """LangBot's own: made by its first start, and the same for all that follow."""
    made = pathlib.Path(tempfile.mkdtemp(prefix="box-deploy-data-"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def root():
    made = pathlib.Path(tempfile.mkdtemp(prefix="box-deploy-root-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def settings(root):
    return {"LANGBOT_BOX_ROOT": str(root), "LANGBOT_BOX_CONTROL_TOKEN": secrets.token_hex(32)}


def works(langbot, root, box, logs, add=True):
    """The whole way: LangBot, boxd, a sandbox, and a workspace that both see. `add`: the server is not there yet."""
    try:
        until(lambda: langbot.box().get("available"), "LangBot's connection to boxd")
        assert langbot.box()["backend"]["name"] == "native"
        if add:
            langbot.add()
        until(langbot.connected, "the MCP server in its box")
        assert langbot.server()["box_enabled"] is True
        seen = langbot.report()
    except AssertionError as error:
        said = [line for line in logs().splitlines() if " GET /api/" not in line]
        raise AssertionError("\n".join([f"{error}; the server: {langbot.server()}", *said])) from None
    assert seen["on the host"] >= FIRST_UID and seen["capabilities"] == 0 and seen["filter"] == "2", seen
    assert not seen["tokens"] and not seen["docker"] and not seen["state"], seen
    assert [p.read_text() for p in root.rglob("from-the-box")] == ["written inside\n"]
    assert ask(*box, "GET", "/v1/sessions")[0] == 401, "without the token nobody comes in"
    assert ask(*box, "GET", "/readyz")[0] == 200 and ask(*box, "GET", "/healthz")[0] == 200


def walls(engine, name):
    """What boxd cannot have in its container, by its own account."""
    lines = docker(engine, "exec", name, "box", "doctor", check=False).splitlines()
    return {line.split()[0] for line in lines if line[:1].isalpha() and line.split()[1:2] in (["missing"], ["warn"])}


def test_compose_with_boxd_in_a_container(engine, data, root, settings):
    project = Project(engine, HERE / "compose.yaml", data, settings, {
        "langbot": LANGBOT, "langbot_box": ["--health-interval=1s"]})

    def logs():
        return project.logs("langbot") + project.logs("langbot_box")

    try:
        project.up("langbot_box", "langbot")
        langbot, box = LangBot(project.address("langbot")), (project.address("langbot_box"), 5410)
        works(langbot, root, box, logs)
        assert walls(engine, "langbot_box") == {"disk-quota"}, "loop devices are another matter, see README.md"
        # What an update does: LangBot finds the new one by itself, and its servers run again.
        for file in root.rglob("from-the-box"):
            file.unlink()
        docker(engine, "restart", "langbot_box")
        project.healthy("langbot_box")
        until(lambda: langbot.box().get("managed_processes"), "the MCP server of the new boxd")
        works(langbot, root, box, logs, add=False)
    finally:
        project.down()


def test_compose_with_boxd_on_the_host(engine, data, root, settings):
    project = Project(engine, HERE / "compose-host.yaml", data, settings, {"langbot": LANGBOT})
    boxd = Boxd("--host", "0.0.0.0", "--ws-control-port", "5410", "--backend", "native", env={
        "LANGBOT_BOX_CONTROL_TOKEN": settings["LANGBOT_BOX_CONTROL_TOKEN"], "BOX_ALLOWED_MOUNT_ROOTS": str(root)})
    try:
        project.up("langbot")
        works(LangBot(project.address("langbot")), root, (GATEWAY, 5410), lambda: project.logs("langbot") + boxd.log())
    finally:
        project.down()
        boxd.close()


def test_the_containers_of_the_kubernetes_manifest(engine, data, root, settings):
    """No cluster: the manifest's two pods as containers that have what it gives them."""
    manifest = kubernetes.Manifest(HERE / "kubernetes.yaml")
    manifest.check()
    pods = kubernetes.Pods(engine, manifest, {"langbot-box-workspaces": root, "langbot-data": data / "data"},
                           {("langbot-box-control", "token"): settings["LANGBOT_BOX_CONTROL_TOKEN"]})
    try:
        pods.up("langbot-box", ())
        box = (pods.address("langbot-box"), 5410)
        until(lambda: ask(*box, "GET", "/readyz")[0] == 200, "the readiness probe")
        pods.up("langbot", LANGBOT)
        works(LangBot(pods.address("langbot")), root, box, lambda: pods.logs("langbot") + pods.logs("langbot-box"))
        assert walls(engine, "langbot-box") <= {"disk-quota"}
    finally:
        pods.down()


def test_nothing_is_named_that_is_not_there():
    """Every file that the README speaks of, and every setting that it has to."""
    text = (HERE / "README.md").read_text()
    for file in HERE.iterdir():
        assert file.name in text or file.name == "README.md", file.name
    for name in ("LANGBOT_BOX_CONTROL_TOKEN", "LANGBOT_BOX_ROOT", "SYS_ADMIN", "seccomp", "privileged"):
        assert name in text


def test_a_setting_that_is_missing_is_told(engine, data, settings):
    settings.pop("LANGBOT_BOX_CONTROL_TOKEN")
    with pytest.raises(Failed, match="LANGBOT_BOX_CONTROL_TOKEN is not set"):
        Project(engine, HERE / "compose.yaml", data, settings, {})


def test_boxd_in_a_container_serves_nobody_without_a_token(engine, data, settings):
    """The image listens on every address: it does not start without one."""
    project = Project(engine, HERE / "compose.yaml", data, settings, {})
    service = project.file["services"]["langbot_box"]
    del service["restart"], service["environment"]["LANGBOT_BOX_CONTROL_TOKEN"]
    text = docker(engine, "run", "--rm", "--network=none", *project.flags(service), service["image"], check=False)
    assert "LANGBOT_BOX_CONTROL_TOKEN" in text or "token_file" in text, text
