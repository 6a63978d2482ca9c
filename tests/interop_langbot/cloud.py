# SPDX-License-Identifier: Apache-2.0
"""LangBot's cloud mode, as far as it runs without its cloud: the application's box service, its admission controller
and its resolver of entitlements, with several workspaces, against a runtime that runs nothing without a grant. What
LangBot's control plane would tell is told by the steps. Further steps of the driver; runs like it.
"""

import asyncio
import copy
import time
import types

import driver
from driver import bot, plain, shown, step, text_of, workspace

QUOTA_MB = 16
EXPIRES = int(time.time()) + 3600  # of all revisions: one revision says one thing
POLICY = {"required": True, "logical_session_id": "global", "required_backend": "nsjail", "max_sessions": 1,
          "max_managed_processes": 0, "max_grant_ttl_sec": 300, "max_timeout_sec": 20, "cpus": 1.0, "memory_mb": 256,
          "pids_limit": 64, "read_only_rootfs": True, "workspace_quota_mb": QUOTA_MB, "readiness_cache_sec": 0}
tenants, entitled = {}, {}
state = types.SimpleNamespace(service=None, ap=None)


class Application:
    """The booted application as its cloud would have set it up: everything that is not here is the real one's."""

    def __init__(self, settings):
        from langbot.pkg.cloud.entitlements import EntitlementResolver

        self.deployment = types.SimpleNamespace(multi_workspace_enabled=True, mode="cloud")
        self.instance_config = types.SimpleNamespace(data={**bot.ap.instance_config.data, "box": settings})
        self.entitlement_resolver = EntitlementResolver(bot.context.instance_uuid, self)
        self.box_service = None

    async def get_workspace_entitlement(self, at):
        from langbot.pkg.cloud.entitlements import EntitlementSnapshot

        revision, status, features, sessions = entitled[at]
        return EntitlementSnapshot(
            instance_uuid=bot.context.instance_uuid, workspace_uuid=at, entitlement_revision=revision,
            status=status, not_before=0, expires_at=EXPIRES, features=features,
            limits={"managed_sandbox_sessions": sessions})

    def __getattr__(self, name):
        return getattr(bot.ap, name)


async def run(name, command, **more):
    """A command in the one sandbox that a workspace has."""
    result = await shown(state.service.execute_in_context(tenants[name], {"cmd": command, **more}))
    if isinstance(result, dict):
        return result["error"].split(":")[0] + ": " + plain(result["error"].split(":", 1)[1].strip())[:160]
    return {"exit": result.exit_code, "out": text_of(vars(result), "stdout").strip()}


@step
async def cloud_boot():
    """Fails closed, as LangBot does, unless the runtime proves its isolation and that both see the same directory."""
    from langbot.pkg.box.service import BoxService

    await bot.boot()
    settings = copy.deepcopy(bot.ap.instance_config.data["box"])
    root = driver.HERE / "data" / "box"
    (root / "default").mkdir(parents=True, exist_ok=True)
    settings.update(enabled=True, admission=POLICY)
    settings["local"].update(host_root=str(root), allowed_mount_roots=[str(root)])
    state.ap = Application(settings)
    state.service = state.ap.box_service = BoxService(state.ap)
    started = await shown(state.service.initialize())
    for name in ("one", "two"):
        tenants[name] = await workspace(name)
        entitled[tenants[name].workspace_uuid] = (1, "active", {"managed_sandbox": True}, 1)
    return {"available": state.service.available, "refused": started}


@step
async def cloud_readiness():
    info = await state.service.client.get_backend_info()
    readiness = info["readiness"]
    return {"name": info["name"], "mode": readiness["mode"], "ready": readiness["ready"]}


@step
async def cloud_tenants():
    """Two workspaces at once: each has its own sandbox and its own files, and each only one."""
    both = await asyncio.gather(*(run(name, f"echo {name} > who; sleep 1; cat who; ls") for name in ("one", "two")))
    return {"both": both, "again": await run("one", "cat who"),
            "sessions": [len(await state.service.get_sessions(tenants[name])) for name in ("one", "two")],
            "another session": await run("one", "true", session_id="second"),
            "network": await run("one", "true", network="on"),
            "forged": await run("one", "true", max_sessions=9), "elsewhere": await run("one", "true", host_path="/etc")}


@step
async def cloud_policy():
    """The limits are the operator's, whatever a tenant asks for."""
    await run("one", "true", memory_mb=4096, pids_limit=1000, cpus=8.0)
    session = (await state.service.get_sessions(tenants["one"]))[0]
    return {key: session[key] for key in ("memory_mb", "pids_limit", "cpus", "network", "persistent",
                                          "read_only_rootfs", "workspace_quota_mb")}


@step
async def cloud_processes():
    """LangBot itself starts none here."""
    return (await shown(state.service.start_managed_process(tenants["one"], "global", {"command": "cat"}))).get("error")


@step
async def cloud_quota():
    """More than the quota, by the tool of a chat: refused then and afterwards, and only for this workspace."""
    from langbot.pkg.box.runner import RunnerBoxService

    query = bot.new_query(context=tenants["two"])
    runner = RunnerBoxService(state.service)
    box = await runner.acquire(tenants["two"], {"reuse_key": "global"}, None)
    await runner.bind(tenants["two"], query, "run", box["id"])
    much = await shown(state.service.execute_tool(
        {"command": f"head -c {2 * QUOTA_MB}M /dev/zero > much; echo $?"}, query))
    then = await shown(state.service.execute_tool({"command": "echo again"}, query))
    return {"much": "quota" in str(much) or text_of(much, "stdout").strip() == "1", "then": "quota" in str(then),
            "the other": await run("one", "echo fine")}


@step
async def cloud_revoked():
    """An entitlement that ends takes the sandbox with it; a later revision brings it back."""
    at = tenants["one"].workspace_uuid
    entitled[at] = (2, "active", {"managed_sandbox": False}, 1)
    without = await run("one", "echo still here")
    entitled[at] = (3, "suspended", {"managed_sandbox": True}, 1)
    suspended = await run("one", "echo still here")
    kept = await run("two", "rm -f much; echo fine")
    entitled[at] = (1, "active", {"managed_sandbox": True}, 1)
    rolled_back = await run("one", "echo still here")
    entitled[at] = (4, "active", {"managed_sandbox": True}, 1)
    return {"without": without, "suspended": suspended, "rolled back": rolled_back, "the other": kept,
            "back": await run("one", "cat who")}


@step
async def cloud_status():
    seen = await state.service.get_status(tenants["one"])
    return {"available": seen["available"], "backend": seen["backend"]["name"], "tools":
            await state.service.is_workspace_sandbox_available(tenants["one"])}


@step
async def cloud_stop():
    await state.service.shutdown()
    return True


if __name__ == "__main__":
    driver.main()
