# SPDX-License-Identifier: Apache-2.0
"""box-fetch as boxd starts it: a directory as descriptor 3, one line of JSON, maybe an archive behind it."""

import json
import struct
import subprocess
import zlib

from boxlib import BUILD


class JobError(Exception):
    """The sentence of a job that failed."""

    def __init__(self, answer):
        super().__init__(answer["error"])
        self.kind = answer["class"]


def start(directory, make="", seconds=60, program=None, **options):
    """Starts a job in the directory; the process waits for its request."""
    # The shell gives the directory the number it must have.
    return subprocess.Popen(
        ["/bin/sh", "-c", 'exec "$@" 3<"$0"', str(directory), str(program or BUILD / "box-fetch"), "--make", make,
         "--seconds", str(seconds)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def finish(process, request, archive=b""):
    line = request if isinstance(request, bytes) else json.dumps(request).encode()
    out, err = process.communicate(line + b"\n" + archive, timeout=90)
    assert out, f"no answer: status {process.returncode}, {err.decode(errors='replace')}"
    answer = json.loads(out)
    if "error" in answer:
        raise JobError(answer)
    return answer["data"]


class Store:
    """A skill store, one job per call."""

    def __init__(self, path, make="", shared=False, **options):
        self.path, self.make, self.shared, self.options = path, make, shared, options
        self.root = str(path / make) if make else str(path)

    def call(self, op, archive=b"", **data):
        request = {"op": op, "root": self.root, "shared": self.shared, "data": data}
        return finish(start(self.path, self.make, **self.options), request, archive)

    def create(self, name, **fields):
        return self.call("create", skill={"name": name, **fields})["skill"]

    def names(self):
        return [skill["name"] for skill in self.call("list")["skills"]]


class Zip:
    """An archive made by hand, so that every field can lie."""

    def __init__(self):
        self.local = b""
        self.central = b""
        self.count = 0

    def add(self, name, content=b"", deflate=False, mode=0o100644, **lies):
        """`lies` replace what the directory says: size, compressed, crc, method, flags, offset, extra, local_name."""
        raw = name if isinstance(name, bytes) else name.encode()
        flags = lies.get("flags", 0x800)
        method = lies.get("method", 8 if deflate else 0)
        data = content
        if deflate:
            engine = zlib.compressobj(9, zlib.DEFLATED, -15)
            data = engine.compress(content) + engine.flush()
        crc = lies.get("crc", zlib.crc32(content))
        compressed, size = lies.get("compressed", len(data)), lies.get("size", len(content))
        extra = lies.get("extra", b"")
        offset = lies.get("offset", len(self.local))
        local_name = lies.get("local_name", raw)
        self.local += struct.pack("<IHHHHHIIIHH", 0x04034B50, 20, flags, method, 0, 0x21, crc, compressed, size,
                                  len(local_name), 0) + local_name + lies.get("data", data)
        self.central += struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, 0x0314, 20, flags, method, 0, 0x21, crc,
                                    compressed, size, len(raw), len(extra), 0, 0, 0, mode << 16, offset) + raw + extra
        self.count += 1
        return self

    def bytes(self, comment=b"", **lies):
        count = lies.get("count", self.count)
        end = struct.pack("<IHHHHIIH", 0x06054B50, lies.get("disk", 0), 0, count, lies.get("total", count),
                          lies.get("size", len(self.central)), lies.get("offset", len(self.local)), len(comment))
        return self.local + self.central + lies.get("before_end", b"") + end + comment


def skill_md(name="demo", body="Do it.\n", **fields):
    lines = "".join(f"{key}: {value}\n" for key, value in {"name": name, **fields}.items())
    return f"---\n{lines}---\n\n{body}".encode()
