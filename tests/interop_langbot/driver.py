# SPDX-License-Identifier: Apache-2.0
"""LangBot, the application, booted in this process by its own code and told what to do, one step a line.

Runs on the Python of an environment with langbot in it, in the directory that LangBot shall live in. A line on standard
input is a JSON array: the name of a step and its arguments. Its answer is a line of JSON: what LangBot showed, or
{"error": ...}. Nothing here knows which runtime serves the sandboxes.
"""

import asyncio
import base64
import hashlib
import json
import os
import pathlib
import re
import sys
import time
import traceback
import uuid

LINE_LIMIT = 1 << 20
CONNECT_S = 180  # how long anything may take that LangBot repeats until it succeeds
HERE = pathlib.Path.cwd()
STEPS = {}


def step(function):
    STEPS[function.__name__] = function
    return function


def plain(text):
    """A message without what differs from run to run."""
    text = str(text).replace(str(HERE), "$HERE")
    text = re.sub(r"ws-[0-9a-f]{24}-g1-", "", text)
    text = re.sub(r"runner-[0-9a-f]{64}", "$SESSION", text)
    return re.sub(r"[0-9a-f]{64}", "$DIGEST", text)


async def shown(awaitable):
    """What a user of LangBot sees of a call: its result, or the error."""
    try:
        return await awaitable
    except Exception as error:
        print(traceback.format_exc(), file=sys.stderr)
        return {"error": f"{type(error).__name__}: {plain(error)}"}


async def until(condition, what):
    end = time.monotonic() + CONNECT_S
    while True:
        result = condition()
        if asyncio.iscoroutine(result):
            result = await result
        if result:
            return result
        if time.monotonic() > end:
            raise TimeoutError(f"{what} did not happen")
        await asyncio.sleep(0.05)


class LangBot:
    """The application with one workspace of it in view."""

    def __init__(self):
        self.ap = self.context = self.query = self.new_style = None
        self.queries = 0

    async def boot(self):
        from langbot.pkg.core import boot
        from langbot.pkg.core.bootutils import files

        await files.generate_files()
        self.ap = await boot.make_app(asyncio.get_running_loop())
        binding = await self.ap.workspace_service.get_execution_binding()
        self.context = self.scope(binding)
        self.new_style = hasattr(self.ap, "skill_repository")  # 4.11: a runner asks for the box, and keeps skills
        self.query = self.new_query()

    def scope(self, binding):
        from langbot.pkg.api.http.context import ExecutionContext

        return ExecutionContext(binding.instance_uuid, binding.workspace_uuid, binding.placement_generation)

    def new_query(self, *components, context=None, launcher="7"):
        """A message of a user in a private chat, as the pipeline sees it."""
        import dataclasses

        from langbot_plugin.api.entities.builtin.pipeline.query import Query
        from langbot_plugin.api.entities.builtin.platform import entities, events, message
        from langbot_plugin.api.entities.builtin.provider.session import LauncherTypes

        self.queries += 1
        context = dataclasses.replace(context or self.context, query_uuid=str(uuid.uuid4()))
        chain = message.MessageChain([message.Plain(text="hello"), *components])
        event = events.FriendMessage(sender=entities.Friend(id=launcher, nickname="n", remark="r"), time=0.0,
                                     message_chain=chain)
        query = Query(query_id=self.queries, query_uuid=context.query_uuid, launcher_type=LauncherTypes.PERSON,
                      launcher_id=launcher, sender_id=launcher, message_event=event, message_chain=chain,
                      instance_uuid=context.instance_uuid, workspace_uuid=context.workspace_uuid,
                      placement_generation=context.placement_generation, pipeline_config={}, variables={})
        object.__setattr__(query, "_execution_context", context)
        return query

    async def bound(self, query, key="chat"):
        """Does what the agent of a run does first: since 4.11 it asks for a box and binds it."""
        if self.new_style:
            from langbot.pkg.box.runner import RunnerBoxService

            runner, context = RunnerBoxService(self.ap.box_service), query._execution_context
            box = await runner.acquire(context, {"reuse_key": key}, query)
            await runner.bind(context, query, f"run-{query.query_id}", box["id"])
        return query

    async def tool(self, name, query=None, **parameters):
        """A tool, as a chat calls it. Some time after it has connected again, 4.10 closes its own connection once."""
        result = await shown(self.ap.tool_mgr.execute_func_call(name, parameters, query or self.query))
        if "closed by local runtime" in str(result):
            await until(lambda: self.ap.box_service.available, "the connection")
            result = await shown(self.ap.tool_mgr.execute_func_call(name, parameters, query or self.query))
        return result

    async def sh(self, command, query=None, **more):
        """A command of the exec tool: its exit status and what it printed."""
        result = await self.tool("exec", query, command=command, **more)
        if "error" in result and "exit_code" not in result:
            return result
        return {"exit": result["exit_code"], "out": plain(text_of(result, "stdout").strip())}

    async def sessions(self, context=None):
        return await self.ap.box_service.get_sessions(context or self.context)


