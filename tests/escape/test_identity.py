# SPDX-License-Identifier: Apache-2.0
"""Table A: identity and privilege, asked inside and verified from outside."""

import concurrent.futures
import hashlib
import os
import pathlib
import re
import shutil
import struct

import pytest

from boxlib import BUILD, ApiError
from escapelib import (
    BLOCK, IS_ROOT, NAMESPACES, PROBE, STRIDE, Report, beside, children, count, host_ns, init_pids, is_init_program,
    kernel_release, mounts_below, posture, probe_argv, ran, run_probe, status, stream, uid_map, wait_for,
)
from posturelib import USER, check_posture, normal_posture

CAPS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


class Live:
    """A session with a payload that runs until the end of the test."""

    def __init__(self, daemon, new, *argv):
        before = init_pids(daemon)
        self._daemon = daemon
        self.id = new()
        (self.init,) = init_pids(daemon) - before
        self._client = daemon.client(timeout=1800)
        self._pool = concurrent.futures.ThreadPoolExecutor(1)
        self._running = self._pool.submit(self._client.x, self.id, *argv)
        self.payload = wait_for(self._ready)

    def _ready(self):
        """The payload, once it has become the program and is not a copy of PID 1 any more."""
        return next((pid for pid in children(self.init) if not is_init_program(pid)), None)

    def close(self):
        client = self._daemon.client(timeout=1800)
        client.rm(self.id)
        client.close()
        self._running.exception(1800)
        self._pool.shutdown()
        self._client.close()


@pytest.fixture
def live(boxd_shared, session):
    made = []

    def make(*argv, daemon=boxd_shared, new=session):
        made.append(Live(daemon, new, *(argv or ("sleep", "3600"))))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.vm
def test_check_A01_ids_seen_from_the_host_are_private_and_disjoint(boxd, live):
    """Also between two daemons, which know nothing of each other."""
    ranges = []
    client = boxd.client()
    for one in (live(), live(), live(daemon=boxd, new=lambda: client.new("a01")["session_id"])):
        init, payload = os.stat(f"/proc/{one.init}").st_uid, os.stat(f"/proc/{one.payload}").st_uid
        # PID 1 is not dumpable, so that its directory in /proc belongs to root: ask for its ids.
        ids = {*map(int, status(one.init)["Uid"].split()), *map(int, status(one.init)["Gid"].split())}
        assert init in (0, *ids)
        ids |= {payload, *map(int, status(one.payload)["Uid"].split()), *map(int, status(one.payload)["Gid"].split())}
        first = min(ids) - min(ids) % STRIDE
        assert all(i >= BLOCK and first <= i < first + STRIDE for i in ids), ids
        assert status(one.payload)["Uid"] != status(one.init)["Uid"]
        for inner, outer, n in uid_map(one.payload):
            assert n == 1 and first <= outer < first + STRIDE, (inner, outer, n)
        assert status(one.payload).get("Groups", "").strip() == ""
        ranges.append(first)
    assert len(set(ranges)) == 3


@pytest.mark.vm
@pytest.mark.rootless
def test_check_A02_no_capabilities(probed):
    assert set(probed.check("A02")) == {f"A02.{s}" for s in CAPS}


def channels(daemon, api, sid):
    """The identity part of the probe by every way there is into a running session."""
    argv = probe_argv("identity")
    # More at once than groups were made for, so that later ones get new groups.
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        def one(_):
            client = daemon.client(timeout=600)
            try:
                return ran(client.x(sid, *argv))["stdout"]
            finally:
                client.close()
        yield from ((f"at the same time, {i}", text) for i, text in enumerate(pool.map(one, range(4))))
    yield "first", ran(api.x(sid, *argv))["stdout"]
    yield "second", ran(api.x(sid, *argv))["stdout"]
    yield "shell", ran(api.sh(sid, " ".join(argv)))["stdout"]
    yield "long script", ran(api.sh(sid, "#" * 200_000 + "\n" + " ".join(argv)))["stdout"]
    yield "stdin_text", ran(api.x(sid, *argv, stdin_text="x"))["stdout"]
    yield "stream", ran(stream(daemon.sock, sid, *argv))["stdout"]
    yield "stream with stdin", ran(stream(daemon.sock, sid, *argv, stdin=b"x"))["stdout"]
    yield "terminal", ran(stream(daemon.sock, sid, *argv, tty=True))["stdout"]


