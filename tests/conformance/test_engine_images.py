# SPDX-License-Identifier: Apache-2.0
"""Images that mean harm, or mean well and are odd: what checks K02 to K05 say of images, and the image's side of table L.
Engines unpack them, Box never does (integration/test_table_k.py has the map of table K)."""

import io
import itertools
import os
import pathlib
import shutil
import tarfile
import tempfile
import time

import pytest
from boxlib import ApiError
from enginelib import EngineError, image_tar
from registrylib import Registry

pytestmark = [pytest.mark.real, pytest.mark.engine]
_numbers = itertools.count()


@pytest.fixture
def load(backend):
    """Makes an image: load(entries, changes, without) -> its name. What no import can set goes in `settings`, through a
    registry."""
    registry = Registry()

    def make(entries=(), changes=(), without=(), settings=None):
        name = f"odd{os.getpid()}:{next(_numbers)}"
        tar = image_tar(entries, without={e["name"] for e in entries} | set(without))
        if settings is None:
            backend.engine.load(name, tar, changes)
            return name
        name = f"{registry.host}/odd{next(_numbers)}"
        registry.add(name.split("/")[1], tar, settings=settings)
        backend.engine.api("POST", f"/v1.40/images/create?fromImage={name}&tag=1")
        return f"{name}:1"

    yield make
    registry.close()


@pytest.fixture
def shared():
    made = pathlib.Path(tempfile.mkdtemp(prefix="box-shared-"))
    os.chown(made, 4321, 4321)
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def link(name, target):
    return {"name": name, "mode": 0o777, "kind": b"2", "link": target}


def file(name, data=b"", mode=0o644):
    return {"name": name, "mode": mode, "data": data}


def directory(name, mode=0o777):
    return {"name": name, "mode": mode, "kind": b"5"}


LINKS = {
    "our place is a link": [link(".box", "/etc")],
    "our program is a link": [link(".box/guest", "/bin/busybox")],
    "our directory is a link": [link(".box/run", "/proc/self/cwd")],
    "the workspace is a link": [link("workspace", "/etc")],
    "the workspace is a link upwards": [link("workspace", "../../../../../../etc")],
    "tmp is a link": [link("tmp", "/proc/self")],
    "proc is a link": [link("proc", "/etc")],
    "dev is a link": [link("dev", "/etc")],
    "sys is a link": [link("sys", "/etc")],
    "the shell is a link to nowhere": [link("bin/sh", "/nowhere")],
    "etc is a link": [link("etc", "/proc")],
}


@pytest.mark.parametrize("what", LINKS)
def test_check_K03_links_of_an_image_lead_nowhere(box, load, shared, what):
    before, etc = os.stat("/etc/passwd").st_mtime_ns, set(os.listdir("/etc"))
    without = ("etc/passwd", "etc/group") if what == "etc is a link" else ()
    image = load(LINKS[what], ["USER 0", "ENV LD_PRELOAD=/evil.so", "ENV PATH=/evil", "ENTRYPOINT [\"/evil\"]"],
                 without)
    for spec in ({"host_path": str(shared)}, {"read_only_rootfs": False}):
        try:
            sid = box.new(image=image, **spec)
        except ApiError as refused:
            assert refused.code in ("backend", "denied", "invalid", "not_found"), refused
            continue
        status = box.x(sid, "/bin/cat", "/proc/self/status", cwd="/", timeout_sec=5)
        if status["exit_code"] == 0:
            assert "CapEff:\t0000000000000000" in status["stdout"] and "Seccomp:\t2" in status["stdout"]
        box.x(sid, "/bin/busybox", "touch", "/workspace/touched", "/dev/touched", "/proc/touched", cwd="/",
              timeout_sec=5)
        box.rm(sid)
    assert os.stat("/etc/passwd").st_mtime_ns == before and set(os.listdir("/etc")) == etc
    # Engines put these into what they take for /etc, before anybody can look; the session is refused then.
    assert set(os.listdir(shared)) <= {"touched", "hosts", "hostname", "resolv.conf", "passwd", "group"}
    left = [c for c in box.engine.containers() if c["Image"] == image]
    assert left == [], "nothing is left of those that were refused"