def text_of(result, stream):
    return result.get(stream) or ""


bot = LangBot()


# Its life.


@step
async def boot():
    await bot.boot()
    return {"available": bot.ap.box_service.available, "why": plain(bot.ap.box_service._connector_error)}


@step
async def status():
    seen = await bot.ap.box_service.get_status(bot.context)
    return {"available": seen["available"], "enabled": seen["enabled"], "profile": seen["profile"],
            "capacity": seen.get("capacity"), "sessions": seen.get("active_sessions"),
            "backend": (seen.get("backend") or {}).get("name"), "why": seen.get("connector_error")}


@step
async def tools():
    found = await bot.ap.tool_mgr.native_tool_loader.get_tools()
    return sorted(tool.name for tool in found)


@step
async def reconnected():
    """After the runtime was away: LangBot finds it again by itself."""
    await until(lambda: bot.ap.box_service.available, "the connection")
    return True


@step
async def stop():
    """What LangBot does at its end, and by this the last step of a process."""
    if bot.ap is not None:
        await bot.ap.shutdown()
    return True


# Commands.


@step
async def acquire():
    await bot.bound(bot.query)
    return [fields_of(s) for s in await bot.sessions()]


def fields_of(session):
    keys = ("image", "network", "host_path_mode", "mount_path", "persistent", "cpus", "memory_mb", "pids_limit",
            "read_only_rootfs", "workspace_quota_mb", "status")
    return {key: session.get(key) for key in keys}


@step
async def execute():
    result = await bot.tool("exec", command="echo out; echo err >&2; exit 3")
    return {key: result.get(key, result.get("error")) for key in ("ok", "status", "exit_code", "stdout", "stderr")}


@step
async def surroundings():
    return {"workdir": await bot.sh("pwd"), "subdirectory": await bot.sh("mkdir -p sub && cd sub && pwd"),
            "workdir given": await bot.sh("pwd", workdir="/workspace/sub"),
            "workdir missing": (await bot.sh("pwd", workdir="/workspace/none")).get("exit"),
            "env": await bot.sh("echo $GREETING", env={"GREETING": "hi there"}),
            "stdin": await bot.sh("cat; echo end"),
            "python": await bot.sh("python -c 'print(6 * 7)'"), "python3": await bot.sh("python3 -c 'print(6 * 7)'"),
            "unicode": await bot.sh("printf 'grüße 你好'"), "root": await bot.sh("touch /x 2>/dev/null"),
            "tmp": await bot.sh("echo kept > /tmp/note"), "home": await bot.sh("touch ~/x && echo writable"),
            "not found": (await bot.sh("no-such-program")).get("exit"), "signal": await bot.sh("kill -9 $$")}


@step
async def identity():
    return await bot.sh("id -u")


@step
async def timeouts():
    result = await bot.tool("exec", command="echo early; sleep 100", timeout_sec=2)
    return {"status": result.get("status"), "ok": result.get("ok"), "exit": result.get("exit_code"),
            "out": text_of(result, "stdout").strip(), "said": plain(text_of(result, "stderr").strip()),
            "after": await bot.sh("echo alive; cat /tmp/note")}


@step
async def output():
    long = await bot.tool("exec", command="seq 1 100000")
    return {"status": long.get("status"), "truncated": long.get("stdout_truncated"),
            "first": text_of(long, "stdout")[:8], "last": text_of(long, "stdout").strip()[-8:],
            "many at once": [r.get("out") for r in await asyncio.gather(*(bot.sh(f"echo {i}") for i in range(8)))]}


