# SPDX-License-Identifier: Apache-2.0
"""Table B: the surface of the kernel."""

import platform
import shutil
import signal
import subprocess

import pytest

from boxlib import ROOT
from escapelib import GOLDEN, Report, has_landlock, is_slow, posture, probe_argv, ran, run_probe, stream

pytestmark = [pytest.mark.rootless, pytest.mark.vm]
X86 = platform.machine() == "x86_64"
only_x86 = pytest.mark.skipif(not X86, reason="system calls of another architecture exist on x86-64 only")


def test_check_B01_no_new_namespaces(probed):
    found = probed.check("B01", least=16)
    assert found["B01.clone3"][1] == "ENOSYS"


def test_the_kernel_refuses_user_namespaces_behind_the_filter(api, sid):
    r = ran(api.sh(sid, "cat /proc/sys/user/max_user_namespaces; echo 9 > /proc/sys/user/max_user_namespaces"))
    assert r["stdout"] == "0\n" and "Read-only file system" in r["stderr"], r


def test_check_B02_no_mounts(probed):
    # EINVAL or ENODEV would mean that the call was looked at.
    assert {v[1] for v in probed.check("B02", least=10).values()} <= {"EPERM", "ENOSYS"}


def test_check_B03_no_chroot_devices_or_other_namespaces(probed):
    assert {v[1] for v in probed.check("B03", least=4).values()} == {"EPERM"}


def test_check_B04_no_io_uring(probed, api, psid):
    assert {v[1] for v in probed.check("B04", least=3).values()} == {"ENOSYS"}
    run_probe(api, psid, "uring").check("B04b", least=2)


def test_check_B05_no_sockets_of_odd_families(probed):
    probed.check("B05", least=16)


def test_check_B06_no_bpf_perf_userfaultfd(probed):
    probed.check("B06", least=3)


KEYS = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
import platform
add, request, keyctl = (248, 249, 250) if platform.machine() == "x86_64" else (217, 218, 219)
user_keyring, session_keyring = -4, -3
if ACTION == "add":
    r = [libc.syscall(add, b"user", b"box-b07", b"x", 1, ring) for ring in (user_keyring, session_keyring)]
else:
    r = [libc.syscall(keyctl, 10, ring, b"user", b"box-b07", 0) for ring in (user_keyring, session_keyring)]
    r.append(libc.syscall(request, b"user", b"box-b07", None, 0))
print(*r)
"""


def test_check_B07_no_keys_and_none_of_a_neighbour(probed, api, session):
    probed.check("B07", least=3)
    a, b = session(), session()
    assert ran(api.x(a, "python3", "-c", KEYS.replace("ACTION", "'add'")))["stdout"].split() == ["-1", "-1"]
    assert ran(api.x(b, "python3", "-c", KEYS.replace("ACTION", "'find'")))["stdout"].split() == ["-1"] * 3


def test_check_B08_nothing_types_into_the_terminal(probed, boxd_shared, psid):
    probed.check("B08", least=5)
    on_tty = ran(stream(boxd_shared.sock, psid, *probe_argv("tty"), tty=True))
    Report(on_tty["stdout"]).check("B08", least=5)


# Programs by hand, so that no 32-bit compiler is needed. Both end with 0 when nothing stops them.


def elf32():
    code = bytes.fromhex("b801000000" "31db" "cd80")  # exit(0) of i386
    head = b"\x7fELF\1\1\1" + bytes(9)
    head += (2).to_bytes(2, "little") + (3).to_bytes(2, "little") + (1).to_bytes(4, "little")
    head += (0x8048054).to_bytes(4, "little") + (52).to_bytes(4, "little") + bytes(8)
    head += b"".join(n.to_bytes(2, "little") for n in (52, 32, 1, 0, 0, 0))
    size = (84 + len(code)).to_bytes(4, "little")
    load = (1).to_bytes(4, "little") + bytes(4) + (0x8048000).to_bytes(4, "little") * 2 + size * 2
    return head + load + (5).to_bytes(4, "little") + (0x1000).to_bytes(4, "little") + code


def elf64(code):
    entry = 0x400078
    head = b"\x7fELF\2\1\1" + bytes(9)
    head += (2).to_bytes(2, "little") + (62).to_bytes(2, "little") + (1).to_bytes(4, "little")
    head += entry.to_bytes(8, "little") + (64).to_bytes(8, "little") + bytes(8) + bytes(4)
    head += b"".join(n.to_bytes(2, "little") for n in (64, 56, 1, 0, 0, 0))
    size = (120 + len(code)).to_bytes(8, "little")
    load = (1).to_bytes(4, "little") + (5).to_bytes(4, "little") + bytes(8) + (0x400000).to_bytes(8, "little") * 2
    return head + load + size * 2 + (0x1000).to_bytes(8, "little") + code


# getpid by int 0x80, then exit(0) the proper way.
INT80 = elf64(bytes.fromhex("b814000000" "cd80" "b83c000000" "31ff" "0f05"))
# getpid with the x32 bit; the status is -errno, or the pid's low byte.
X32 = elf64(bytes.fromhex("b827000040" "0f05" "89c7" "f7df" "b83c000000" "0f05"))


@only_x86
def test_check_B09_calls_of_other_architectures_kill(probed, api, session, host_dir):
    """The host's kernel says what there is to be stopped: these programs are harmless."""
    probed.check("B09", least=3)
    for name, elf in (("elf32", elf32()), ("int80", INT80), ("x32", X32)):
        (host_dir / name).write_bytes(elf)
        (host_dir / name).chmod(0o755)
    sid = session(extra_mounts=[{"host_path": str(host_dir), "mount_path": "/b09", "mode": "ro"}])
    try:
        has_ia32 = subprocess.run([str(host_dir / "elf32")], check=False).returncode == 0
    except OSError:
        has_ia32 = False
    for name in ("elf32", "int80"):
        r = api.x(sid, f"/b09/{name}")
        if has_ia32:
            assert (r["outcome"], r["signal"]) == ("signaled", signal.SIGSYS), r
        else:
            assert r["outcome"] == "signaled" or r["exit_code"] == 126, r
    r = api.x(sid, "/b09/x32")
    assert (r["outcome"], r["exit_code"]) == ("exited", 38), r  # ENOSYS


