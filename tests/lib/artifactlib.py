# SPDX-License-Identifier: Apache-2.0
"""Artifacts as LangBot 4.11 publishes them (its skills): a tree, a manifest, and the digest of the latter; and
the requests of a client that mounts some."""

import hashlib
import json
import os
import pathlib

ROOT = "/opt/langbot-artifacts"
# Everything a client of 0.7.13 and later writes: it has no field for skills any more.
SPEC = {"cmd": "", "workdir": "/workspace", "timeout_sec": 30, "network": "off", "env": {},
        "image": "rockchin/langbot-sandbox:latest", "host_path": None, "host_path_mode": "rw",
        "mount_path": "/workspace", "extra_mounts": [], "persistent": False, "cpus": 1.0, "memory_mb": 512,
        "pids_limit": 128, "read_only_rootfs": True, "workspace_quota_mb": 0}


class Artifact:
    """A published tree below `place`."""

    def __init__(self, place, name, files):
        self.tree = pathlib.Path(place, name)
        for path, text in files.items():
            file = self.tree / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            file.chmod(0o755 if text.startswith("#!") else 0o644)
        self.tree.mkdir(exist_ok=True)
        entries = [{"path": p, "size": len(t.encode()), "sha256": hashlib.sha256(t.encode()).hexdigest(),
                    "executable": t.startswith("#!")} for p, t in sorted(files.items())]
        manifest = {"algorithm": "sha256-tree-v1", "files": entries, "total_bytes": sum(e["size"] for e in entries)}
        canonical = json.dumps(manifest, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
        self.hex = hashlib.sha256(canonical.encode()).hexdigest()
        self.digest = f"sha256:{self.hex}"
        self.inside = f"{ROOT}/{self.hex}"
        self.manifest = pathlib.Path(place, f"{name}.json")
        self.manifest.write_text(json.dumps(manifest))

    def mount(self, **other):
        return {"host_path": str(self.tree), "mount_path": self.inside, "mode": "ro", "content_digest": self.digest,
                "manifest_path": str(self.manifest), **other}


class Conversation:
    """One session of a client, and what it asks of it."""

    def __init__(self, rpc, session_id="s", **spec):
        self.rpc, self.id, self.spec = rpc, session_id, {**SPEC, **spec}

    def request(self, *artifacts, **spec):
        mounts = [a.mount() if isinstance(a, Artifact) else a for a in artifacts]
        return {**self.spec, "session_id": self.id, "extra_mounts": mounts, **spec}

    def create(self, *artifacts, **spec):
        return self.rpc.call("box_create_session", self.request(*artifacts, **spec))

    def start_exec(self, cmd, *artifacts, **spec):
        return self.rpc.start("box_exec", self.request(*artifacts, cmd=cmd, **spec))

    def exec(self, cmd, *artifacts, **spec):
        return self.rpc.wait(self.start_exec(cmd, *artifacts, **spec))

    def out(self, cmd, *artifacts, **spec):
        result = self.exec(cmd, *artifacts, **spec)
        assert result["exit_code"] == 0, result
        return result["stdout"]

    def run(self, *argv, process_id="default"):
        return self.rpc.call("box_start_managed_process", {"session_id": self.id, "spec": {
            "process_id": process_id, "command": argv[0], "args": list(argv[1:])}})

    def process(self, process_id="default"):
        return self.rpc.call("box_get_managed_process", {"session_id": self.id, "process_id": process_id})

    def sandbox(self):
        return self.rpc.call("box_get_session", {"session_id": self.id})["backend_session_id"]


def configure(rpc, host_root):
    """What LangBot says first."""
    rpc.call("box_init", {"local": {"host_root": str(host_root), "allowed_mount_roots": [str(host_root)]}}, ctx=None)


def _names(path):
    """What lies there now; it may vanish while we look."""
    try:
        return os.listdir(path)
    except FileNotFoundError:
        return []


def places(host_root):
    """The directories of sessions, and the one that was made ahead."""
    holder = pathlib.Path(host_root, ".box-artifacts")
    found = [holder / boxd / name for boxd in _names(holder) for name in _names(holder / boxd)]
    return [place for place in found if "tree" in _names(place)]


def copies(host_root):
    """Those with artifacts in them, and what they have: {name: {digest…}}."""
    have = {place.name: set(_names(place / "tree")) for place in places(host_root)}
    return {name: digests for name, digests in have.items() if digests}
