# SPDX-License-Identifier: Apache-2.0
"""Something done by another process: in another directory, or as another user."""

import contextlib
import json
import os
import pwd
import shutil
import tempfile
import traceback


def group_of(uid):
    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        return uid


def elsewhere(fn, cwd="/", uid=None, groups=()):
    """What fn() returns, as far as JSON has it; its exception, as text, is a RuntimeError here."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        with contextlib.suppress(BaseException):
            os.close(ours)
            try:
                if uid is not None and uid != os.getuid():
                    os.setgroups(list(groups))
                    gid = group_of(uid)
                    os.setresgid(gid, gid, gid)
                    os.setresuid(uid, uid, uid)
                os.chdir(cwd)
                answer = {"ok": fn()}
            except BaseException as e:  # noqa: B902 (told to who waits)
                answer = {"error": f"{type(e).__name__}: {e}", "trace": traceback.format_exc()}
            with os.fdopen(theirs, "w") as out:
                json.dump(answer, out)
            status = 0
        os._exit(status)
    os.close(theirs)
    with os.fdopen(ours) as answers:
        text = answers.read()
    os.waitpid(pid, 0)
    answer = json.loads(text)
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return answer["ok"]


@contextlib.contextmanager
def directory(parent="/tmp", uid=None, mode=0o755):
    path = tempfile.mkdtemp(prefix="box-peer-", dir=parent)
    os.chmod(path, mode)
    if uid is not None:
        os.chown(path, uid, group_of(uid))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
