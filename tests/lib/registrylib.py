# SPDX-License-Identifier: Apache-2.0
"""A registry of images on the loopback interface, that serves what a test gives it, as badly as the test wants."""

import gzip
import hashlib
import http.server
import json
import threading

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


class Registry:
    """Repositories by name, each with one image under every tag: add(name, tar). `spoil[name]` is a function of
    (handler, what, data), with what "manifest" or "blob", that answers in place of the registry when it gives True."""

    def __init__(self):
        self.manifests, self.blobs, self.spoil, self.asked = {}, {}, {}, []
        registry = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def give(self, data, kind, status=200):
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.send_header("Docker-Content-Digest", digest(data))
                for name, value in self.extra.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            def do_GET(self):
                self.extra = {}
                registry.answer(self)

            do_HEAD = do_GET

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request, client_address):
                pass  # a client that hangs up

        self._server = Server(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def add(self, name, tar, layer_size=None, settings=None):
        """Puts an image of one layer there, with settings as Docker's Config; its digest."""
        layer = gzip.compress(tar, 1)
        config = json.dumps({"architecture": "amd64", "os": "linux", "config": settings or {}, "rootfs": {
            "type": "layers", "diff_ids": [digest(tar)]}, "history": [{"created_by": "test"}]}).encode()
        manifest = json.dumps({
            "schemaVersion": 2, "mediaType": MANIFEST,
            "config": {"mediaType": "application/vnd.docker.container.image.v1+json", "size": len(config),
                       "digest": digest(config)},
            "layers": [{"mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip",
                        "size": layer_size or len(layer), "digest": digest(layer)}]}).encode()
        self.manifests[name] = manifest
        self.blobs.update({digest(config): config, digest(layer): layer})
        return digest(manifest)

    def answer(self, handler):
        words = handler.path.strip("/").split("/")
        self.asked.append(handler.path)
        if words == ["v2"]:
            handler.give(b"{}", "application/json")
            return
        name, what, which = "/".join(words[1:-2]), words[-2], words[-1]
        data = self.manifests.get(name) if what == "manifests" else self.blobs.get(which)
        if data is None:
            handler.give(b'{"errors":[{"code":"NAME_UNKNOWN"}]}', "application/json", 404)
            return
        kind = "manifest" if what == "manifests" else "blob"
        spoil = self.spoil.get(name)
        if spoil is None or not spoil(handler, kind, data):
            handler.give(data, MANIFEST if kind == "manifest" else "application/octet-stream")

    def close(self):
        self._server.shutdown()
        self._server.server_close()