@step
async def background():
    started = await bot.sh("(sleep 1000 & echo $! > /tmp/pid) > /dev/null 2>&1; echo started")
    return {"started": started, "lives on": await bot.sh("kill -0 $(cat /tmp/pid) && echo alive")}


# Files.


@step
async def files():
    data = base64.b64encode(bytes(range(256))).decode()
    deep = "/workspace/a/b/note.txt"
    return {
        "write": pick(await bot.tool("write", path=deep, content="one\ntwo\nthree\n")),
        "read": pick(await bot.tool("read", path=deep)),
        "read a part": pick(await bot.tool("read", path=deep, offset=2, limit=1)),
        "append": pick(await bot.tool("write", path=deep, content="four\n", mode="append")),
        "edit": pick(await bot.tool("edit", path=deep, old_string="two", new_string="2")),
        "edit, not there": pick(await bot.tool("edit", path=deep, old_string="zz", new_string="2")),
        "edited": pick(await bot.tool("read", path=deep)),
        "glob": pick(await bot.tool("glob", path="/workspace", pattern="**/*.txt")),
        "grep": pick(await bot.tool("grep", path="/workspace", pattern="thr.e")),
        "grep, bad": pick(await bot.tool("grep", path="/workspace", pattern="(")),
        "binary": pick(await bot.tool("write", path="/workspace/bin", content=data, encoding="base64")),
        "binary inside": await bot.sh("sha256sum < bin | cut -c 1-16"),
        "directory": pick(await bot.tool("read", path="/workspace/a")),
        "missing": pick(await bot.tool("read", path="/workspace/nowhere")),
        "outside": pick(await bot.tool("write", path="/etc/x", content="x")),
        "above": pick(await bot.tool("read", path="/workspace/../etc/passwd")),
        "made by a command": await bot.sh("echo mine > made && chmod 600 made && echo ok"),
        "read back": pick(await bot.tool("read", path="/workspace/made")),
        "changed": pick(await bot.tool("edit", path="/workspace/made", old_string="mine", new_string="yours")),
        "seen": await bot.sh("cat made"),
        "big": pick(await bot.tool("write", path="/workspace/big", content="x" * 300000)),
        "big inside": await bot.sh("wc -c < big"),
    }


def pick(result):
    """What a tool said, without what differs from run to run."""
    if not isinstance(result, dict):
        return plain(result)
    keep = {k: v for k, v in result.items() if k not in ("backend", "session_id", "duration_ms", "mtime", "size_bytes")}
    return json.loads(plain(json.dumps(keep, sort_keys=True)))


# Skills.


def skill(name, word):
    return {"name": name, "display_name": name, "description": f"says {word}", "instructions": f"Say {word}."}


async def write_in_skill(name, path, content):
    service = bot.ap.skill_service
    if not bot.new_style:
        return await service.write_skill_file(bot.context, name, path, content)
    revision = (await bot.ap.skill_repository.get_skill(bot.context, name))["revision"]
    return await service.write_skill_file(bot.context, name, path, content, base_revision=revision)


async def activated(name, query):
    """The directory of a skill inside, or the error."""
    result = await bot.tool("activate", query, skill_name=name)
    return result.get("mount_path") or result


async def in_skill(name, query, command):
    place = await activated(name, query)
    return await bot.sh(f"cd {place} && {command}", query) if isinstance(place, str) else place


@step
async def skills_made():
    for name, word in (("greet", "hello"), ("leave", "bye")):
        await bot.ap.skill_service.create_skill(bot.context, skill(name, word))
        await write_in_skill(name, "say.sh", f"echo {word} from $1\n")
    await bot.sh("(sleep 1000 & echo $! > /tmp/pid) > /dev/null 2>&1; echo before > /tmp/note")
    return sorted(s["name"] for s in await bot.ap.skill_service.list_skills(bot.context))


@step
async def skill_activated():
    """An activated skill reaches the living session, which loses nothing."""
    return {"run": await in_skill("greet", bot.query, "sh ./say.sh one"),
            "tmp": await bot.sh("cat /tmp/note"), "process": await bot.sh("kill -0 $(cat /tmp/pid) && echo alive")}