@pytest.mark.vm
@pytest.mark.rootless
def test_check_A03_every_way_in_has_the_same_posture(boxd, probe_mount):
    client = boxd.client(timeout=600)
    client.new("a03", extra_mounts=[probe_mount])
    want = run_probe(client, "a03", "identity")
    for row in ("A02", "A04", "A06", "A09", "A10"):
        want.check(row)
    for name, text in channels(boxd, client, "a03"):
        assert Report(text).states() == want.states(), name
    client.close()

    boxd.stop()
    boxd.start()
    client = boxd.client(timeout=600)
    if not any(s["session_id"] == "a03" for s in client.ps()):
        client.new("a03", extra_mounts=[probe_mount])
    assert run_probe(client, "a03", "identity").states() == want.states(), "after a restart"
    client.close()


@pytest.mark.vm
@pytest.mark.rootless
def test_check_A03_the_whole_posture_is_the_same_too(boxd_shared, api, psid):
    def normal(text):
        # Which group an exec is in depends on what runs beside it.
        return sorted({re.sub(r"^cgroup .*", "cgroup", line) for line in text.splitlines()})
    want = normal(posture(api, psid))
    streamed = ran(stream(boxd_shared.sock, psid, *probe_argv("posture")))
    assert normal(streamed["stdout"]) == want
    tty = normal(ran(stream(boxd_shared.sock, psid, *probe_argv("posture"), tty=True))["stdout"])
    about_stdio = re.compile(r"^(fd \d|terminal|env TERM)")
    assert [x for x in tty if not about_stdio.match(x)] == [x for x in want if not about_stdio.match(x)]
    assert {x for x in tty if x.startswith("fd ")} == {f"fd {n} /dev/pts/0 write" for n in range(3)}


THREADS = """
import threading, time
for _ in range(8):
    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
time.sleep(3600)
"""


@pytest.mark.vm
@pytest.mark.rootless
def test_check_A04_no_new_privs_and_filter_on_every_thread(probed, live):
    probed.check("A04")
    one = live("python3", "-c", THREADS)
    tasks = wait_for(lambda: (t := os.listdir(f"/proc/{one.payload}/task")) and len(t) == 9 and t)
    for task in tasks:
        thread = status(one.payload, task)
        assert (thread["NoNewPrivs"], thread["Seccomp"]) == ("1", "2"), task
        assert {int(thread[s], 16) for s in CAPS} == {0}, task
    assert status(one.init)["NoNewPrivs"] == "1"


@pytest.mark.vm
def test_check_A05_setuid_files_and_file_capabilities_give_nothing(api, psession, probe_dir, host_dir):
    host_dir.chmod(0o777)
    for name in ("plain", "suid", "sgid", "caps"):
        shutil.copy(probe_dir / "probe", host_dir / name)
        os.chmod(host_dir / name, {"suid": 0o4755, "sgid": 0o2755}.get(name, 0o755))
    # vfs_cap_data of version 2: cap_net_raw in the permitted set, effective.
    os.setxattr(host_dir / "caps", "security.capability", struct.pack("<IIIII", 0x02000001, 1 << 13, 0, 0, 0))
    for where in ({"host_path": str(host_dir)}, {"host_path": str(host_dir), "host_path_mode": "ro"}):
        sid = psession(**where)
        want = posture(api, sid, "/workspace/plain")
        assert "self Uid 1000 1000 1000 1000" in want and "self CapEff 0000000000000000" in want
        for name in ("suid", "sgid", "caps"):
            assert posture(api, sid, f"/workspace/{name}") == want, name


