# SPDX-License-Identifier: Apache-2.0
"""What `make install` puts where, and that it works from there; manuals and completion."""

import os
import pathlib
import pty
import re
import shutil
import stat
import subprocess
import time

import pytest
from boxlib import BUILD, ROOT, Boxd, box
from hostlib import SCALE, need

PREFIX = "/usr/local"
HELPERS = {p.name for p in BUILD.glob("box-*") if p.is_file() and os.access(p, os.X_OK)}
FILES = {f"libexec/box/{name}" for name in HELPERS} | {
    "bin/box", "bin/boxd",
    "lib/systemd/system/boxd.service", "lib/systemd/system/boxd.socket", "share/man/man1/box.1",
    "share/man/man8/boxd.8", "share/man/man5/box-config.5", "share/bash-completion/completions/box",
    "share/zsh/site-functions/_box",
    "share/fish/vendor_completions.d/box.fish", "share/doc/box/config.yaml",
}


def run_install(*args, **more):
    environment = {**os.environ, "BUILD_DIR": str(BUILD), **more}
    return subprocess.run([str(ROOT / "tools/install.sh"), *map(str, args)], env=environment, capture_output=True,
                          text=True, timeout=300)


def files(top):
    return {str(p.relative_to(top)) for p in top.rglob("*") if not p.is_dir()}


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Installed below a directory that everybody may pass."""
    need("meson")
    top = tmp_path_factory.mktemp("dest")
    for parent in (top, *top.parents[:2]):
        parent.chmod(parent.stat().st_mode | 0o055)
    done = run_install(PREFIX, top)
    assert done.returncode == 0, done.stdout + done.stderr
    return top


def test_everything_is_installed(tree):
    assert {"box-priv", "box-init", "box-fetch", "box-guest"} <= HELPERS
    assert files(tree) == {f"usr/local/{name}" for name in FILES} | {"etc/box/config.yaml"}
    for name in FILES:
        mode = (tree / "usr/local" / name).stat().st_mode
        assert bool(mode & stat.S_IXUSR) == name.startswith(("bin/", "libexec/")), name
        assert not mode & (stat.S_ISUID | stat.S_ISGID | stat.S_IWOTH), name
    unit = (tree / "usr/local/lib/systemd/system/boxd.service").read_text()
    assert "ExecStart=/usr/local/bin/boxd --config /etc/box/config.yaml\n" in unit


def test_the_installed_tree_works(tree):
    class Installed(Boxd):
        program = tree / "usr/local/bin/boxd"

    daemon = Installed("--config", str(tree / "etc/box/config.yaml"))
    try:
        helper = pathlib.Path(f"/proc/{daemon.priv_pid()}/exe").resolve()
        assert helper == (tree / "usr/local/libexec/box/box-priv").resolve()
        done = subprocess.run([str(tree / "usr/local/bin/box"), "run", "--", "echo", "installed"], text=True,
                              timeout=120, env={**os.environ, "BOX_HOST": f"unix://{daemon.sock}"}, capture_output=True)
        assert (done.returncode, done.stdout) == (0, "installed\n"), done.stderr
    finally:
        daemon.close()


def test_the_configuration_is_good_and_shows_the_defaults(tree):
    path = tree / "etc/box/config.yaml"
    settings = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    assert settings == []
    assert '"port":"5410"' in box("config", "--json", "--config", str(path)).stdout  # what the README names
    assert box("config", "--config", str(path)).returncode == 0
    # Each line that can be switched on is a setting, and its text the default.
    text = re.sub(r"^#(\w+: .+)$", r"\1", path.read_text().split("# end: config-yaml")[0], flags=re.M)
    on = tree / "on.yaml"
    on.write_text(text)
    plain, all_on = (box("config", "--json", "--config", str(p)) for p in (path, on))
    assert all_on.returncode == 0, all_on.stderr
    assert plain.stdout == all_on.stdout
    on.unlink()


def test_a_configuration_is_never_overwritten_and_the_rest_goes(tree, tmp_path):
    top = tmp_path / "d"
    shutil.copytree(tree, top)
    (top / "etc/box/config.yaml").write_text("port: 0\nmax_sessions: 7\n")
    assert run_install(PREFIX, top).returncode == 0
    assert "max_sessions: 7" in (top / "etc/box/config.yaml").read_text()
    (top / "usr/local/bin/neighbour").write_text("")
    assert run_install("--uninstall", PREFIX, top).returncode == 0
    assert files(top) == {"etc/box/config.yaml", "usr/local/bin/neighbour"}
    shutil.copy(ROOT / "etc/config.yaml", top / "etc/box/config.yaml")
    assert run_install("--uninstall", PREFIX, top).returncode == 0
    assert files(top) == {"usr/local/bin/neighbour"}
    assert not (top / "usr/local/libexec/box").exists() and not (top / "etc/box").exists()


def test_a_staged_install_makes_no_user(tree, tmp_path):
    """Whatever would make one is replaced by something that tells."""
    for name in ("useradd", "systemctl"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {name} >> {tmp_path}/called\n")
        (tmp_path / name).chmod(0o755)
    done = run_install(PREFIX, tmp_path / "d", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 0 and not (tmp_path / "called").exists()


@pytest.mark.parametrize("program", ["tools/install.sh", "packaging/debian/box.postinst"])
def test_the_account_of_a_person_is_not_taken_for_that_of_boxd(program, tmp_path):
    """Whatever would change the host is replaced by something that tells."""
    if program == "tools/install.sh" and os.geteuid() != 0:
        pytest.skip("without root nothing goes into the real root")
    for name in ("meson", "ninja", "install", "useradd", "adduser", "addgroup", "cp", "aa-enabled", "apparmor_parser",
                 "systemctl", "deb-systemd-helper", "deb-systemd-invoke"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {name} $* >> {tmp_path}/called\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "getent").write_text("#!/bin/sh\necho box:x:1000:1000::/home/box:/bin/bash\n")
    (tmp_path / "getent").chmod(0o755)
    words = ["bash", program, PREFIX] if program == "tools/install.sh" else ["sh", program, "configure"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=60,
                          env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "BUILD_DIR": str(BUILD)})
    assert done.returncode == 1 and "rename" in done.stderr, done.stderr
    called = (tmp_path / "called").read_text() if (tmp_path / "called").exists() else ""
    assert called == ""


# Manuals.

PAGES = ("box.1", "boxd.8", "box-config.5")


def options(text):
    return set(re.findall(r"(?<![\w-])--([a-z][a-z-]+)", text))


def rendered(name):
    need("man")
    done = subprocess.run(["man", "-E", "UTF-8", "-P", "cat", "-l", str(ROOT / "man" / name)], capture_output=True,
                          text=True, env={**os.environ, "MANWIDTH": "200", "LC_ALL": "C.UTF-8"}, timeout=60)
    assert done.returncode == 0
    return re.sub(r".\x08", "", done.stdout).replace("‐", "-").replace("−", "-")


def test_the_manual_has_every_option_and_no_other():
    text = rendered("box.1")
    verbs = re.findall(r"^  (\w+(?: \w+)?) ", box("--help").stdout, re.M)
    assert len(verbs) >= 8
    told = set()
    for verb in verbs:
        section = re.search(rf"^   box {verb}\b.*?(?=^   box |^[A-Z])", text, re.S | re.M)
        assert section, f"no section on {verb}"
        wanted = options(box("help", *verb.split()).stdout) if verb != "help" else options(box("--help").stdout)
        assert options(section[0]) == wanted, verb
        told |= wanted
    assert {"session", "json", "help"} <= told
    boxd_help = subprocess.run([str(BUILD / "boxd"), "--help"], capture_output=True, text=True, timeout=60).stdout
    assert options(rendered("boxd.8")) == options(boxd_help)
    page = rendered("box-config.5")
    for name, variable in re.findall(r"^  (\w+) +(BOX_\w+)", boxd_help, re.M):
        assert re.search(rf"^ +{name} \({variable}\)", page, re.M), name


def test_the_page_of_the_command_line_has_every_verb():
    page = (ROOT / "docs/reference/cli.md").read_text()
    for verb in re.findall(r"^  (\w+(?: \w+)?)(?:, \w+)? ", box("--help").stdout, re.M):
        assert re.search(rf"\bbox [\w|]*\b{verb}\b", page), f"cli.md does not tell of 'box {verb}'"


@pytest.mark.parametrize("name", PAGES)
def test_manuals_are_well_formed(name):
    need("mandoc")
    done = subprocess.run(["mandoc", "-Tlint", "-W", "warning", str(ROOT / "man" / name)], capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 0, done.stdout


# Completion.


def script(shell):
    done = box("completion", shell)
    assert done.returncode == 0
    return done.stdout


def complete(line, script_path, path=None, cwd=None):
    """What bash would offer at the end of the line."""
    words = line.split(" ")
    program = f"""
