# SPDX-License-Identifier: Apache-2.0
"""Every kind of rule about commands, over every front that runs them: one table says what comes of it on each. A command
of LangBot passes the same gate; what it is exempt from is in the table here as it is in command/command.c and in
docs/reference/policy.md."""

import contextlib
import dataclasses
import functools
import os
import pathlib
import re
import uuid

import pytest
from boxlib import ApiError
from lbwire import Rpc, RpcError, physical
from mcpservelib import Http
from policylib import Governed, token
from ssetext import Events

MIB = 1 << 20
FRONTS = ("v1", "stream", "mcp", "chat", "langbot")
OPEN = {"tools": ["*"], "profiles": ["*"], "networks": ["*"], "sessions": ["*"], "mounts": [{"path": "/var/tmp", "mode": "rw"}]}
CHAT = ("sandbox: {image: host, chats_root: '{top}/chats', dependencies_host_path: '{top}/deps', "
        "lambda_tools_host_path: '{top}/tools'}\n")


@dataclasses.dataclass
class Case:
    """One rule. `want` are patterns of the answer: those of one front, or of `all` others."""
    want: dict
    config: str = ""
    scope: dict = None  # of the caller's token; None: it needs none
    spec: dict = dataclasses.field(default_factory=dict)
    cmd: str = "echo hi"
    request: dict = dataclasses.field(default_factory=dict)
    full: bool = False  # the workspace has more than its quota


RAN = "ran exited: hi$"
CASES = {
    "nothing forbids it": Case({"all": RAN}),
    "box.enabled": Case({"all": r"refused: Box runtime is disabled in config \(box\.enabled = false\)", "langbot": RAN},
                        config="box: {enabled: false}\n"),
    "the longest timeout of the profile": Case(
        {"all": "ran timed_out: .* policy={'profile': 'brief', .*'clamped': True",
         "langbot": r"ran timed_out: Command timed out after 2 seconds\. policy=None"},
        config="box: {local: {profile: brief}}\nprofiles: {brief: {timeout_sec: 1, max_timeout_sec: 1}}\n",
        cmd="exec sleep 100000", request={"timeout_sec": 2}),
    # A session that LangBot makes is not made under a profile, nor is that of a chat: neither has the lock.
    "a locked environment": Case(
        {"all": "ran exited: none policy=.*'overridden': \\['env'\\]", "chat": "ran exited: given",
         "langbot": "ran exited: given policy=None"},
        config="box: {local: {profile: bare}}\nprofiles: {bare: {locked: [env]}}\n",
        cmd="echo ${MINE:-none}", request={"env": {"MINE": "given"}}),
    # A chat has no quota.
    "the quota of a directory of the host": Case(
        {"all": f"refused: workspace quota exceeded before execution: used={2 * MIB} bytes", "chat": RAN, "langbot": RAN},
        config="box: {local: {allowed_mount_roots: ['{top}']}}\n", full=True,
        spec={"host_path": "{top}/full", "host_path_mode": "rw", "workspace_quota_mb": 1}),
    "output_limit_chars": Case({"all": "ran exited: x{1000}$", "mcp": "ran exited: x{1,60}\n.*truncated"},
                               config="box: {output_limit_chars: 100}\n", cmd="printf 'x%.0s' $(seq 1000)"),
    "a token without the tool": Case({"all": "refused: token 'ci' may not use 'exec'", "langbot": RAN},
                                     scope={**OPEN, "denied_tools": ["exec"]}),
    "a token of other sessions": Case({"all": "refused: session .* not found|refused: .*'ci'.*session", "langbot": RAN},
                                      scope={**OPEN, "sessions": ["other-*"]}),
    "a token of other networks": Case({"all": "refused: token 'ci' may not use sessions with network off", "langbot": RAN},
                                      scope={**OPEN, "networks": ["on"]}),
    "a token without the directory": Case(
        {"all": "refused: token 'ci' may not mount", "langbot": RAN}, scope={**OPEN, "mounts": []},
        config="box: {local: {allowed_mount_roots: ['{top}']}}\n",
        spec={"host_path": "{top}/plain", "host_path_mode": "rw"}),
    "the share of a token": Case({"all": r"refused: token 'ci' .*\(max_execs\)", "langbot": RAN},
                                 scope={**OPEN, "max_execs": 0}),
}


