# SPDX-License-Identifier: Apache-2.0
"""A boxd with a configuration of its own, callers with tokens over TCP, and what its audit log says."""

import hashlib
import http.client
import json
import shutil
import socket

from boxlib import ApiError, Boxd
from hostlib import mount_dir


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Caller:
    """Somebody with a token, over TCP."""

    def __init__(self, port, token=None, timeout=120):
        self._conn = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"

    def raw(self, method, path, body=None, headers=None):
        payload = None if body is None else json.dumps(body)
        try:
            self._conn.request(method, path, payload, {**self._headers, **(headers or {})})
            response = self._conn.getresponse()
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            self._conn.close()  # the server may close an idle connection at any time
            self._conn.request(method, path, payload, {**self._headers, **(headers or {})})
            response = self._conn.getresponse()
        return response.status, response.read()

    def call(self, method, path, body=None):
        status, data = self.raw(method, path, body)
        if status >= 400:
            raise ApiError(status, json.loads(data) if data else {})
        return json.loads(data) if data else None

    def new(self, session_id, **spec):
        return self.call("POST", "/v1/sessions", {"session_id": session_id, **spec})

    def sh(self, session_id, cmd, **request):
        return self.call("POST", f"/v1/sessions/{session_id}/exec", {"cmd": cmd, **request})

    def ps(self):
        return [s["session_id"] for s in self.call("GET", "/v1/sessions")["sessions"]]

    def rm(self, session_id):
        return self.call("DELETE", f"/v1/sessions/{session_id}")

    def close(self):
        self._conn.close()


class Governed(Boxd):
    """With a configuration file. `{top}` in it is a directory of the test's own that may be mounted; `tokens` go to a
    file that is named in it. With `tcp` it listens on a port, too."""

    def __init__(self, config="", *args, tokens=None, tcp=False, env=None, prefix=()):
        self.top = mount_dir("box-policy-")
        self.port = free_port() if tcp or tokens is not None else 0
        self.tokens_path = self.top / "tokens.yaml"
        text = config.replace("{top}", str(self.top))
        if tokens is not None:
            self.put_tokens(tokens)
            text += f"\ntokens_file: {self.tokens_path}\n"
        self.config = self.top / "box.yaml"
        self.config.write_text(text)
        try:
            super().__init__("--config", str(self.config), "--ws-control-port", str(self.port), *args, env=env,
                             prefix=prefix)
        except BaseException:
            shutil.rmtree(self.top, ignore_errors=True)
            raise

    def put_tokens(self, tokens):
        fresh = self.top / "tokens.new"
        fresh.write_text(json.dumps({"tokens": tokens}))
        fresh.chmod(0o640)
        # Whoever boxd becomes must be able to read what is put in its place by rename.
        if self.tokens_path.exists():
            owner = self.state.stat()
            shutil.chown(fresh, owner.st_uid, owner.st_gid)
        fresh.rename(self.tokens_path)

    def caller(self, token=None):
        return Caller(self.port, token)

    def audit(self, **want):
        """Records that hold all of these, oldest first."""
        lines = (self.state / "audit" / "audit.log").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        return [r for r in records if all(r.get(k) == v for k, v in want.items())]

    def directory(self, name, mode=0o777):
        path = self.top / name
        path.mkdir()
        path.chmod(mode)
        return path

    def close(self):
        super().close()
        shutil.rmtree(self.top, ignore_errors=True)


def token(name, text=None, **scope):
    """An entry of the file, and the token that goes with it."""
    text = text or f"{name}-{hashlib.sha256(name.encode()).hexdigest()}"
    return {"name": name, "sha256": hashlib.sha256(text.encode()).hexdigest(), **scope}, text