@step
async def two_skills():
    return {"second": await in_skill("leave", bot.query, "sh ./say.sh two"),
            "first": await in_skill("greet", bot.query, "sh ./say.sh one again"),
            "instructions": await in_skill("leave", bot.query, "grep -c 'Say bye.' SKILL.md"),
            "tmp": await bot.sh("cat /tmp/note"), "process": await bot.sh("kill -0 $(cat /tmp/pid) && echo alive")}


@step
async def skill_written_inside():
    """Since 4.11 a published skill is read-only."""
    return (await in_skill("leave", bot.query, "echo no > extra")).get("exit")


@step
async def skill_updated():
    """A new revision is what the next run sees; the running one keeps what it activated (since 4.11)."""
    await write_in_skill("greet", "say.sh", "echo good day from $1\n")
    old = await in_skill("greet", bot.query, "sh ./say.sh three")
    query = await bot.bound(bot.new_query())
    new = await in_skill("greet", query, "sh ./say.sh three")
    return {"old run": old, "new run": new, "tmp": await bot.sh("cat /tmp/note", query)}


@step
async def skill_registered():
    """The agent writes a skill in its workspace and publishes it."""
    await bot.sh("mkdir -p made-skill && cd made-skill && echo 'echo made it' > run.sh"
                 " && printf -- '---\\nname: made\\ndescription: d\\n---\\nDo it.\\n' > SKILL.md")
    result = await bot.tool("register_skill", path="/workspace/made-skill")
    query = await bot.bound(bot.new_query())
    return {"registered": result.get("skill_name", result.get("error")),
            "run": await in_skill("made", query, "sh ./run.sh")}


@step
async def skill_removed():
    await bot.ap.skill_service.delete_skill(bot.context, "greet")
    query = await bot.bound(bot.new_query())
    gone = await activated("greet", query)
    return {"activation": gone.get("error", gone) if isinstance(gone, dict) else gone,
            "other": await in_skill("leave", query, "sh ./say.sh four"), "tmp": await bot.sh("cat /tmp/note", query)}


# Attachments.


def attachment(name, data):
    from langbot_plugin.api.entities.builtin.platform import message

    return message.File(name=name, base64=base64.b64encode(data).decode(), size=len(data))


async def received(query):
    if not bot.new_style:
        return await bot.ap.box_service.materialize_inbound_attachments(query)
    from langbot.pkg.box.runner import RunnerBoxService

    return (await RunnerBoxService(bot.ap.box_service).import_attachments(query, None))["items"]


@step
async def attachments_in():
    """Files of a message are in the box: read, and changed, by a command."""
    data = {"a file.bin": os.urandom(100), "large.bin": os.urandom(3 << 20)}
    query = await bot.bound(bot.new_query(*(attachment(n, d) for n, d in data.items())))
    items = await shown(received(query))
    if "error" in items:
        return items
    same = []
    for item, content in zip(items, data.values()):
        raw = await bot.tool("exec", query, command=f"sha256sum < '{item['path']}'")
        same.append(text_of(raw, "stdout")[:64] == hashlib.sha256(content).hexdigest())
    return {"names": [i["name"] for i in items], "sizes": [i["size"] for i in items], "same": same,
            "appended": await bot.sh(f"echo more >> '{items[0]['path']}' && echo ok", query)}


def sent(items):
    return [{"name": i["name"], "type": i["type"], "size": len(base64.b64decode(i["base64"].rpartition(",")[2]))}
            for i in items]


@step
async def attachments_out():
    """Files of the outbox go to the user: small, above 1 MiB, and such as only their owner may read."""
    query = await bot.bound(bot.new_query())
    scope = query._box_binding.io_scope if bot.new_style else bot.ap.box_service._attachment_query_key(query)
    box = f"/workspace/outbox/{scope}"
    await bot.sh(f"mkdir -p {box} && cd {box} && echo hi > a.txt && head -c 2097152 /dev/zero > b.bin && echo p > p.png"
                 " && chmod 600 *", query)
    items = await shown(bot.ap.box_service.collect_outbound_attachments(query))
    return {"sent": items if "error" in items else sorted(sent(items), key=lambda i: i["name"]),
            "left": await bot.sh(f"ls {box} 2>/dev/null | wc -l", query)}