source {script_path}
COMP_WORDS=({' '.join(f"'{w}'" for w in words)}) COMP_CWORD={len(words) - 1}
_box
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    environment = {**os.environ, "PATH": f"{path or BUILD}:{os.environ['PATH']}", "BOX_HOST": "unix:///nowhere"}
    done = subprocess.run(["bash", "--norc", "-c", program], capture_output=True, text=True, timeout=60,
                          env=environment, cwd=cwd)
    assert not done.stderr, done.stderr
    return set(done.stdout.split("\n")) - {""}


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory):
    path = tmp_path_factory.mktemp("completion") / "box.bash"
    path.write_text(script("bash"))
    return path


def test_bash_offers_what_the_tables_have(bash_script, tmp_path):
    (tmp_path / "my.yaml").write_text("")
    assert {"run", "exec", "ps", "rm", "completion", "--help"} <= complete("box ", bash_script)
    assert complete("box ru", bash_script) == {"run"}
    assert complete("box run --memory", bash_script) == {"--memory", "--memory-mb"}
    assert complete("box run --network ", bash_script) == {"on", "off"}
    assert complete("box run --network of", bash_script) == {"off"}
    assert complete("box completion ", bash_script) >= {"bash", "zsh", "fish"}
    assert complete("box config --config m", bash_script, cwd=tmp_path) == {"my.yaml"}
    assert "bash" in complete("box run -- bas", bash_script)
    assert complete("box run --session x --net", bash_script) == {"--network"}
    # Every option of every verb.
    for verb in re.findall(r"^  (\w+(?: \w+)?) ", box("--help").stdout, re.M):
        wanted = options(box("help", *verb.split()).stdout) if verb != "help" else options(box("--help").stdout)
        assert {w[2:] for w in complete(f"box {verb} --", bash_script)} - {""} == wanted, verb


