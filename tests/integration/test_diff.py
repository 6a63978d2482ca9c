# SPDX-License-Identifier: Apache-2.0
"""`box diff`: which files of its image a session has changed, whatever they are called and however many there are."""

import os

import pytest
from boxlib import box

CHANGE = r"""
echo x > /usr/bin/added; rm /usr/bin/awk; echo y >> /etc/hosts; mkdir -p /usr/share/d/e; ln -s / /usr/share/d/link
touch "/usr/share/d/e/$(printf 'a\nb\033[31m')" "/usr/share/d/$(printf '\377')"
rm -r /usr/share/doc/dash; mkdir /usr/share/doc/dash; touch /usr/share/doc/dash/new
"""
WANT = """\
C /etc
C /etc/hosts
C /usr
C /usr/bin
A /usr/bin/added
D /usr/bin/awk
C /usr/share
A /usr/share/d
A /usr/share/d/e
A /usr/share/d/e/a\\x0ab\\x1b[31m
A /usr/share/d/link
A /usr/share/d/\ufffd
C /usr/share/doc
C /usr/share/doc/dash
A /usr/share/doc/dash/new
"""


def diff(boxd, sid):
    r = box("diff", sid, sock=boxd.sock)
    assert r.returncode == 0, r
    return r.stdout, r.stderr


def test_changes_of_the_image_are_listed(api, boxd_shared, session):
    sid = session(read_only_rootfs=False)
    assert diff(boxd_shared, sid) == ("", "")
    assert api.sh(sid, CHANGE)["exit_code"] == 0
    assert diff(boxd_shared, sid) == (WANT, "")
    assert not os.path.exists("/usr/bin/added")


@pytest.mark.rootless
def test_a_read_only_root_has_nothing_to_list(api, boxd_shared, session):
    sid = session()
    assert api.sh(sid, "echo own > file")["exit_code"] == 0
    out, said = diff(boxd_shared, sid)
    assert out == "" and "has a read-only root" in said and f"box exec {sid} find" in said


@pytest.mark.rootless  # who owns nothing of the image, and can add to it all the same
def test_a_list_ends_at_its_cap(api, boxd_shared, session):
    sid = session(read_only_rootfs=False)
    make = "import os\nos.mkdir('/usr/m')\nfor i in range(9998): os.mknod(f'/usr/m/{i}')"
    assert api.x(sid, "python3", "-c", make)["exit_code"] == 0
    out, said = diff(boxd_shared, sid)
    assert out.count("\n") == 10000 and said == ""
    assert api.sh(sid, "touch /usr/m/more")["exit_code"] == 0
    out, said = diff(boxd_shared, sid)
    assert out.count("\n") == 10000 and said == "box: there are more changes than are listed\n"
    deep = "import os\nos.chdir('/etc')\nfor i in range(80): os.mkdir('d'); os.chdir('d')"
    other = session(read_only_rootfs=False)
    assert api.x(other, "python3", "-c", deep)["exit_code"] == 0
    assert diff(boxd_shared, other)[1] == "box: there are more changes than are listed\n"