def test_check_K02_setuid_programs_and_devices_of_an_image_are_worth_nothing(box, load):
    busybox = pathlib.Path(shutil.which("busybox")).read_bytes()
    devices = [{"name": f"tmp2/{name}", "mode": 0o666, "kind": b"3", "device": number}
               for name, number in (("mem", (1, 1)), ("kmsg", (1, 11)), ("null", (1, 3)))]
    image = load([directory("tmp2"), file("bin/busybox-su", busybox, 0o6755), *devices])
    for spec in ({}, {"read_only_rootfs": False}):
        sid = box.new(image=image, **spec)
        own = box.sh(sid, "id -u; id -g")["stdout"]
        assert box.sh(sid, "busybox-su id -u; busybox-su id -g")["stdout"] == own
        status = box.sh(sid, "busybox-su cat /proc/self/status")["stdout"]
        assert "CapEff:\t0000000000000000" in status and "CapPrm:\t0000000000000000" in status
        r = box.sh(sid, "head -c 1 /tmp2/mem | wc -c; head -c 1 /tmp2/kmsg | wc -c; echo > /tmp2/null", timeout_sec=20)
        assert r["stdout"].split() == ["0", "0"], r
        box.rm(sid)


def test_check_K05_the_programs_that_an_image_wants_to_run_do_not_run(box, load):
    evil = file("evil", b"#!/bin/sh\ntouch /tmp/evil-ran; exec sleep 1000\n", 0o755)
    image = load([evil], settings={
        "Entrypoint": ["/evil"], "Cmd": ["/evil"], "OnBuild": ["RUN /evil"], "StopSignal": "SIGUSR1",
        "Healthcheck": {"Test": ["CMD", "/evil"], "Interval": 100000000, "Timeout": 1000000000}})
    sid = box.new(image=image)
    time.sleep(1)  # a health check would have run by now
    assert box.sh(sid, "ls /tmp; cat /proc/[0-9]*/cmdline | tr '\\0' ' '")["stdout"].count("evil") == 0
    assert box.container(sid)["Config"]["StopSignal"] in ("SIGKILL", "9"), "an end is not the image's to delay"


def test_check_K05_a_user_that_does_not_exist(box, load):
    image = load([], ["USER nobody-here:nowhere"])
    with pytest.raises(ApiError) as caught:
        box.new(image=image)
    assert caught.value.code in ("backend", "invalid", "not_found") and "nobody-here" in caught.value.detail
    assert [c for c in box.engine.containers() if c["Image"] == image] == []


def test_check_K05_an_image_with_a_user_of_its_own_keeps_it(box, load):
    sid = box.new(image=load([], ["USER 1234:5678"]))
    assert box.sh(sid, "echo $(id -u) $(id -g)")["stdout"] == "1234 5678\n"


def test_check_K04_a_user_is_not_root_by_another_name(box, load):
    """Names are the image's: one may be root's number."""
    image = load([file("etc/passwd", b"toor:x:0:0::/:/bin/sh\n")], ["USER toor"])
    sid = box.new(image=image)
    status = box.sh(sid, "cat /proc/self/status")["stdout"]
    assert "CapEff:\t0000000000000000" in status and "NoNewPrivs:\t1" in status
    assert box.sh(sid, "echo 1 > /proc/sys/kernel/core_pattern; echo $?")["stdout"] != "0\n"
    assert box.sh(sid, "echo x > /bin/x")["exit_code"] != 0


def test_check_K05_a_huge_environment(box, load):
    """One string that no program can be started with, and many that one can."""
    many = load([], [f"ENV V{n}={'x' * 1000}" for n in range(200)])
    sid = box.new(image=many)
    assert box.sh(sid, "env | grep -c ^V")["stdout"] == "200\n"
    image = load(settings={"Env": ["HUGE=" + "x" * 200000]})
    with pytest.raises(ApiError) as caught:
        sid = box.new(image=image)
    assert caught.value.code in ("backend", "invalid", "limit"), caught.value
    assert [c for c in box.engine.containers() if c["Image"] == image] == []


@pytest.mark.parametrize("line", [b"user:x:0:0", b"user:x:-1:-1::/:\n", b"user:x:99999999999999999999:1::/:\n",
                                  b"user:x:::::\n", b"user:x:0x0:0::/:\n", b"user:" + b"x" * 70000 + b":0:0::/:\n",
                                  b"\0user:x:0:0::/:\n"], ids=range(7))
