#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy over every C file of a build directory, one process per file.

usage: tidy.py BUILD_DIR CACHE_DIR [JOBS]

A file that was clean is not looked at again until it, a header it includes, its compile command,
.clang-tidy or clang-tidy itself changes: CACHE_DIR holds an empty file per clean state, and the
directory above it the compile commands, one per file.
"""

import hashlib
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent
INCLUDE = re.compile(rb'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
# "N warnings generated." counts what system headers said and was suppressed; the notes of the
# complexity check explain every branch in three lines.
NOISE = re.compile(r"^(\d+ .* generated\.\n|.*: note: \+\d.*\n.*\n.*\n)", re.MULTILINE)


def with_headers(path, seen):
    """Adds path and every project header it reaches to seen: {path: bytes}."""
    if path in seen:
        return
    seen[path] = text = path.read_bytes()
    for name in INCLUDE.findall(text):
        for base in (path.parent, TREE / "src", TREE / "tests"):
            header = base / name.decode()
            if header.is_file():
                with_headers(header.resolve(), seen)
                break


def state_key(path, command, version):
    seen = {}
    with_headers(path, seen)
    digest = hashlib.sha256(version + (TREE / ".clang-tidy").read_bytes() + command.encode())
    for name in sorted(seen):
        digest.update(name.relative_to(TREE).as_posix().encode() + b"\0" + seen[name] + b"\0")
    return digest.hexdigest()


def read_commands(build):
    """{path: first entry}: a file built for two targets would be two files in one process."""
    commands = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = (Path(entry["directory"]) / entry["file"]).resolve()
        if path.suffix == ".c" and TREE in path.parents and build not in path.parents:
            commands.setdefault(path, entry)
    return commands


def tidy(database, path):
    done = subprocess.run(
        ["clang-tidy", "--quiet", "-p", str(database), str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    return done.returncode, NOISE.sub("", done.stdout).rstrip()


def main(args):
    build, cache = Path(args[0]).resolve(), Path(args[1])
    jobs = int(args[2]) if len(args) > 2 else 2
    cache.mkdir(parents=True, exist_ok=True)
    version = subprocess.run(["clang-tidy", "--version"], stdout=subprocess.PIPE).stdout

    commands = read_commands(build)
    todo = {p: state_key(p, entry["command"], version) for p, entry in commands.items()}
    stale = {p: key for p, key in todo.items() if not (cache / key).exists()}
    # The largest first, so that no core waits for one of them at the end.
    stale = dict(sorted(stale.items(), key=lambda item: -item[0].stat().st_size))
    database = cache.parent / "compile_commands.json"
    database.write_text(json.dumps(list(commands.values())))

    failed = 0
    with ThreadPoolExecutor(jobs) as pool:
        for path, (status, text) in zip(stale, pool.map(lambda p: tidy(cache.parent, p), stale)):
            if status == 0:
                (cache / stale[path]).touch()
            else:
                failed += 1
                print(f"{path.relative_to(TREE)}:\n{text}", flush=True)
    for old in cache.iterdir():
        if old.name not in todo.values():
            old.unlink()
    print(f"clang-tidy: {len(todo)} files, {len(stale)} looked at, {failed} with findings")
    return 1 if failed or not todo else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
