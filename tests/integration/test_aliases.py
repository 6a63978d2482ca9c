# SPDX-License-Identifier: Apache-2.0
"""Further names of commands in the image `host`: `python` where there is only `python3`, and what else is configured."""

import os
import shutil

import pytest
from boxlib import Boxd

SCRIPT = "#!/usr/bin/env box-alias-python\nimport sys\nprint('script', sys.version_info[0])\n"


@pytest.fixture(scope="module", params=["native", "runsc"])
def api(request):
    if request.param == "runsc" and shutil.which("runsc") is None:
        pytest.skip("runsc is not installed; Debian has it in bookworm, not in trixie")
    daemon = Boxd("--backend", request.param,
                  env={"BOX_COMMAND_ALIASES": "python=python3, box-alias-python=python3,box-cat=/bin/cat,ls=/bin/false"})
    yield daemon.client()
    daemon.close()


@pytest.mark.parametrize("root", ["read-only root", "writable root"])
def test_a_command_has_its_further_name_wherever_it_is_looked_for(api, root):
    sid = f"a-{root.split()[0]}"
    api.new(sid, read_only_rootfs=root == "read-only root")
    assert api.x(sid, "box-alias-python", "-c", "print(6 * 7)")["stdout"] == "42\n", "by execvp"
    assert api.sh(sid, "python -c 'print(1)' && command -v box-cat")["stdout"].endswith("/.box/bin/box-cat\n")
    assert api.sh(sid, f"cat > s <<'END'\n{SCRIPT}END\nchmod +x s && ./s")["stdout"] == "script 3\n", "by a shebang"
    assert api.sh(sid, "ls / | head -n 1")["exit_code"] == 0, "what the image has comes first"
    process = api.call("POST", f"/v1/sessions/{sid}/processes",
                       {"command": "box-alias-python", "args": ["-c", "import time; time.sleep(600)"]})
    assert process["status"] == "running", process
    assert api.sh(sid, "python -m venv --without-pip v && v/bin/python -c 'import sys, os; print(sys.prefix)'")[
        "stdout"] == "/workspace/v\n", "its own libraries are found from there"
    r = api.sh(sid, "echo x > /.box/bin/new; ln -sf /bin/false /.box/bin/box-cat; echo y | box-cat")
    assert "y\n" in r["stdout"] or root == "writable root", r
    api.rm(sid)


@pytest.mark.rootless
def test_without_a_word_python_is_python3():
    if shutil.which("python3", path="/usr/bin") is None:
        pytest.skip("the host has no python3 in /usr/bin")
    daemon = Boxd()
    try:
        api = daemon.client()
        api.new("a")
        assert api.x("a", "python", "-c", "import sys; print(sys.version_info[0])")["stdout"] == "3\n"
        if not os.path.exists("/usr/bin/python"):
            assert api.sh("a", "command -v python")["stdout"] == "/.box/bin/python\n"
    finally:
        daemon.close()


def test_none_means_none():
    daemon = Boxd(env={"BOX_COMMAND_ALIASES": "none"})
    try:
        api = daemon.client()
        api.new("a")
        assert api.sh("a", "ls -d /.box")["exit_code"] != 0
    finally:
        daemon.close()
