# SPDX-License-Identifier: Apache-2.0
"""What not every release has, or does alike: fields, calls, profiles. See also the mounts in test_sessions.py."""

import enum

import pytest
from langbot_client import errors, features, models
from langbot_plugin.entities.io.errors import ActionCallError


async def with_more_fields(box):
    spec = box.spec("echo hi").model_dump(mode="json")
    return await box.raw("EXEC", {**spec, "surprise": 1})


@pytest.mark.needs("artifacts")
async def test_unknown_fields_are_refused(box):
    with pytest.raises(errors.BoxValidationError, match="surprise\n  Extra inputs are not permitted"):
        await with_more_fields(box)


@pytest.mark.needs("skills")
async def test_unknown_fields_are_ignored(box):
    assert (await with_more_fields(box))["stdout"] == "hi"


class Removed(enum.Enum):
    LIST = "box_list_skills"
    CREATE = "box_create_skill"
    ZIP = "box_install_skill_zip"


@pytest.mark.needs("artifacts")
async def test_removed_calls_are_not_found(box):
    await box.sh("true")
    for action in Removed:
        with pytest.raises(ActionCallError, match=f"ValueError: Action {action.value} not found"):
            await box.handler.call_action(action, {"name": "x"}, action_context=box.context)


def test_the_profiles_of_the_release():
    """They are the client's: a spec has what comes of them. The one that it takes by default changed with 0.7.11."""
    names = {"default", "network_basic", "network_extended", "offline_readonly"}
    assert set(models.BUILTIN_PROFILES) == names | ({"offline"} if "offline" in features() else set())
    assert (models.BUILTIN_PROFILES["default"].network.value == "on") == ("offline" in features())
    assert models.BoxSpec(session_id="s").network.value == "off"


@pytest.mark.needs("boxd")
@pytest.mark.parametrize("name", sorted(models.BUILTIN_PROFILES))
async def test_a_profile_is_what_the_sandbox_has(box, name):
    profile = models.BUILTIN_PROFILES[name]
    fields = {f: getattr(profile, f) for f in ("network", "host_path_mode", "cpus", "memory_mb", "pids_limit",
                                               "read_only_rootfs")}
    result = await box.sh("sed 1,2d /proc/net/dev | cut -d: -f1 | grep -cv lo; touch /etc/x && echo written", **fields)
    reached, written = int(result.stdout.split()[0]) > 0, "written" in result.stdout
    assert (reached, written) == (profile.network.value == "on", not profile.read_only_rootfs)
    session = (await box.get_sessions())[0]
    assert {f: session[f] for f in fields} == {f: getattr(v, "value", v) for f, v in fields.items()}
