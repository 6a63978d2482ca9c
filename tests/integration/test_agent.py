# SPDX-License-Identifier: Apache-2.0
"""`box agent`: a coding agent in a session of its project, with its own keys and settings and nothing else of the home."""

import json
import os
import pathlib
import pty
import shutil
import subprocess
import tempfile

import pytest
from boxlib import BUILD, box
from hostlib import mount_dir

pytestmark = pytest.mark.rootless

# Stands for every agent: tells what it was started with and what it sees, and leaves something in both places.
STAND_IN = r'''#!/usr/bin/python3
import json, os, pathlib, subprocess, sys
home = pathlib.Path.home()
git = [subprocess.run(["git", "config", key], capture_output=True, text=True).stdout.strip() for key in ("user.name", "user.email")]
print(json.dumps({"argv": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ), "git": git,
                  "stdin": None if sys.stdin.isatty() else sys.stdin.read(),
                  "home": sorted(p.name for p in home.iterdir()), "tty": sys.stdout.isatty(),
                  "homes": sorted(os.listdir("/home")), "above": sorted(os.listdir(".."))}))
(home / "kept").write_text("x")
pathlib.Path("made").write_text("by the agent\n")
for name in (".claude", ".codex"):
    if (home / name).is_dir():
        (home / name / "history").write_text("written inside")
'''


class User:
    """Someone with a home, a project in it, and agents in ~/.local/bin."""

    def __init__(self, sock):
        # Somewhere that has the same name inside, on a file system that maps ids.
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="box-agent-", dir="/srv" if os.geteuid() == 0 else "/tmp"))
        self.home.chmod(0o755)
        self.sock, self.sessions = sock, set()
        self.project = self.home / "shop"
        self.programs = self.home / ".local/bin"
        (self.project / ".git").mkdir(parents=True)
        (self.project / "src").mkdir()
        self.programs.mkdir(parents=True)
        for name in ("claude", "pal"):
            (self.programs / name).write_text(STAND_IN)
            (self.programs / name).chmod(0o755)
        (self.home / ".claude").mkdir()
        (self.home / ".ssh").mkdir()
        (self.home / ".gitconfig").write_text("[user]\n\tname = Some One\n\temail = some@one.example\n"
                                              "[credential]\n\thelper = store\n")
        self.env = {"HOME": str(self.home), "PATH": f"{self.programs}:/usr/bin:/bin", "ANTHROPIC_API_KEY": "sk-a",
                    "OPENAI_API_KEY": "sk-o", "MY_TOKEN": "secret", "XDG_CACHE_HOME": ""}

    def box(self, *words, cwd=None, **more):
        return box(*words, sock=self.sock, env=self.env, cwd=cwd or self.project, **more)

    def agent(self, *words, **more):
        """What the agent saw, and what box said of it."""
        done = self.box("agent", words[0], "--network", "off", *words[1:], **more)
        assert done.returncode == 0, done.stderr
        self.sessions.add(done.stderr.split("session '")[1].split("'")[0])
        return json.loads(done.stdout), done.stderr

    def close(self):
        for name in self.sessions:
            self.box("rm", name)
        shutil.rmtree(self.home)


@pytest.fixture
def user(boxd_shared):
    someone = User(boxd_shared.sock)
    yield someone
    someone.close()


def test_an_agent_gets_the_project_and_its_own_key_and_nothing_else(user):
    saw, said = user.agent("claude", "--", "fix", "two words", input="do it", stdin=None)
    assert saw["argv"] == ["--settings", '{"sandbox":{"enabled":false}}', "fix", "two words"] and saw["stdin"] == "do it"
    assert saw["cwd"] == str(user.project) and not saw["tty"]
    assert saw["above"] == ["shop"], "of the directory above only the way to the project is there"
    assert saw["git"] == ["Some One", "some@one.example"]
    assert saw["home"] == [".gitconfig"] and "credential" not in json.dumps(saw)
    env = saw["env"]
    assert env["ANTHROPIC_API_KEY"] == "sk-a" and env["IS_SANDBOX"] == "1" and env["SHELL"] == "/bin/bash"
    assert "OPENAI_API_KEY" not in env and "MY_TOKEN" not in env and env["HOME"] == "/home/box"
    assert "claude gets ANTHROPIC_API_KEY of your environment" in said and f"with {user.project}, writable" in said
    made = user.project / "made"
    assert made.read_text() == "by the agent\n" and made.stat().st_uid == os.geteuid()