def test_check_B10_no_file_handles(probed):
    probed.check("B10", least=2)
    assert int(probed.detail("A02.CapBnd"), 16) == 0  # hence no CAP_DAC_READ_SEARCH


def test_check_B11_no_personalities_and_odd_memory(probed):
    probed.check("B11", least=4 if X86 else 3)


def test_check_B12_no_raw_sockets(probed):
    probed.check("B12", least=3)
    probed.check("B05.packet")


def test_check_B13_no_memory_policies(probed):
    probed.check("B13", least=5)


def test_check_B14_nothing_for_administrators(probed):
    assert {v[1] for v in probed.check("B14", least=16).values()} == {"EPERM"}


def test_check_B15_no_file_attributes(probed, api, psid):
    probed.check("B15", least=6)
    # The same for a file on disk, where they would mean something.
    r = ran(api.sh(psid, "cd /workspace; echo x > f; chattr +i f; lsattr f; chattr -p 4242 f; rm f && echo removed"))
    assert r["stdout"].endswith("removed\n"), r


def test_check_B16_filters_nest(probed):
    probed.check("B16", least=2, na=() if has_landlock() else ("B16.landlock",))


def test_check_B17_no_gain_by_prctl(probed):
    probed.check("B17", least=5)


def test_check_B18_no_priorities_and_limits(probed, api, sid):
    probed.check("B18", least=7)
    r = ran(api.sh(sid, "for l in c n u l; do ulimit -$l unlimited && echo raised $l; done 2>/dev/null; true"))
    assert r["stdout"] == ""


# B19


def test_check_B19_programs_that_people_use(long_api, session, host_dir):
    """The script of the filter's own test, under all the walls. A program that is not there is skipped by name."""
    shutil.copy(ROOT / "tests/escape/filtered_programs.sh", host_dir)
    sid = session(extra_mounts=[{"host_path": str(host_dir), "mount_path": "/b19", "mode": "ro"}],
                  memory_mb=2048, pids_limit=512, cpus=2)
    env = {"CHECK_TIMEOUT": "600"}
    if is_slow():
        env["CHECK_ONLY"] = " bash coreutils tar git gcc sqlite3 python-basics python-asyncio curl ps "
    r = ran(long_api.x(sid, "sh", "/b19/filtered_programs.sh", "/usr/bin/env", env=env))
    print(r["stdout"])
    lines = r["stdout"].splitlines()
    assert not [x for x in lines if x.startswith("not ok")], r["stdout"]
    plan = [x for x in lines if x.startswith("1..")]
    assert plan and len([x for x in lines if x.startswith("ok ")]) == int(plan[0][3:]), r["stdout"]
    assert r["exit_code"] == 0


# B20


def golden_filter():
    name = "seccomp.txt" if X86 else f"seccomp-{platform.machine()}.txt"
    rows = [line.split() for line in (GOLDEN / name).read_text().splitlines() if line[0] != "#"]
    return {int(nr): (call, default) for nr, call, default, _debug, _daemon in rows}


def test_check_B20_every_number_is_answered_as_the_golden_file_says(long_api, psession):
    sid = psession(pids_limit=64)
    r = ran(long_api.x(sid, *probe_argv("sweep"), cwd="/tmp"))
    swept = {int(f[0]): f[1:] for f in (line.split(" ") for line in r["stdout"].splitlines())}
    want = golden_filter()
    assert set(swept) == set(want) == set(range(601)), r["stdout"]
    wrong = []
    for nr, (call, verdict) in want.items():
        name, zero, poison = swept[nr]
        # What is allowed reaches the kernel, whose answer depends on its version. A star: arguments decide.
        if verdict == "allow":
            continue
        if zero != verdict or (poison != verdict and not call.endswith("*")):
            wrong.append((nr, call, verdict, zero, poison))
    assert not wrong, wrong
    unknown = [nr for nr, (call, _) in want.items() if call == "-"]
    assert len(unknown) > 100 and {swept[nr][1] for nr in unknown} == {swept[nr][2] for nr in unknown} == {"ENOSYS"}

    assert "self Seccomp 2" in posture(long_api, sid)  # and the session has survived it all
