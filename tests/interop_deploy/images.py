# SPDX-License-Identifier: Apache-2.0
"""The two images of deploy/langbot, made of what this host has: no registry is asked.

Their root is that of Debian's packages as they are installed here, without what nobody runs (documents, translations).
boxd's has what the last stage of the Dockerfile has: the same packages, and boxd as `make install` puts it. LangBot's is
the application from PyPI, which is mounted and not copied: it is a gigabyte."""

import os
import pathlib
import re
import subprocess
import tarfile
import tempfile

TOP = pathlib.Path(__file__).resolve().parents[2]
DOCKERFILE = TOP / "deploy/langbot/Dockerfile"
DPKG = pathlib.Path("/var/lib/dpkg/info")
UNUSED = re.compile(r"^/(usr/share/(doc|man|locale|info|lintian|bug|zoneinfo)|usr/lib/python3[^/]*/test|var/cache|boot)(/|$)")


def closure(packages):
    """These, what is essential, and what they depend on, as far as it is installed."""
    text = subprocess.run(["dpkg-query", "-W", "-f", "${Package}|${db:Status-Status}|${Essential}|${Depends},${Pre-Depends}\n"],
                          check=True, text=True, stdout=subprocess.PIPE).stdout
    rows = {name: (essential, needs) for name, state, essential, needs in (
        line.split("|", 3) for line in text.splitlines()) if state == "installed"}
    wanted, found = [*packages, *(n for n, (essential, _) in rows.items() if essential == "yes")], set()
    while wanted:
        package = wanted.pop()
        if package in rows and package not in found:
            found.add(package)
            wanted += re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9.+-]+)", rows[package][1])
    return found


def files(packages):
    paths = set()
    for package in closure(packages):
        lists = [*DPKG.glob(f"{package}.list"), *DPKG.glob(f"{package}:*.list")]
        for path in lists[0].read_text().splitlines() if lists else ():
            if not UNUSED.match(path):
                paths.add(path)
    return paths


def as_usr(path):
    """Where the file is: /bin, /lib and the like are links since Debian merged them into /usr."""
    first, _, rest = path.lstrip("/").partition("/")
    return f"/usr/{first}/{rest}".rstrip("/") if first in ("bin", "sbin", "lib", "lib32", "lib64", "libx32") else path


DIRECTORIES = ("usr", "etc", "var", "var/tmp", "var/lib", "tmp", "root", "run", "home", "proc", "sys", "dev", "opt", "srv",
               "mnt", "app")
# What the scripts of packages make.
MADE = ("/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/ld.so.cache", "/etc/ssl/certs/ca-certificates.crt",
        "/etc/alternatives", "/usr/bin/awk", "/usr/bin/which")


def root(packages, staged=None):
    """A tar with the root file system; `staged` is a directory whose content lies on top. No name is in it twice."""
    sources = {as_usr(path): as_usr(path) for path in files(packages)}
    for top in MADE:
        sources.update((str(path), str(path)) for path in (pathlib.Path(top), *pathlib.Path(top).rglob("*")))
    if staged is not None:
        sources.update((f"/{path.relative_to(staged)}", str(path)) for path in pathlib.Path(staged).rglob("*"))
    out = tempfile.TemporaryFile()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in DIRECTORIES:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name.endswith("tmp") else 0o755
            tar.addfile(entry)
        for name in ("bin", "sbin", "lib", "lib64"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(entry)
        for path, source in sorted(sources.items()):
            name = path.strip("/")
            if name.startswith(("usr/", "etc/")) and name not in DIRECTORIES and os.path.lexists(source):
                tar.add(source, name, recursive=False)
    out.seek(0)
    return out


def last_stage():
    """The packages and the metadata of the image that the Dockerfile describes."""
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    stage = re.split(r"^FROM ", text, flags=re.M)[-1]
    packages = re.search(r"apt-get install -y --no-install-recommends ([\w .+-]+?)\s*&&", stage).group(1).split()
    changes = re.findall(r"^(?:ENTRYPOINT|CMD|ENV|EXPOSE|VOLUME) .*", stage, re.M)
    return packages, changes


def load(engine, name, tar, changes):
    options = [word for change in changes for word in ("--change", change)]
    subprocess.run(["docker", "--host", f"unix://{engine.socket}", "import", *options, "-", name], stdin=tar, check=True,
                   stdout=subprocess.DEVNULL)


def boxd_image(engine, name):
    """As `docker build` would make it from this tree."""
    packages, changes = last_stage()
    with tempfile.TemporaryDirectory(prefix="box-image-") as staged:
        subprocess.run(["meson", "install", "-C", str(TOP / "build"), "--no-rebuild", "--quiet"], check=True,
                       env={**os.environ, "DESTDIR": staged}, stdout=subprocess.DEVNULL)
        for file, line in (("passwd", "box:x:990:990::/var/lib/box:/usr/sbin/nologin"), ("group", "box:x:990:")):
            rest = [other for other in pathlib.Path("/etc", file).read_text().splitlines() if not other.startswith("box:")]
            pathlib.Path(staged, "etc").mkdir(exist_ok=True)
            pathlib.Path(staged, "etc", file).write_text("\n".join([*rest, line, ""]))
        load(engine, name, root(packages, staged), changes)


def langbot_image(engine, name):
    """LangBot's own has Python 3.12 and uv; ours Debian's Python, with the application mounted at /opt/langbot."""
    load(engine, name, root(["python3", "ca-certificates", "libsqlite3-0", "libstdc++6", "libgomp1"]),
                ["WORKDIR /app", 'CMD ["/opt/langbot/bin/python", "-m", "langbot"]'])
