# SPDX-License-Identifier: Apache-2.0
"""The /etc of a session follows the host's: what every user of the host can read, without secrets, also when it came
after the daemon. Each daemon here has an /etc of its own, in a mount namespace of its own."""

import os
import pathlib
import re
import shutil
import subprocess
import time

import pytest
from boxlib import ROOT, Boxd, scratch

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="an /etc of the test's own has to be mounted")
USER = 12345
MOUNT = 'mount --bind "$0" /etc; '
AS_USER = f"setpriv --reuid {USER} --regid {USER} --groups 4 "
RULES = (ROOT / "src/sandbox/setup/hostetc_rules.c").read_text()


class Host:
    """An /etc, and a daemon that has it."""

    def __init__(self, top, rootful):
        self.etc, state = top / "etc", top / "state"
        self.etc.mkdir()
        state.mkdir()
        for name in ("ld.so.cache", "alternatives", "ssl", "localtime", "passwd", "group", "subuid", "subgid"):
            source = pathlib.Path("/etc") / name
            if source.exists():
                subprocess.run(["cp", "-a", source, self.etc / name], check=True)
        if not rootful:
            os.chown(state, USER, USER)
        self.state, self.rootful, self.daemon = state, rootful, None

    def start(self):
        prefix = ["unshare", "--mount", "--propagation=private", "sh", "-ec",
                  MOUNT + ("" if self.rootful else "exec " + AS_USER) + '"$@"', str(self.etc)]
        self.daemon = Boxd(state=self.state, prefix=prefix)
        self.api = self.daemon.client()
        return self

    def put(self, name, text="here\n", mode=0o644):
        path = self.etc / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def sh(self, script, **spec):
        """In a session of its own."""
        self.api.new("s", **spec)
        try:
            r = self.api.sh("s", script)
        finally:
            self.api.rm("s")
        assert r["outcome"] == "exited", r
        return r["stdout"]


@pytest.fixture(params=["root", "user"])
def host(request):
    with scratch("box-etc-") as top:
        made = Host(top, request.param == "root")
        yield made
        if made.daemon is not None:
            made.api.close()
            made.daemon.close()


def test_programs_of_usr_find_their_settings(host):
    """Certificates, alternatives, directories of settings, the linker's configuration: by rule, not by name."""
    host.put("ssl/certs/ca-of-the-company.pem", "-----BEGIN CERTIFICATE-----\n")
    host.put("chromium.d/default-flags", "export CHROMIUM_FLAGS=1\n")
    host.put("ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n")
    host.put("ld.so.conf.d/company.conf", "/usr/lib/company\n")
    host.put("company/tool/hook", "#!/bin/sh\necho hook ran\n", 0o755)
    (host.etc / "alternatives").mkdir(exist_ok=True)
    vi = host.etc / "alternatives/vi-of-the-test"
    vi.symlink_to("/usr/bin/env")
    host.start()
    for spec in ({}, {"read_only_rootfs": False}, {"network": "on"} if host.rootful else {}):
        out = host.sh("""cat /etc/ssl/certs/ca-of-the-company.pem /etc/chromium.d/* /etc/ld.so.conf /etc/ld.so.conf.d/*
            /etc/company/tool/hook; /etc/alternatives/vi-of-the-test true && echo vi ran""", **spec)
        assert out == ("-----BEGIN CERTIFICATE-----\nexport CHROMIUM_FLAGS=1\ninclude /etc/ld.so.conf.d/*.conf\n"
                       "/usr/lib/company\nhook ran\nvi ran\n"), out


def test_what_is_installed_later_is_there_in_the_next_session(host):
    host.put("app/old.conf", "old\n")
    host.put("app/going.conf")
    host.start()
    assert host.sh("cd /etc/app; cat old.conf; ls") == "old\ngoing.conf\nold.conf\n"
    host.put("later.d/10-first.conf", "first\n")  # a directory, and a file in it
    host.put("app/old.conf.new", "new\n").rename(host.etc / "app/old.conf")  # as dpkg does
    (host.etc / "app/going.conf").unlink()
    (host.etc / "link").symlink_to("later.d/10-first.conf")
    assert host.sh("cd /etc; cat later.d/* app/old.conf link; ls app") == "first\nnew\nfirst\nold.conf\n"
    (host.etc / "later.d").rename(host.etc / "moved.d")
    host.put("moved.d/20-second.conf", "second\n")
    (host.etc / "link").unlink()
    assert host.sh("cd /etc; cat moved.d/*; ls -d later.d link 2>&1 | grep -c 'No such'") == "first\nsecond\n2\n"
    shutil.rmtree(host.etc / "moved.d")
    (host.etc / "app").chmod(0o700)
    assert host.sh("ls /etc/moved.d /etc/app 2>&1 | grep -c 'No such'") == "2\n"
    (host.etc / "app").chmod(0o755)
    assert host.sh("cat /etc/app/old.conf") == "new\n"


def test_a_session_that_is_there_sees_what_is_installed_later(host):
    host.start()
    host.api.new("kept")
    host.put("later/file", "later\n")
    end = time.monotonic() + 60
    while host.api.sh("kept", "ls /etc")["stdout"].split().count("later") == 0:  # each look is an event of its own
        assert time.monotonic() < end
    assert host.api.sh("kept", "cat /etc/later/file")["stdout"] == "later\n"
    host.api.rm("kept")


def patterns(table):
    return re.findall(r'"([^"]+)"', re.search(r"%s\[\] = \{(.*?)\n\};" % table, RULES, re.S).group(1))