def test_K_names_of_sessions_are_never_run_by_the_shell(bash_script, tmp_path):
    """A session's name comes from whoever made it; pressing TAB must not run it."""
    fake = tmp_path / "box"
    fake.write_text("#!/bin/sh\ncat <<'X'\n"
                    '{"sessions":[{"session_id":"good-1","image":"host"},{"session_id":"$(touch pwned)"},'
                    '{"session_id":"`touch pwned`"},{"session_id":"a;touch pwned"},'
                    '{"image":"x\\",\\"session_id\\":\\"forged"},{"session_id":"good.2"}]}\nX\n')
    fake.chmod(0o755)
    assert complete("box exec ", bash_script, path=tmp_path, cwd=tmp_path) >= {"good-1", "good.2"}
    assert complete("box exec go", bash_script, path=tmp_path, cwd=tmp_path) == {"good-1", "good.2"}
    everything = complete("box rm ", bash_script, path=tmp_path, cwd=tmp_path)
    assert everything == {"good-1", "good.2", "--all", "--force", "--help"}
    assert not (tmp_path / "pwned").exists()


def test_bash_completes_at_a_terminal(bash_script):
    """The key itself, in an interactive shell."""
    pid, fd = pty.fork()
    if pid == 0:
        os.environ.update(PS1="$ ", TERM="dumb", PATH=f"{BUILD}:{os.environ['PATH']}")
        os.execlp("bash", "bash", "--norc", "--noprofile", "-i")
    try:
        seen = b""

        def until(text):
            nonlocal seen
            end = time.monotonic() + 60 * SCALE
            while text not in seen:
                assert time.monotonic() < end, seen
                seen += os.read(fd, 4096)
            seen = seen.split(text, 1)[1]

        os.write(fd, f"bind 'set bell-style none'; source {bash_script}; echo sour''ced\n".encode())
        until(b"sourced\r\n")
        os.write(fd, b"echo box; box comp\t")
        until(b"box; box completion ")
        os.write(fd, b"fi\t\n")
        until(b"__box_sessions")
    finally:
        os.close(fd)
        os.kill(pid, 9)
        os.waitpid(pid, 0)


@pytest.mark.parametrize("shell, file", [("bash", "box.bash"), ("zsh", "_box"), ("fish", "box.fish")])
def test_box_prints_the_installed_script(shell, file):
    assert script(shell) == (ROOT / "completion" / file).read_text()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_parse(shell, tmp_path):
    path = tmp_path / "script"
    path.write_text(script(shell))
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed here")
    done = subprocess.run([shell, "-n", str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr


def test_fish_offers_the_same(tmp_path):
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed here")
    (tmp_path / "box.fish").write_text(script("fish"))

    def offers(line):
        done = subprocess.run(["fish", "--no-config", "-c", f"source {tmp_path}/box.fish; complete -C '{line}'"],
                              text=True, capture_output=True, timeout=60, env={**os.environ, "HOME": str(tmp_path)})
        return {row.split("\t")[0] for row in done.stdout.splitlines()}

    assert offers("box ru") == {"run"}
    assert offers("box run --network ") == {"on", "off"}
    assert offers("box run --memory") == {"--memory", "--memory-mb"}


def test_an_unknown_shell_is_told():
    done = box("completion", "tcsh")
    assert done.returncode == 125 and "bash, zsh, fish" in done.stderr
