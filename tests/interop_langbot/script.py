# SPDX-License-Identifier: Apache-2.0
"""What LangBot is told to do, the same in front of every runtime, and how what it showed is compared."""

import fnmatch
import pathlib
import re

from worlds import World

RELEASES = ("4.11.2", "4.10.11")
KINDS = ("upstream", "native", "docker")
TABLE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "internals" / "interop.md"
SAME = "="

# A name of its own for each, and the step of the driver. 4.10.11 does not find its MCP servers again after the runtime
# was away, whichever it was (a TypeError of its own).
BEFORE = ("status", "tools", "acquire", "execute", "surroundings", "identity", "timeouts", "output", "background",
          "files", "skills_made", "skill_activated", "two_skills", "skill_written_inside", "skill_updated",
          "skill_registered", "skill_removed", "attachments_in", "attachments_out", "exports", "profiles", "quota",
          "storage", "sessions_listed", "mcp_start", "mcp_tools")
NAMES = ("boot", *BEFORE, "killed_mcp", "killed_kept", "two_workspaces", "restarted", "restarted_mcp", "restarted_kept",
         "mcp_stop")


def play(release, kind):
    """The whole script in a world of its own: what each step showed."""
    world = World(release, kind)
    try:
        seen = {"boot": world.step("boot")}
        if not seen["boot"].get("available"):
            raise AssertionError(f"LangBot {release} cannot use {kind}: {seen['boot']}")
        for name in BEFORE:
            seen[name] = world.step(name, *([world.project()] if name == "mcp_start" else []))
        world.server.kill()
        world.server.start()
        world.step("reconnected")
        seen["killed_mcp"] = None if release.startswith("4.10") else world.step("mcp_call")
        seen["killed_kept"] = world.step("kept")
        seen["two_workspaces"] = world.step("two_workspaces")
        world.driver.end()
        world.driver.close()
        world.start()
        seen["restarted"] = world.step("boot")
        seen["restarted_mcp"] = world.step("mcp_call")
        seen["restarted_kept"] = world.step("kept")
        seen["mcp_stop"] = world.step("mcp_stop")
        world.driver.end()
        return seen
    finally:
        world.close()


def flat(value, at):
    """Everything that was seen, each under a name: files.read.content."""
    if isinstance(value, dict) and value:
        return {k: v for key, inner in value.items() for k, v in flat(inner, f"{at}.{key}").items()}
    if isinstance(value, list) and value:
        return {k: v for i, inner in enumerate(value) for k, v in flat(inner, f"{at}.{i}").items()}
    return {at: value}


def differences(upstream, other):
    """{name: (upstream's, the other's)} of one step."""
    return {name: (upstream.get(name), other.get(name)) for name in sorted({*upstream, *other})
            if upstream.get(name) != other.get(name)}


class Row:
    """A row of the table of differences: names, and whether native and Docker differ."""

    def __init__(self, line):
        cells = [c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]]
        self.patterns = re.findall(r"`([^`]+)`", cells[0])
        self.differs = {"native": cells[2] != SAME, "docker": cells[3] != SAME}
        self.judged = cells[4]

    def covers(self, kind, name):
        return self.differs[kind] and any(fnmatch.fnmatchcase(name, p) for p in self.patterns)


def rows():
    text = TABLE.read_text()
    part = text[text.index("<!-- differences -->"):text.index("<!-- end of differences -->")]
    return [Row(line) for line in part.splitlines() if line.startswith("| `")]
