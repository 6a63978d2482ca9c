# SPDX-License-Identifier: Apache-2.0
"""The host image: a person's usual programs work, on a read-only root and on a writable one, and what they
write stays inside."""

import pathlib
import shutil

import pytest
from watch import SLOW

TIMEOUT = 100 * SLOW


def needs(*programs):
    missing = [p for p in programs if shutil.which(p, path="/usr/local/bin:/usr/bin:/bin:/usr/sbin") is None]
    return pytest.mark.skipif(bool(missing), reason=f"the host has no {', '.join(missing)}")


ROOTS = pytest.mark.parametrize("root", [{}, {"read_only_rootfs": False}], ids=["read-only", "writable"])


@pytest.fixture
def sh(boxd_shared, api, session):
    """Runs a script in a session that is made with the first call; its output. It must succeed."""
    client = boxd_shared.client(timeout=600)
    made = {}

    def run(script, root=None, **request):
        key = str(root)
        if key not in made:
            made[key] = session(memory_mb=1024, pids_limit=200, cpus=2, **(root or {}))
        r = client.sh(made[key], "set -e\n" + script, timeout_sec=TIMEOUT, **request)
        assert (r["outcome"], r["exit_code"]) == ("exited", 0), (r["outcome"], r["exit_code"], r["stdout"], r["stderr"])
        return r["stdout"]

    yield run
    client.close()


@pytest.mark.rootless
@ROOTS
def test_python(sh, root):
    assert sh("python3 -c 'import json, sqlite3, ssl, ctypes; print(json.dumps(sum(range(10))))'", root) == "45\n"
    assert sh("""python3 - <<'END'
import asyncio, concurrent.futures, multiprocessing, subprocess, tempfile, threading
async def main():
    p = await asyncio.create_subprocess_exec("echo", "child", stdout=-1)
    out, _ = await p.communicate()
    return out + str(await asyncio.to_thread(sum, [1, 2])).encode()
print(asyncio.run(main()))
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool: print(pool.map(abs, [-1, -2, -3]))
    with concurrent.futures.ThreadPoolExecutor() as pool: print(list(pool.map(str, range(3))))
with tempfile.TemporaryDirectory() as d: print(subprocess.check_output(["ls", "-A", d]))
END""", root) == "b'child\\n3'\n[1, 2, 3]\n['0', '1', '2']\nb''\n"


@pytest.mark.rootless
@needs("git")
@ROOTS
def test_git(sh, root):
    out = sh("""
        mkdir repo && cd repo && git init -q -b main . && git config user.name A && git config user.email a@b
        echo one > f && git add f && git commit -q -m first
        git checkout -q -b side && echo two >> f && git commit -q -a -m second && git checkout -q main
        git merge -q --no-edit side && git clone -q . ../copy && git -C ../copy log --format=%s && git gc -q && git fsck""", root)
    assert out == "second\nfirst\n"


@pytest.mark.rootless
@needs("gcc")
@ROOTS
def test_gcc(sh, root):
    out = sh("""
        cat > m.c <<'END'
#include <stdio.h>
#include <pthread.h>
static void *f(void *p) { return p; }
int main(void) { pthread_t t; void *r; pthread_create(&t, 0, f, "thread"); pthread_join(t, &r); return !printf("%s\\n", (char *)r); }
END
        gcc -O2 -Wall -o m m.c -pthread && ./m && cp m /tmp/ && /tmp/m && gcc -fsanitize=undefined -o u m.c -pthread && ./u""", root)
    assert out == "thread\n" * 3


@pytest.mark.rootless
@needs("node")
@ROOTS
def test_node(sh, root):
    assert sh("node -e 'console.log([1,2,3].map(x => x * 2).join())'", root) == "2,4,6\n"
    assert sh("""node -e '
const { execFileSync } = require("child_process"); const fs = require("fs");
fs.writeFileSync("/workspace/x", "text"); console.log(String(execFileSync("cat", ["/workspace/x"])));
const { Worker } = require("worker_threads");
new Worker("require(\\"worker_threads\\").parentPort.postMessage(42)", { eval: true }).on("message", m => console.log(m));'""",
              root) == "text\n42\n"


