# SPDX-License-Identifier: Apache-2.0
"""The image that LangBot asks for, made of programs of this host: no registry is asked."""

import functools
import io
import pathlib
import subprocess
import sys
import tarfile

NAME = "rockchin/langbot-sandbox:latest"
PROGRAMS = ("sh", "bash", "cat", "chmod", "cp", "cut", "date", "dd", "echo", "env", "false", "grep", "head", "id", "ls",
            "mkdir", "mv", "printf", "pwd", "rm", "rmdir", "sed", "seq", "sha256sum", "sleep", "sort", "stat", "tail",
            "test", "touch", "tr", "true", "wc", "find", "ln", "readlink", "tee", "python3", "dirname", "basename")
LEFT_OUT = ("__pycache__", "test", "tests", "idlelib", "lib2to3", "ensurepip", "dist-packages", "tkinter")
LINKS = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "sbin": "usr/sbin"}


def libraries(path):
    done = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=False)
    return {word for line in done.stdout.splitlines() for word in line.split() if word.startswith("/")}


def add(tar, path, seen):
    """A file at its place below /usr, and what its links lead to."""
    path = pathlib.Path(path)
    for old, new in LINKS.items():
        if path.parts[1] == old:
            path = pathlib.Path("/", new, *path.parts[2:])
    if path in seen:
        return
    seen.add(path)
    tar.add(path, str(path)[1:], recursive=False)
    if path.is_symlink():
        add(tar, path.parent.resolve() / path.readlink(), seen)


@functools.cache
def sandbox_tar():
    out, seen = io.BytesIO(), set()
    standard = pathlib.Path(f"/usr/lib/python{sys.version_info[0]}.{sys.version_info[1]}")
    files = [p for p in standard.rglob("*") if p.is_file() and not set(p.parts) & set(LEFT_OUT)
             and not p.name.endswith(".a") and "config-" not in str(p)]
    programs = [pathlib.Path("/usr/bin", p) for p in PROGRAMS if pathlib.Path("/usr/bin", p).exists()]
    needed = {library for p in [*programs, *files] if p in programs or ".so" in p.name for library in libraries(p)}
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in ("usr", "usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "tmp", "proc", "sys", "dev", "etc", "root",
                     "home", "var", "workspace", "opt"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(entry)
        for name, target in (*LINKS.items(), ("usr/bin/python", "python3")):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
        for name, text in (("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n"), ("etc/group", b"root:x:0:\n")):
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text))
        for path in sorted([*programs, *files, *needed], key=str):
            add(tar, path, seen)
    return out.getvalue()