def test_check_K04_lines_of_users_that_are_none(box, load, line):
    """The engine looks a name up. Whatever it finds: no capability, and never somebody whom the image did not name."""
    image = load([file("etc/passwd", line)], ["USER user"])
    try:
        sid = box.new(image=image)
    except ApiError as refused:
        assert refused.code in ("backend", "invalid", "not_found"), refused
        assert [c for c in box.engine.containers() if c["Image"] == image] == []
        return
    status = box.x(sid, "/bin/cat", "/proc/self/status", cwd="/")["stdout"]
    assert "CapEff:\t0000000000000000" in status and "NoNewPrivs:\t1" in status and "Seccomp:\t2" in status
    assert "Uid:\t0\t0\t0\t0" in status, "there is no other number in any of these lines"


@pytest.mark.parametrize("workdir", ["/proc/self/fd/8", "/proc/self/fd/3", "/proc/1/cwd", "/proc/self/root/proc/1/cwd"])
def test_check_K05_a_working_directory_is_no_descriptor_of_the_engine(box, load, workdir):
    """CVE-2024-21626: a descriptor that leaked into the container, named by the image."""
    try:
        sid = box.new(image=load(settings={"WorkingDir": workdir}))
    except ApiError as refused:
        assert refused.code in ("backend", "invalid", "denied", "not_found"), refused
        return
    for cwd in ({}, {"cwd": workdir}):
        try:
            r = box.sh(sid, "pwd -P; ls -a; ls -a ../..", **cwd)
        except ApiError as refused:
            assert refused.code in ("backend", "invalid", "denied", "not_found"), refused
            continue
        assert not {"boot", "lost+found", "config.json", "rootfs", "containerd"} & set(r["stdout"].split()), r


def evil_layer(entries):
    """A whole root and these, as no well-behaved program would write them: (name, kind, link, pax headers)."""
    out = io.BytesIO(image_tar())
    with tarfile.open(fileobj=out, mode="a", format=tarfile.PAX_FORMAT) as tar:
        for name, kind, link, headers in entries:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.pax_headers, info.mode = kind, link, headers, 0o6777
            data = b"evil" if kind == tarfile.REGTYPE else b""
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


LAYERS = {
    "upwards": [("../../../../../../../../tmp/k02-evil", tarfile.REGTYPE, "", {})],
    "absolute": [("/tmp/k02-evil", tarfile.REGTYPE, "", {})],
    "a link and then through it": [("l", tarfile.SYMTYPE, "/tmp", {}), ("l/k02-evil", tarfile.REGTYPE, "", {})],
    "a link upwards": [("l", tarfile.SYMTYPE, "../../../../../../../tmp", {}), ("l/k02-evil", tarfile.REGTYPE, "", {})],
    "a hard link outside": [("passwd", tarfile.LNKTYPE, "../../../../../../../../etc/passwd", {})],
    "a hard link through a link": [("l", tarfile.SYMTYPE, "/etc", {}), ("passwd", tarfile.LNKTYPE, "l/passwd", {})],
    "another path in its headers": [("ok", tarfile.REGTYPE, "", {"path": "../../../../../../../../tmp/k02-evil"})],
    "whiteouts": [("usr/.wh..wh..opq", tarfile.REGTYPE, "", {}), ("..wh.", tarfile.REGTYPE, "", {}),
                  (".wh...", tarfile.REGTYPE, "", {}), (".wh.", tarfile.REGTYPE, "", {})],
    "attributes of the overlay": [("d", tarfile.DIRTYPE, "", {"SCHILY.xattr.trusted.overlay.redirect": "/etc",
                                                             "SCHILY.xattr.trusted.overlay.opaque": "y"}),
                                  ("e", tarfile.DIRTYPE, "", {"SCHILY.xattr.user.overlay.redirect": "/etc"})],
    "capabilities": [("bin/cap", tarfile.REGTYPE, "", {"SCHILY.xattr.security.capability":
                                                      "\x01\x00\x00\x02\x7f\x7f\x7f\x7f" + "\x00" * 12})],
}


@pytest.mark.parametrize("what", LAYERS)
def test_check_K02_layers_that_reach_out(box, what):
    """Refused by the engine, or contained: nothing of the host changes, and nothing of it is in the session."""
    before, passwd = os.stat("/etc/passwd"), pathlib.Path("/etc/passwd").read_bytes()
    name = f"layer{os.getpid()}:{next(_numbers)}"
    try:
        box.engine.load(name, evil_layer(LAYERS[what]))
        sid = box.new(image=name)
    except (ApiError, EngineError) as refused:
        assert not isinstance(refused, ApiError) or refused.code in ("backend", "invalid", "not_found"), refused
    else:
        status = box.sh(sid, "cat /proc/self/status")["stdout"]
        assert "CapEff:\t0000000000000000" in status and "CapPrm:\t0000000000000000" in status
        shown = box.sh(sid, "cat /passwd /l/passwd /d/shadow /e/shadow; ls /d /e")
        assert passwd.decode(errors="replace").splitlines()[-1] not in shown["stdout"]
        assert "shadow" not in shown["stdout"]
        box.rm(sid)
    after = os.stat("/etc/passwd")
    assert (after.st_ino, after.st_nlink, after.st_mtime_ns) == (before.st_ino, before.st_nlink, before.st_mtime_ns)
    assert not os.path.exists("/tmp/k02-evil")