@step
async def exports():
    """Since 4.11 a runner names files, wherever they are in the box."""
    if not bot.new_style:
        return None
    from langbot.pkg.box.runner import RunnerBoxService

    runner, query = RunnerBoxService(bot.ap.box_service), await bot.bound(bot.new_query())
    seen = {}
    for name, size in (("/tmp/small", 1000), ("/tmp/700k", 700 << 10), ("/tmp/large", 3 << 19),
                       ("/workspace/large", 3 << 19)):
        await bot.sh(f"head -c {size} /dev/zero > {name}", query)
        result = await shown(runner.export_files(query, [name]))
        seen[name] = result.get("error") or [i["size"] for i in result["items"] if name.endswith(i["name"])]
        seen[f"{name} after"] = await bot.sh(f"test -e {name} && echo kept || echo gone", query)
    missing = await shown(runner.export_files(query, ["/tmp/none"]))
    return {**seen, "missing": missing.get("error")}


# Policy.


@step
async def profiles():
    from langbot_plugin.box.models import BUILTIN_PROFILES

    service, seen, before = bot.ap.box_service, {}, bot.ap.box_service.profile
    try:
        for name, profile in BUILTIN_PROFILES.items():
            service.profile = profile
            made = await shown(service.create_session(bot.context, {"session_id": f"profile-{name}"}))
            if "error" in made:
                seen[name] = made
                continue
            at = {"session_id": f"profile-{name}"}
            run = {}
            for what, command in (("workspace", "touch here && echo writable"), ("root", "touch /usr/x"),
                                  ("memory", "python3 -c 'x = b\"x\" * (1900 << 20)'; echo $?")):
                result = await shown(service.execute_in_context(bot.context, {**at, "cmd": command + " 2>/dev/null"}))
                run[what] = result if isinstance(result, dict) else [result.exit_code, result.stdout.strip()]
            if not isinstance(run["memory"], dict):  # the program dies, or the whole command with it
                run["memory"] = "killed" if "137" in map(str, run["memory"]) else run["memory"]
            seen[name] = {**fields_of(next(s for s in await bot.sessions() if s["session_id"].endswith(name))), **run}
            await service.client.delete_session(f"profile-{name}", action_context=service._action_context(bot.context))
    finally:
        service.profile = before
    return seen


@step
async def quota():
    """A workspace that is too large: LangBot itself measures it after a command."""
    service = bot.ap.box_service
    query = bot.new_query(launcher="quota")
    if bot.new_style:
        query = await bot.bound(query, "quota")
    asked = {"session_id": service.resolve_box_session_id(query), "workspace_quota_mb": 32}
    await shown(service.client.delete_session(asked["session_id"], action_context=service._action_context(bot.context)))
    fits, much, then = [await shown(service.execute_spec_payload({**asked, "cmd": command}, query)) for command in (
        "head -c 1000000 /dev/zero > fits; echo $?", "head -c 60000000 /dev/zero > much; echo $?", "echo again")]
    await bot.sh("rm -f much fits")
    return {"fits": text_of(fits, "stdout").strip() or fits.get("error"), "too much": refusal(much),
            "next": refusal(then)}


def refusal(result):
    if "error" in result:
        return result["error"].split(":")[1].strip()  # the numbers come behind it
    return {"exit": result.get("exit_code"), "out": text_of(result, "stdout").strip()}


@step
async def storage():
    if not bot.new_style:
        return None
    seen = await shown(bot.ap.box_service.get_storage_analysis(bot.context))
    return shape(seen)