def test_every_name_on_the_list_is_hidden_although_all_may_read_it(host):
    """Before the daemon and after, as a file and as a directory."""
    ours = {"passwd", "group", "hosts", "hostname", "nsswitch.conf", "shells", "resolv.conf"}
    names = [p.replace("*", "") or "x" for p in patterns("hidden_paths")]
    names = [n.replace("pki//", "pki/ca/").replace("?", "p") for n in names]
    names += ["app/" + p.replace("*", "x").replace("?", "p") for p in patterns("hidden_names")]
    names += ["app/X-Secret.conf", "ssl/company.KEY"]
    assert len(names) > 150
    before, after = names[::2], names[1::2]
    for name in before:
        if not (host.etc / name).exists():
            host.put(name, "hidden-by-name\n")
    host.put("app/shown", "shown\n")
    host.start()
    for name in after:
        if not (host.etc / name).exists() and not (host.etc / name).parent.is_file():
            host.put(name + "/inner" if "/" not in name else name, "hidden-by-name\n")
    out = host.sh("cat /etc/app/shown; grep -rs hidden-by-name /etc; cd /etc; find . | sed 's|^./||'")
    shown = set(out.splitlines())
    assert out.startswith("shown\n") and "hidden-by-name" not in out
    assert shown & set(names) <= ours, shown & set(names)
    assert ours <= shown and "machine-id" not in shown and "shadow" not in shown


def test_what_a_user_of_the_host_cannot_read_is_not_there(host):
    """Also where the daemon's own user can: it is root, or in the group of the file."""
    host.put("app/shown", "shown\n")
    host.put("app/root-only", "unreadable\n", 0o600)
    group = host.put("app/group-only", "unreadable\n", 0o640)
    os.chown(group, 0, 4)
    mine = host.put("app/users-own", "unreadable\n", 0o600)
    os.chown(mine, USER, USER)
    host.put("closed/file", "unreadable\n")
    (host.etc / "closed").chmod(0o750)
    host.put("unlisted/file", "unreadable\n")
    (host.etc / "unlisted").chmod(0o711)
    host.put("closes-later", "unreadable\n")
    host.start()
    look = "cat /etc/app/shown; grep -rs unreadable /etc; ls -d /etc/app/* /etc/closed /etc/unlisted 2>/dev/null"
    (host.etc / "closes-later").chmod(0o640)
    host.put("app/late", "unreadable\n", 0o600)
    for spec in ({}, {"read_only_rootfs": False}):
        assert host.sh(look, **spec) == "shown\n/etc/app/shown\n"
    (host.etc / "app/late").write_text("shown later\n")
    (host.etc / "app/late").chmod(0o644)
    assert host.sh("cat /etc/app/late") == "shown later\n"


def test_links_lead_nowhere_but_into_the_image(host):
    outside = host.etc.parent / "outside"
    outside.write_text("of the host\n")
    os.link(host.put("shadow", "of the host\n", 0o600), host.etc / "app-hard")
    for name, target in (("out", outside), ("up", "../" * 9 + str(outside)[1:]), ("home", "/root/.ssh"),
                         ("run", "/run/secrets"), ("state", host.state), ("hidden", "shadow"), ("good", "/usr/bin/env")):
        (host.etc / f"link-{name}").symlink_to(target)
    os.mkfifo(host.etc / "fifo", 0o644)
    host.start()
    out = host.sh("cd /etc; ls -d link-* fifo app-hard 2>/dev/null; cat link-* fifo app-hard 2>/dev/null | grep -a 'of the host'")
    assert out == "link-good\nlink-hidden\n"


@pytest.mark.parametrize("text", [
    "-----BEGIN OPENSSH PRIVATE KEY-----\nx\n", "a\n-----BEGIN PGP PRIVATE KEY BLOCK-----\n",
    "index-url = https://me:s3cret@index.example/simple\n", "//registry.example/:_authToken=abc\n"])
def test_a_file_that_holds_a_secret_is_not_shown_whatever_its_name(host, text):
    host.put("pip.conf", text)
    host.put("shown.conf", "see https://example.org:8080/me@home -----BEGIN CERTIFICATE-----\n")
    host.start()
    host.put("later.conf", "x = 1\n" + text)
    assert host.sh("ls /etc/pip.conf /etc/later.conf /etc/shown.conf 2>/dev/null") == "/etc/shown.conf\n"
    host.put("pip.conf", "index-url = https://index.example/simple\n")
    assert "index.example" in host.sh("cat /etc/pip.conf")


def test_a_great_many_changes_are_followed(host):
    """More than the kernel's queue holds: everything is then looked at again."""
    limit = int(pathlib.Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    host.put("app/0", "old\n")
    host.start()
    pid = host.daemon.priv_pid()
    os.kill(pid, 19)  # SIGSTOP: box-priv reads nothing meanwhile
    try:
        names = [host.etc / f"app/{i % 50}" for i in range(limit + 200)]
        for name in names:
            name.touch()
        host.put("app/last", "last\n")
        host.put("app/0", "new\n")
    finally:
        os.kill(pid, 18)
    assert host.sh("cat /etc/app/last /etc/app/0; ls /etc/app | wc -l") == "last\nnew\n51\n"


def test_the_document_has_the_list():
    page = (ROOT / "docs/reference/host-image.md").read_text()
    missing = [p for table in ("hidden_paths", "hidden_names") for p in patterns(table) if f"`{p}`" not in page]
    assert missing == []