@needs("sqlite3")
def test_sqlite(sh):
    assert sh("sqlite3 db 'pragma journal_mode=wal; create table t(a); insert into t values (1),(2); select sum(a) from t'") == "wal\n3\n"
    assert sh("sqlite3 /tmp/db 'create table t(a); insert into t select 7; select a from t'") == "7\n"


def test_python_sqlite(sh):
    assert sh("""python3 -c '
import sqlite3
c = sqlite3.connect("/workspace/py.db"); c.execute("create table t(a)"); c.execute("insert into t values (5)"); c.commit()
print(sqlite3.connect("/workspace/py.db").execute("select a from t").fetchone())'""") == "(5,)\n"


@ROOTS
def test_a_virtual_environment(sh, root):
    out = sh("""
        python3 -m venv --without-pip /workspace/v && . /workspace/v/bin/activate
        python -c 'import sys; print(sys.prefix, sys.prefix != sys.base_prefix)'""", root)
    assert out == "/workspace/v True\n"


@needs("pip3")
def test_pip_installs_a_wheel(sh):
    out = sh("""
        mkdir -p w/pkg && echo 'NAME = "from a wheel"' > w/pkg/__init__.py && cd w && python3 - <<'END'
import zipfile
with zipfile.ZipFile("pkg-1.0-py3-none-any.whl", "w") as z:
    z.write("pkg/__init__.py")
    z.writestr("pkg-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: pkg\\nVersion: 1.0\\n")
    z.writestr("pkg-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    z.writestr("pkg-1.0.dist-info/RECORD", "pkg/__init__.py,,\\npkg-1.0.dist-info/METADATA,,\\npkg-1.0.dist-info/WHEEL,,\\npkg-1.0.dist-info/RECORD,,\\n")
END
        python3 -m pip install -q --no-index --no-deps --target /workspace/site ./pkg-1.0-py3-none-any.whl 2>/dev/null
        PYTHONPATH=/workspace/site python3 -c 'import pkg; print(pkg.NAME)'""")
    assert out == "from a wheel\n"


@ROOTS
def test_the_usual_tools(sh, root):
    out = sh("""
        seq 5 | awk '{s += $1} END {print s}'; echo abc | sed s/b/B/; printf 'b\\na\\n' | sort | head -1
        tar cf t.tar /etc/os-release 2>/dev/null && tar tf t.tar; echo x | gzip | gunzip; date -u -d @0 +%F
        perl -e 'print "perl\\n"'; bash -c 'echo ${BASH_VERSION%%.*}' | grep -c .; mktemp | grep -c ^/tmp/
        getent passwd $(id -u) | cut -d: -f3; locale 2>/dev/null | grep LANG=; ls / | grep -c .>/dev/null; cat /dev/null; echo to-err > /dev/stderr""", root)
    assert out.splitlines()[:8] == ["15", "aBc", "a", "etc/os-release", "x", "1970-01-01", "perl", "1"]


def test_who_the_program_is(sh):
    assert sh("id -u; id -g; id -G; id -un; echo $HOME; pwd; touch ~/x; stat -c %u ~/x /workspace /tmp") == \
        "1000\n1000\n1000\nbox\n/home/box\n/workspace\n1000\n1000\n0\n"


# Writable roots.

def test_a_writable_root_belongs_to_the_program(api, session):
    sid = session(read_only_rootfs=False)
    r = api.sh(sid, """id -u; id -g
        for d in / /usr /usr/bin /usr/lib /etc /opt /var /root /srv /home; do
            echo mine > $d/made-inside && cat $d/made-inside > /dev/null || echo "no $d"; done
        echo 'echo replaced' > /usr/bin/made-inside && chmod 755 /usr/bin/made-inside && made-inside
        echo 1.2.3.4 made >> /etc/hosts && tail -1 /etc/hosts
        rm /usr/bin/yes && ! command -v yes && mv /usr/bin/factor /usr/bin/factored && factored 6
        ln -s /usr/bin/env /usr/local/bin/myenv && myenv true && mkdir -p /usr/local/lib/new/deep && echo end""")
    assert (r["exit_code"], r["stdout"]) == (0, "0\n0\nreplaced\n1.2.3.4 made\n6: 2 3\nend\n"), r
    # It is the same in the next command, and nobody else's.
    assert api.sh(sid, "made-inside; ls /usr/bin/yes")["stdout"] == "replaced\n"
    other = session(read_only_rootfs=False)
    assert api.sh(other, "ls /usr/bin/made-inside /etc/made-inside; yes | head -1")["stdout"] == "y\n"