@pytest.mark.vm
@pytest.mark.rootless
def test_check_A05_setuid_files_cannot_be_made_inside(api, sid):
    r = ran(api.sh(sid, "cp /bin/true /workspace/t; chmod u+s /workspace/t; stat -c %a /workspace/t"))
    assert int(r["stdout"], 8) & 0o6000 == 0
    assert "chmod" in r["stderr"]


@pytest.mark.vm
@pytest.mark.rootless
def test_check_A06_eight_namespaces_of_its_own(api, psession):
    seen = [host_ns()]
    for sid in (psession(), psession()):
        report = run_probe(api, sid, "identity")
        report.check("A06", least=len(NAMESPACES))
        seen.append({n: int(report.detail(f"A06.{n}")) for n in NAMESPACES})
    for n in NAMESPACES:
        assert len({s[n] for s in seen}) == 3, (n, [s[n] for s in seen])


@pytest.mark.rootless
@pytest.mark.parametrize("user", ["0", "-1", "4294967295", "0:0", "root\0x", "１", "root", 0, -1, None])
def test_check_A07_no_request_chooses_its_user(api, session, user):
    ask = ("cat", "/proc/self/status", "/proc/self/uid_map")
    for call in (lambda: api.x(session(), *ask, user=user), lambda: api.x(session(user=user), *ask)):
        try:
            r = ran(call())
        except ApiError as e:
            assert e.status in (400, 422) and e.code == "invalid", e
            continue
        assert re.search(r"^Uid:\t1000\t1000\t1000\t1000$", r["stdout"], re.M), r
        # Without root the outer id is seen in the launcher's own namespace, where the user is 0.
        assert not IS_ROOT or not re.search(r"^\s+\d+\s+0\s+\d+$", r["stdout"], re.M), "the host's root is mapped"


# A08


def fd_kind(link):
    if link.startswith("/"):  # of the groups there are as many as the dialect of cgroups needs
        return "null or cgroup"
    return link if link.startswith("anon_inode:") else link.split(":")[0]


def init_posture(pid):
    """PID 1, seen from outside: it is invisible inside."""
    s = status(pid)
    for key in ("Groups", *CAPS, "NoNewPrivs", "Seccomp", "SigBlk", "SigIgn", "Umask", "Threads"):
        yield f"init {key} {s[key].strip()}"
    ids = {int(i) for key in ("Uid", "Gid") for i in s[key].split()}
    yield f"init ids {'private' if all(i >= BLOCK for i in ids) else 'of the user' if ids == {os.geteuid()} else ids}"
    for ns in NAMESPACES:
        # Before Linux 6.3 only the children of whoever makes a time namespace are in it.
        file = "time_for_children" if ns == "time" and kernel_release() < (6, 3) else ns
        own = os.stat(f"/proc/{pid}/ns/{file}").st_ino
        yield f"init ns {ns} {'private' if own != host_ns()[ns] else 'of the host'}"
    yield f"init environ {len(pathlib.Path(f'/proc/{pid}/environ').read_bytes())} bytes"
    yield f"init cmdline {pathlib.Path(f'/proc/{pid}/cmdline').read_bytes()!r}"
    yield f"init exe {os.readlink(f'/proc/{pid}/exe')}"
    yield f"init cwd {os.readlink(f'/proc/{pid}/cwd')}"
    yield f"init oom_score_adj {pathlib.Path(f'/proc/{pid}/oom_score_adj').read_text().strip()}"
    for fd in os.listdir(f"/proc/{pid}/fd"):
        kind = fd_kind(os.readlink(f"/proc/{pid}/fd/{fd}"))
        # Only with cgroup v1, and only where the kernel has Landlock.
        if kind not in ("anon_inode:[eventfd]", "anon_inode:[landlock-ruleset]"):
            yield f"init fd {kind}"


def session_posture(daemon, api, make, text_of):
    before = init_pids(daemon)
    sid = make()
    (init,) = init_pids(daemon) - before
    lines = normal_posture(text_of(sid), daemon.state) | (set(init_posture(init)) if IS_ROOT else set())
    if not IS_ROOT:  # not every host has a second id to give; tests/integration/test_pid1.py looks at it
        lines = {line for line in lines if not re.fullmatch(r"[ug]id_map \d+ -> private 1", line)}
    return lines


