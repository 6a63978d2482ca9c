# SPDX-License-Identifier: Apache-2.0
"""Stands between boxd and a real engine: tells what the engine was asked, and answers in its place where a test says so.

It is not an engine: whatever no rule is about goes to the real one and comes back as it is."""

import contextlib
import http.client
import http.server
import json
import pathlib
import re
import shutil
import socket
import socketserver
import tempfile
import threading
import urllib.parse


class _Upstream(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=120)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request, client_address):
        pass  # whoever asked is gone, which is what some tests are about


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def address_string(self):
        return "boxd"

    def _answer(self, status, headers, data):
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _forward(self, body):
        upstream = _Upstream(self.server.proxy.upstream)
        try:
            upstream.request(self.command, self.path, body, {"Content-Type": "application/json"})
            response = upstream.getresponse()
            return response.status, response.getheaders(), response.read()
        finally:
            upstream.close()

    def _serve(self):
        proxy = self.server.proxy
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        # Without the version, which the two agree on.
        path = re.sub(r"^/v[0-9.]+(?=/)", "", self.path)
        proxy.calls.append((self.command, path, body))
        for method, pattern, status, answer in list(proxy.rules):
            if method == self.command and re.search(pattern, path):
                data = json.dumps(answer).encode()
                self._answer(status, [("Content-Type", "application/json")], data)
                return
        self._answer(*self._forward(body))

    do_GET = do_POST = do_DELETE = do_HEAD = _serve


class Proxy:
    """`socket` is for boxd; `rules` are (method, regular expression, status, JSON), the first that fits answers."""

    def __init__(self, upstream):
        self.upstream, self.calls, self.rules = str(upstream), [], []
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="box-proxy-"))
        self.work.chmod(0o755)
        self.socket = self.work / "engine.sock"
        self._server = _Server(str(self.socket), _Handler)
        self._server.proxy = self
        self.socket.chmod(0o666)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def asked(self, method, pattern):
        """Calls of that kind so far: (path, query as a dict, body as JSON or None)."""
        found = []
        for verb, path, body in list(self.calls):
            if verb == method and re.search(pattern, path):
                place, _, query = path.partition("?")
                parsed = None
                with contextlib.suppress(ValueError):
                    parsed = json.loads(body)
                found.append((place, dict(urllib.parse.parse_qsl(query)), parsed))
        return found

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(30)
        shutil.rmtree(self.work, ignore_errors=True)