def shape(value):
    """Which fields there are, and of what kind their values are."""
    if isinstance(value, dict):
        return {k: shape(v) for k, v in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


@step
async def sessions_listed():
    return sorted(str(fields_of(s)) for s in await bot.sessions())


# MCP servers.


@step
async def mcp_start(project):
    """Two stdio servers: one of the user's own directory (4.10 puts those where no session sees them), started as
    python, as LangBot starts those of virtual environments; one that lies in the workspace."""
    await bot.tool("write", path="/workspace/server.py", content=pathlib.Path(project, "server.py").read_text())
    place = project if bot.new_style else "/workspace"
    for name, command, script in (("counter", "python", f"{place}/server.py"), ("other", "python3", "server.py")):
        await bot.ap.mcp_service.create_mcp_server(bot.context, {
            "name": name, "mode": "stdio", "enable": True,
            "extra_args": {"command": command, "args": [script, name], "env": {"GREETING": "hi"}}})
    return await mcp_call()


async def mcp_session(name):
    loader = bot.ap.tool_mgr.mcp_tool_loader

    def connected():
        session = loader.get_session(bot.context, name)
        return session if session is not None and session.status.value == "connected" else None

    return await until(connected, f"the MCP server {name}")


async def mcp_says(name):
    """Its answer, as a tool call of a chat sees it."""
    content = await bot.ap.tool_mgr.execute_func_call(f"{name}_count", {}, bot.query)
    text = content[0].text if isinstance(content, list) else content
    return json.loads(text)


@step
async def mcp_call():
    """Calls until both answer: LangBot connects by itself, again and again."""
    seen = {}
    for name in ("counter", "other"):
        await mcp_session(name)

        async def answer():
            result = await shown(mcp_says(name))
            return None if "error" in result else result

        seen[name] = await until(answer, f"an answer of {name}")
    return seen


@step
async def mcp_tools():
    loader = bot.ap.tool_mgr.mcp_tool_loader
    return sorted(t.name for name in ("counter", "other") for t in loader.get_session(bot.context, name).get_tools())


@step
async def mcp_stop():
    for server in await bot.ap.mcp_service.get_mcp_servers(bot.context):
        await bot.ap.mcp_service.delete_mcp_server(bot.context, server["uuid"])
    return len(await bot.ap.mcp_service.get_mcp_servers(bot.context))


# Restarts and workspaces.


@step
async def kept():
    """What is left of a chat after a restart of LangBot, or of the runtime."""
    query = await bot.bound(bot.new_query())
    return {"workspace": await bot.sh("cat made", query), "tmp": await bot.sh("cat /tmp/note 2>/dev/null", query),
            "process": await bot.sh("kill -0 $(cat /tmp/pid 2>/dev/null) 2>/dev/null && echo alive", query),
            "skill": await in_skill("leave", query, "sh ./say.sh five")}


async def workspace(name):
    """One more of the instance, as the directory of LangBot's cloud brings them."""
    import sqlalchemy
    from langbot.pkg.entity.persistence import workspace as tables

    at, instance = str(uuid.uuid4()), bot.context.instance_uuid
    for table, row in (
            (tables.Workspace, {"uuid": at, "instance_uuid": instance, "name": name, "slug": name,
                                "source": "cloud_projection"}),
            (tables.WorkspaceExecutionState, {"workspace_uuid": at, "instance_uuid": instance, "active_generation": 1,
                                              "state": "active", "source": "cloud"})):
        await bot.ap.persistence_mgr.execute_async(sqlalchemy.insert(table).values(row))
    return bot.scope(await bot.ap.workspace_service.get_execution_binding(at))


@step
async def two_workspaces():
    """The same chat in two workspaces at once."""
    other = await workspace("two")
    mine, theirs = await bot.bound(bot.new_query()), await bot.bound(bot.new_query(context=other))
    runs = await asyncio.gather(*(bot.sh(f"echo {word} > /tmp/who; echo {word} > who; sleep 1; cat /tmp/who who", query)
                                  for word, query in (("mine", mine), ("theirs", theirs))))
    return {"at once": runs, "afterwards": [await bot.sh("cat who", q) for q in (mine, theirs)],
            "files of the other": await bot.sh("ls /workspace", theirs),
            "sessions of the other": len(await bot.sessions(other)),
            "mine say": all("theirs" not in str(s) for s in await bot.sessions())}


async def serve(answers):
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=LINE_LIMIT)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        name, *arguments = json.loads(line)
        answer = await shown(STEPS[name](*arguments))
        print(json.dumps(answer), file=answers, flush=True)
        if name == "stop":
            return


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # LangBot prints
    asyncio.run(serve(answers))
    os._exit(0)  # threads that LangBot leaves behind keep nothing of ours


if __name__ == "__main__":
    main()