@pytest.mark.vm
@pytest.mark.rootless
def test_check_A08_posture_is_the_golden_one(boxd_shared, api, psession):
    check_posture(session_posture(boxd_shared, api, psession, lambda sid: posture(api, sid)), *USER)


@pytest.mark.rootless
def test_check_A08_posture_on_a_terminal(boxd_shared, api, psession):
    check_posture(session_posture(boxd_shared, api, psession, lambda sid: ran(
        stream(boxd_shared.sock, sid, *probe_argv("posture"), tty=True))["stdout"]), *USER, "terminal")


@pytest.mark.rootless
def test_check_A08_posture_with_a_writable_root(boxd_shared, api, psession):
    if not IS_ROOT and mounts_below("/usr"):
        pytest.skip("an ordinary user cannot lay an overlay over /usr where the host has mounts below it: "
                    + ", ".join(mounts_below("/usr")))
    check_posture(session_posture(boxd_shared, api, lambda: psession(read_only_rootfs=False),
                                  lambda sid: posture(api, sid)),
                  *USER, "writable root", "writable root of " + ("root" if IS_ROOT else "an ordinary user"))


SCRIPT_TO_SELF = "#!/proc/self/exe\n"
REWRITE = """
import errno, os, time
seen = set()
end = time.monotonic() + 3600
while not os.path.exists("/workspace/stop") and time.monotonic() < end:
    for pid in ["1", "self", *(p for p in os.listdir("/proc") if p.isdigit())]:
        for flags in (os.O_WRONLY, os.O_WRONLY | os.O_TRUNC, os.O_RDWR):
            try:
                os.close(os.open(f"/proc/{pid}/exe", flags))
                seen.add(f"opened {os.readlink('/proc/' + pid + '/exe')}")
            except OSError as e:
                seen.add(errno.errorcode[e.errno])
print(*sorted(seen))
"""


@pytest.mark.rootless
def test_check_A09_executables_cannot_be_written(boxd_shared, api, psid, probed):
    """CVE-2019-5736: while programs are being started, the image that starts them is not to be had."""
    probed.check("A09", least=3)
    init = BUILD / "box-init"
    before = hashlib.sha256(init.read_bytes()).hexdigest()
    with beside(boxd_shared, psid, "python3", "-c", REWRITE,
                stop=lambda: api.x(psid, "touch", "/workspace/stop")) as attacker:
        api.x(psid, "sh", "-c", f"printf '{SCRIPT_TO_SELF}' > /workspace/self; chmod 755 /workspace/self")
        for i in range(count("BOX_TEST_A09_EXECS", 150)):
            r = api.x(psid, "/workspace/self" if i % 10 == 0 else "true")
            assert r["outcome"] == "exited" and (i % 10 == 0 or r["exit_code"] == 0), r
    r = ran(attacker.result())
    assert r["exit_code"] == 0, r
    # ENOENT and ESRCH: a process that was just ending.
    assert set(r["stdout"].split()) <= {"EACCES", "EPERM", "ETXTBSY", "EROFS", "ENOENT", "ESRCH"}, r["stdout"]
    assert hashlib.sha256(init.read_bytes()).hexdigest() == before


@pytest.mark.vm
@pytest.mark.rootless
def test_check_A10_the_first_process_cannot_be_looked_into(probed, api, sid):
    probed.check("A10", least=10)
    r = ran(api.sh(sid, "ls -d /proc/1; ls /proc/1/fd; kill -0 1"))
    assert r["stdout"] == ""


@pytest.mark.rootless
def test_probe_is_the_one_that_was_built(api, psid):
    r = ran(api.x(psid, "sha256sum", PROBE))
    assert r["stdout"].split()[0] == hashlib.sha256((BUILD / "box-attack").read_bytes()).hexdigest()