def test_nothing_of_it_reaches_the_host_and_it_goes_with_the_session(api, session, boxd_shared):
    watched = [p for p in map(pathlib.Path, ("/etc/passwd", "/etc/hostname", "/usr/bin/env", "/usr/share/doc")) if p.exists()]
    before = [(p.stat().st_mode, p.stat().st_uid, p.stat().st_mtime_ns) for p in watched]
    sid = session(read_only_rootfs=False)
    r = api.sh(sid, """
        echo x > /usr/bin/made-inside; echo x > /etc/made-inside; echo root:x:0:0:evil:/:/bin/sh > /etc/passwd
        chmod 777 /usr /etc; chmod 4755 /usr/bin/env; touch /usr/bin/env; rm -rf /usr/share/doc /opt/*; echo changed > /etc/hostname
        chown 0:0 /usr/bin/env; echo end""")
    assert r["stdout"] == "end\n"
    assert [(p.stat().st_mode, p.stat().st_uid, p.stat().st_mtime_ns) for p in watched] == before
    assert not pathlib.Path("/usr/bin/made-inside").exists() and not pathlib.Path("/etc/made-inside").exists()
    assert api.receipt(sid)["root_writable"] is True
    api.rm(sid)
    assert list(boxd_shared.state.glob("sessions/*/layer-*")) == []
    sid = session(read_only_rootfs=False)
    assert api.sh(sid, "ls /usr/bin/made-inside /etc/made-inside 2>/dev/null; cat /etc/hostname; head -c 4 /etc/passwd")["stdout"] \
        .splitlines()[-1].startswith("root")


def test_a_writable_root_gives_no_power(api, session):
    sid = session(read_only_rootfs=False)
    r = api.sh(sid, """
        grep -E 'Cap(Prm|Eff|Bnd|Inh|Amb)' /proc/self/status | cut -f2 | sort -u; grep NoNewPrivs /proc/self/status | cut -f2
        mount -t tmpfs none /mnt 2>/dev/null && echo mounted; mknod /tmp/sda b 8 0 2>/dev/null && echo node
        hostname other 2>/dev/null && echo renamed; chroot / true 2>/dev/null && echo chrooted
        cp /usr/bin/id /workspace/id; chmod 6755 /workspace/id 2>/dev/null && echo setuid; stat -c %a /workspace/id""")
    assert r["stdout"] == "0000000000000000\n1\n755\n"


def test_a_read_only_root_is_read_only(api, sid):
    r = api.sh(sid, "for d in / /usr /usr/bin /etc /opt /var /root /srv /run /home; do touch $d/x 2>&1 | sed 's/.*: //' ; done")
    assert set(r["stdout"].splitlines()) <= {"Read-only file system", "Permission denied"}
    assert len(r["stdout"].splitlines()) == 10


# Private workspaces.

def test_a_private_workspace_is_private_and_goes_with_the_session(api, session, boxd_shared):
    a, b = session(), session()
    api.sh(a, "echo secret > /workspace/f; echo secret > /home/box/f; echo secret > /tmp/f")
    assert api.sh(b, "ls -A /workspace /home/box /tmp")["stdout"].split() == ["/home/box:", "/tmp:", "/workspace:"]
    api.rm(a)
    api.new(a)
    assert api.sh(a, "ls -A /workspace /home/box /tmp")["stdout"].split() == ["/home/box:", "/tmp:", "/workspace:"]


def test_the_workspace_can_be_elsewhere(api, session):
    sid = session(mount_path="/data/project", workdir="/data/project/src")
    assert api.sh(sid, "pwd; echo x > f; ls /data/project/src; stat -c %U /data/project")["stdout"] == "/data/project/src\nf\nbox\n"
    sid = session(workdir="/somewhere/else")  # on the root, which is read-only, and writable below
    assert api.sh(sid, "pwd; touch x && ls")["stdout"] == "/somewhere/else\n"
    sid = session(workdir="/somewhere/else", read_only_rootfs=False)
    assert api.sh(sid, "pwd; touch x && ls")["stdout"] == "/somewhere/else\nx\n"