def test_the_second_start_finds_the_files_of_the_first(user):
    first, _ = user.agent("pal", "--keys", "off", "words", "without", "dashes")
    assert first["argv"] == ["words", "without", "dashes"], "any program on PATH is an agent"
    second, _ = user.agent("pal", cwd=user.project / "src")
    assert "kept" not in first["home"] and "kept" in second["home"]
    assert second["cwd"] == str(user.project / "src"), "one session for the project that git knows"
    assert len(user.sessions) == 1
    name, = user.sessions
    assert name.startswith("agent-pal-shop-")
    assert user.box("inspect", "--format", "{{.durable}}", name).stdout.strip() == "true"


def test_settings_are_mounted_only_when_they_are_asked_for(user):
    without, _ = user.agent("claude", "--keys", "off")
    assert ".claude" not in without["home"] and "ANTHROPIC_API_KEY" not in without["env"]
    with_them, said = user.agent("claude", "--settings")
    assert ".claude" in with_them["home"] and ".ssh" not in with_them["home"]
    assert (user.home / ".claude/history").read_text() == "written inside"
    assert f"claude gets {user.home}/.claude, writable" in said and "the 'claude' that you run outside obeys" in said
    assert "kept" not in with_them["home"] and len(user.sessions) == 2, "what may see them is another session"


def test_a_cache_is_shared_only_by_agents_that_say_so(user):
    user.env["XDG_CACHE_HOME"] = str(user.home / "caches")
    pathlib.Path(user.env["XDG_CACHE_HOME"]).mkdir()
    alone, _ = user.agent("pal")
    assert ".npm" not in alone["home"] and not (user.home / "caches/box").exists()
    shared, _ = user.agent("pal", "--cache", "shared")
    assert {".npm", ".cache", ".cargo"} <= set(shared["home"])
    assert (user.home / "caches/box").stat().st_mode & 0o777 == 0o700
    (user.home / "caches/box/agents/npm/package").write_text("downloaded by pal")
    name = next(s for s in user.sessions if user.box("exec", s, "--", "test", "-d", "/home/box/.npm").returncode == 0)
    assert user.box("exec", name, "--", "cat", "/home/box/.npm/package").stdout == "downloaded by pal"


@pytest.mark.parametrize(("words", "where", "why"), [
    (["pal"], "", "holds your whole home directory"),
    (["nothing-like-it"], "shop", "there is no program 'nothing-like-it' on PATH"),
    (["/usr/bin/true"], "shop", "is a path; name a program"),
    (["pal", "--keys", "maybe"], "shop", "is not one of on, off"),
    ([], "shop", "'box agent' wants a NAME"),
])
def test_what_is_no_agent_in_a_project_is_refused(user, words, where, why):
    done = user.box("agent", *words, cwd=user.home / where)
    assert done.returncode == 125 and why in done.stderr, done.stderr
    assert user.box("ps", "-aq").stdout.count("agent-") == 0


def test_a_session_that_exists_is_not_used_as_if_it_had_other_mounts(user):
    place = f"{user.project}:/mnt/a"
    assert user.box("run", "--session", "mounted", "-v", place, "--", "true").returncode == 0
    user.sessions.add("mounted")
    for options in ([], ["-v", place]):
        assert user.box("run", "--session", "mounted", *options, "--", "test", "-d", "/mnt/a").returncode == 0
    other = user.box("run", "--session", "mounted", "-v", f"{user.project}:/mnt/b", "--", "true")
    assert other.returncode == 125 and "is kept with the mounts that it was made with" in other.stderr


def test_a_project_that_cannot_have_its_own_path_is_the_workspace(user):
    place = mount_dir("box-agent-")
    try:
        saw, said = user.agent("pal", cwd=place)
    finally:
        shutil.rmtree(place)
    assert saw["cwd"] == "/workspace" and f"'{place}' is /workspace inside" in said


def test_an_agent_on_a_terminal_has_one(user):
    master, slave = pty.openpty()
    done = subprocess.Popen([BUILD / "box", "agent", "pal", "--network", "off"], stdin=slave, stdout=slave,
                            stderr=subprocess.PIPE, env={**user.env, "BOX_HOST": f"unix://{user.sock}"}, cwd=user.project,
                            text=True)
    os.close(slave)
    said = done.stderr.readline()
    user.sessions.add(said.split("session '")[1].split("'")[0])
    shown = b""
    while b'"tty": true' not in shown:
        shown += os.read(master, 4096)
    assert done.wait(60) == 0
    os.close(master)