class Table:
    """A boxd with the rule of one case, and a way to run a command by each front."""

    def __init__(self, case, make=Governed):
        self.case = case
        entry, self.text = token("ci", **case.scope) if case.scope is not None else (None, None)
        self.daemon = make(case.config + CHAT, tcp=True, tokens=[entry] if entry else None)
        for name in ("full", "plain", "deps", "tools"):
            self.daemon.directory(name)
        if case.full:
            (self.daemon.top / "full/big").write_bytes(bytes(2 * MIB))
        self.spec = {k: str(v).replace("{top}", str(self.daemon.top)) if k == "host_path" else v
                     for k, v in case.spec.items()}
        self.local = self.daemon.client()
        self.http = self.daemon.caller(self.text)

    def close(self):
        self.http.close()
        self.local.close()
        self.daemon.close()

    @functools.cached_property
    def session(self):
        """Made by somebody whom the rule lets make it."""
        if "enabled: false" not in self.case.config:
            return self.local.new(f"{self.reach()}matrix", **self.spec)["session_id"]
        with Rpc(self.daemon.sock) as rpc:
            rpc.call("box_create_session", {"session_id": "matrix", "image": "host"})
        return physical("matrix")

    def reach(self):
        """What names begin with that a client of MCP without a token may use."""
        if self.text is not None:
            return ""
        Http(self.daemon.port).tool("exec", command="true")
        return next(s["session_id"] for s in self.local.ps() if re.fullmatch("mcp-[a-z]+", s["session_id"])) + "-"

    def v1(self, sid=None):
        return self.ended(self.http.sh(sid or self.session, self.case.cmd, **self.case.request))

    def stream(self):
        headers = {"Content-Type": "application/json"}
        if self.text is not None:
            headers["Authorization"] = f"Bearer {self.text}"
        out = ""
        with Events(("127.0.0.1", self.daemon.port), "POST", f"/v1/sessions/{self.session}/exec",
                    {"cmd": self.case.cmd, **self.case.request}, headers) as events:
            if events.status != 200:
                raise ApiError(events.status, events.problem())
            for event, _, data in events:
                out += data.get("text", "") if event == "output" else ""
                if event == "failed":
                    raise ApiError(0, data["problem"])
                if event == "exit":
                    return self.ended({**data, "stdout": out})
        raise AssertionError("the stream has no end")

    def mcp(self):
        where = {} if "enabled: false" in self.case.config else {"session_id": self.session}
        result = Http(self.daemon.port, self.text).tool("exec", command=self.case.cmd, **where, **self.case.request)
        if "outcome" not in result.get("structuredContent", {}):
            raise ApiError(0, {"detail": result["content"][0]["text"]})
        return self.ended(result["structuredContent"])

    @functools.cached_property
    def a_chat(self):
        return self.local.call("POST", "/api/v1/create", {"chat_id": str(uuid.uuid4())})["chat_id"]

    def chat(self):
        return self.v1(self.a_chat)

    def langbot(self):
        with Rpc(self.daemon.sock) as rpc:
            return self.ended(rpc.exec("matrix", self.case.cmd, image="host", **self.spec, **self.case.request))

    def ended(self, answer):
        said = (answer["stdout"] or answer.get("stderr") or "").rstrip()
        policy = self.daemon.audit(event="exec_end")[-1].get("policy")
        tail = f" policy={policy}" if self.case.request else ""
        return f"ran {answer['outcome']}: {said}{tail}"

    def verdict(self, front):
        try:
            return getattr(self, front)()
        except ApiError as e:
            return f"refused: {e.detail}"
        except RpcError as e:
            return f"refused: {e}"


@pytest.fixture(scope="module", params=CASES)
def table(request):
    made = Table(CASES[request.param])
    yield made
    made.close()


@pytest.mark.parametrize("front", FRONTS)
def test_each_front_gets_the_verdict_of_the_table(table, front):
    want = table.case.want.get(front, table.case.want["all"])
    said = table.verdict(front)
    assert re.match(want, said, re.S), f"{said!r} is not like {want!r}"


class Small(Governed):
    """Its state lies on a disk of 24 MiB, in a mount namespace of its own."""

    def start(self):
        script = 'mount -t tmpfs -o size=24m,mode=755 none "$0" && exec "$@"'
        self.prefix = ["unshare", "-m", "--propagation", "private", "sh", "-c", script, str(self.state)]
        super().start()
        self.seen = pathlib.Path(f"/proc/{self.pid}/root{self.state}")
        self.sock = self.seen / "boxd.sock"

    def audit(self, **want):
        return [{}]

    def fill(self):
        with open(self.seen / "filler", "wb", buffering=0) as filler:
            for size in (1 << 20, 4096):
                with contextlib.suppress(OSError):
                    while True:
                        filler.write(b"x" * size)


def test_what_cannot_be_recorded_runs_on_no_front():
    """audit.on_full: LangBot has no exemption from this one."""
    if os.geteuid() != 0:
        pytest.skip("needs root: a disk of a size of its own")
    table = Table(Case({}, config="audit: {on_full: refuse}\n"), Small)
    try:
        assert {front: table.verdict(front) for front in FRONTS} == dict.fromkeys(FRONTS, "ran exited: hi")
        table.daemon.fill()
        with pytest.raises(ApiError, match="nothing runs that cannot be recorded"):
            for _ in range(2000):  # until what is reserved is used up
                table.local.sh(table.session, "echo more; : " + "y" * 900)
        for front in FRONTS:
            assert re.match("refused: .*nothing runs that cannot be recorded", table.verdict(front)), front
    finally:
        table.close()