def test_check_K04_a_huge_file_of_users(box, load):
    line = b"u%d:x:%d:%d::/:/bin/sh\n"
    image = load([file("etc/passwd", b"".join(line % (n, n, n) for n in range(200000))),
                  file("etc/group", b"g:x:1:" + b"u1," * 1000000 + b"\n")])
    begin = time.monotonic()
    try:
        sid = box.new(image=image)
    except ApiError as refused:
        assert refused.code in ("backend", "invalid")
    else:
        assert box.sh(sid, "echo fine")["stdout"] == "fine\n"
    assert time.monotonic() - begin < 60


def test_L_volumes_of_an_image_are_no_way_around_its_limits(box, load):
    """A volume is a directory on the engine's disk. Where the root is read-only it would be the one place without."""
    image = load([directory("data"), file("data/given", b"given\n"), directory("var/more")],
                 ["VOLUME /data", "VOLUME /var/more/", "VOLUME /tmp", "VOLUME /workspace"])
    sid = box.new(image=image)
    assert not [m for m in box.container(sid)["Mounts"] if m["Type"] == "volume"]
    r = box.sh(sid, "for d in /data /var/more /tmp; do dd if=/dev/zero of=$d/x bs=1M count=100; stat -c %s $d/x; "
                    "rm $d/x; done")
    assert all(60 << 20 <= int(n) <= 64 << 20 for n in r["stdout"].split()) and r["stdout"].count("\n") == 3, r
    # Where the root can be written to they are what the image says, and go with the session.
    sid = box.new(image=image, read_only_rootfs=False)
    assert box.sh(sid, "cat /data/given; touch /data/x && echo fine")["stdout"] == "given\nfine\n"
    volumes = [m["Name"] for m in box.container(sid)["Mounts"] if m["Type"] == "volume"]
    box.rm(sid)
    left = box.engine.api("GET", "/v1.40/volumes")["Volumes"] or []
    assert volumes and not {v["Name"] for v in left} & set(volumes)


@pytest.mark.parametrize("volume", ["/", "/proc", "/sys/fs", "/dev/x", "/.box", "/.box/run", "/a/../b", "relative"])
def test_L_volumes_where_none_can_be(box, load, volume):
    try:
        image = load([], [f"VOLUME {volume}"])
    except Exception as refused:  # the engine may be the wiser
        assert "400" in str(refused) or "500" in str(refused)
        return
    try:
        sid = box.new(image=image)
    except ApiError as refused:
        assert refused.code in ("denied", "backend", "invalid"), refused
        return
    # An engine that has made something harmless of it.
    status = box.sh(sid, "cat /proc/self/status", cwd="/")["stdout"]
    assert "CapEff:\t0000000000000000" in status and "Seccomp:\t2" in status
    assert volume not in ("/", "/proc", "/.box", "/.box/run")


def test_L_too_many_volumes(box, load):
    with pytest.raises(ApiError) as caught:
        box.new(image=load([], [f"VOLUME /v{n}" for n in range(40)]))
    assert caught.value.code == "limit"


def test_a_request_without_an_image_is_told_to_name_one(box):
    with pytest.raises(ApiError, match="has no image 'host', which stands for the programs of this host: name one"):
        box.api.call("POST", "/v1/sessions", {"session_id": f"none{next(_numbers)}"})


def test_L_labels_of_an_image_have_a_limit(box, load):
    """They are in every list of containers: a few sessions must not make those too long to be read."""
    settings = {"Labels": {"large": "x" * 100_000}}
    with pytest.raises(ApiError, match="bytes of labels") as caught:
        box.new(image=load(settings=settings))
    assert caught.value.code == "limit"
    assert box.sh(box.new(image=load(settings={"Labels": {"large": "<" * 50_000}})), "echo fine")["stdout"] == "fine\n"
