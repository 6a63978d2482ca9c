# SPDX-License-Identifier: Apache-2.0
"""Packages made by a test, and a place to download them from: an npm registry and a Python index behind one TLS port.

The same small MCP server comes as an npm package with a dependency and a program, and as a wheel with a dependency and
a console script: whoever gets an answer from it has downloaded, unpacked and started it.
"""

import base64
import hashlib
import http.server
import io
import json
import ssl
import tarfile
import threading
import zipfile

from netstage import HOST, INTERNET, Stage
from tlslib import Authority

NAME, NEEDED, VERSION = "tiny-server", "tiny-needed", "1.0.0"
REGISTRY, BUNDLE = "packages.example.org", "/etc/ssl/certs/ca-certificates.crt"

# Both speak JSON-RPC by line and have the same tools: facts, env, connect.
PYTHON_SERVER = r'''
import errno, json, os, socket, sys
def connect(address, port):
    try:
        socket.create_connection((address, port), timeout=20).close()
        return "connected"
    except OSError as e:
        return "timeout" if isinstance(e, TimeoutError) else errno.errorcode.get(e.errno, str(e))
def call(name, a):
    if name == "facts":
        import tiny_needed
        return {"language": "python", "needed": tiny_needed.VALUE, "home": os.environ["HOME"], "file": __file__,
                "executable": sys.executable, "argv": sys.argv[1:]}
    if name == "env": return os.environ.get(a["name"])
    if name == "connect": return [connect(*place) for place in a["places"]]
    if name == "resolve": return socket.gethostbyname(a["name"])
    raise ValueError(name)
def main():
    for line in sys.stdin:
        m = json.loads(line)
        if "id" not in m: continue
        answer = {"jsonrpc": "2.0", "id": m["id"]}
        try:
            if m["method"] == "initialize":
                answer["result"] = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                                    "serverInfo": {"name": "tiny-server", "version": "1.0.0"}}
            else:
                answer["result"] = {"content": [], "value": call(m["params"]["name"], m["params"]["arguments"])}
        except Exception as e:
            answer["error"] = {"code": 1, "message": repr(e)}
        print(json.dumps(answer), flush=True)
if __name__ == "__main__":
    main()
'''

NODE_SERVER = r'''#!/usr/bin/env node
const net = require("net"), os = require("os"), readline = require("readline");
const connect = ([host, port]) => new Promise((done) => {
  const s = net.connect({host, port, timeout: 20000});
  s.on("connect", () => { s.destroy(); done("connected"); });
  s.on("timeout", () => { s.destroy(); done("timeout"); });
  s.on("error", (e) => done(e.code));
});
const tools = {
  facts: () => ({language: "node", needed: require("tiny-needed"), home: os.homedir(), file: __filename,
                 argv: process.argv.slice(2)}),
  env: (a) => process.env[a.name] ?? null,
  connect: (a) => Promise.all(a.places.map(connect)),
};
readline.createInterface({input: process.stdin}).on("line", async (line) => {
  const m = JSON.parse(line);
  if (m.id === undefined) return;
  const answer = {jsonrpc: "2.0", id: m.id};
  try {
    answer.result = m.method === "initialize"
      ? {protocolVersion: "2025-11-25", capabilities: {tools: {}}, serverInfo: {name: "tiny-server", version: "1.0.0"}}
      : {content: [], value: await tools[m.params.name](m.params.arguments)};
  } catch (e) {
    answer.error = {code: 1, message: String(e)};
  }
  console.log(JSON.stringify(answer));
});
'''


AGENT = """#!/usr/bin/env node
console.log(JSON.stringify({argv: process.argv.slice(2), cwd: process.cwd(), file: process.argv[1]}));
"""


def tarball(files):
    """As `npm pack` makes them."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(f"package/{name}")
            info.size, info.mode = len(text.encode()), 0o755 if text.startswith("#!") else 0o644
            tar.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()


def wheel(name, module, text, requires=(), script=None):
    """Without hashes in RECORD: installers write one of their own."""
    info, out = f"{name.replace('-', '_')}-{VERSION}.dist-info", io.BytesIO()
    files = {f"{module}.py": text,
             f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {VERSION}\n" +
                                 "".join(f"Requires-Dist: {r}\n" for r in requires),
             f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}
    if script is not None:
        files[f"{info}/entry_points.txt"] = f"[console_scripts]\n{script} = {module}:main\n"
    record = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(out, "w") as z:
        for path, content in {**files, f"{info}/RECORD": record}.items():
            z.writestr(path, content)
    return out.getvalue()


class Packages:
    """Serves on `sock`, which somebody has bound to port 443 of an address that `host` leads to. `asked` are the
    paths, in order, and `peers` the addresses that asked."""

    def __init__(self, sock, host, cert, key):
        self.url = f"https://{host}"
        self.npm, self.index = f"{self.url}/npm/", f"{self.url}/simple/"
        self.asked, self.peers, self.files = [], set(), {}
        self._add_npm(NEEDED, {"index.js": "module.exports = 42;\n"})
        self._add_npm("@openai/codex", {"index.js": AGENT}, bin={"codex": "index.js"})
        self._add_npm(NAME, {"index.js": NODE_SERVER}, dependencies={NEEDED: "^1.0.0"}, bin={NAME: "index.js"})
        self._add_wheel(NEEDED, "tiny_needed", "VALUE = 42\n")
        self._add_wheel(NAME, "tiny_server", PYTHON_SERVER, requires=[NEEDED], script=NAME)
        self._server = self._serve(sock, cert, key)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def forget(self):
        self.asked.clear()
        self.peers.clear()

    def _add_npm(self, name, files, **more):
        package = {"name": name, "version": VERSION, "main": "index.js", **more}
        data = tarball({"package.json": json.dumps(package), **files})
        path = f"/npm/{name}/-/{name}-{VERSION}.tgz"
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
        document = {"name": name, "dist-tags": {"latest": VERSION}, "versions": {
            VERSION: {**package, "dist": {"tarball": self.url + path, "integrity": integrity}}}}
        self.files[path] = ("application/octet-stream", data)
        self.files["/npm/" + name.replace("/", "%2f")] = ("application/json", json.dumps(document).encode())

    def _add_wheel(self, name, module, text, **more):
        data = wheel(name, module, text, **more)
        path = f"/files/{name.replace('-', '_')}-{VERSION}-py3-none-any.whl"
        link = f'<a href="{path}#sha256={hashlib.sha256(data).hexdigest()}">{path.rpartition("/")[2]}</a>'
        self.files[path] = ("application/octet-stream", data)
        self.files[f"/simple/{name}/"] = ("text/html", f"<!DOCTYPE html><html><body>{link}</body></html>".encode())

    def _serve(self, sock, cert, key):
        packages = self
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_GET(self):
                path = self.path.partition("?")[0]
                packages.asked.append(path)
                packages.peers.add(self.client_address[0])
                kind, data = packages.files.get(path, ("text/plain", None))
                self.send_response(404 if data is None else 200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data or b"")))
                if path.endswith((".tgz", ".whl")):  # as public registries have it
                    self.send_header("Cache-Control", "public, max-age=31536000, immutable")
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data or b"")

            do_HEAD = do_GET

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def finish_request(self, request, client_address):
                # In the thread of the connection: a peer that does not shake hands holds up nobody else.
                with context.wrap_socket(request, server_side=True) as tls:
                    self.RequestHandlerClass(tls, client_address, self)

            def handle_error(self, request, client_address):
                pass  # a client that hangs up

        server = Server(sock.getsockname(), Handler, bind_and_activate=False)
        server.socket.close()
        sock.settimeout(None)
        server.socket = sock
        return server

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(20)


class World:
    """boxd on a host of its own, and an internet that has these packages. Needs root. `top` is a directory for it."""

    def __init__(self, top):
        self.stage = Stage()
        self.top = top
        authority = Authority(top / "tls")
        cert, key = authority.issue("packages", f"DNS:{REGISTRY}")
        # The host trusts this authority and no other. It has an /etc of its own: of mounts below it sessions see nothing.
        self.stage.host.run("sh", "-ec", 'cp -a /etc /mnt/etc; rm -rf /mnt/etc/ssl/certs; mkdir /mnt/etc/ssl/certs; '
                            'cp "$1" /mnt/etc/ssl/certs/ca-certificates.crt; mount --bind /mnt/etc /etc', "sh", str(authority.ca))
        self.packages = Packages(self.stage.net.listen(443, address=INTERNET[1]), REGISTRY, cert, key)
        self.daemon = self.stage.boxd()

    def close(self):
        self.daemon.close()
        self.packages.close()
        self.stage.close()

    def npm_env(self):
        """Options: what a user of a registry of one's own has in the environment."""
        return ["--env", f"npm_config_registry={self.packages.npm}", "--env", f"NODE_EXTRA_CA_CERTS={BUNDLE}"]

    def pip_env(self):
        return ["--env", f"PIP_INDEX_URL={self.packages.index}"]

    def uv_env(self):
        return ["--env", f"UV_DEFAULT_INDEX={self.packages.index}", "--env", f"SSL_CERT_FILE={BUNDLE}"]

    def check(self, w, language):
        """The server behind that Wrapper answers, and came over this network."""
        assert w.initialize()["result"]["serverInfo"]["name"] == NAME, w.so_far()
        facts = w.value("facts")
        assert (facts["language"], facts["needed"], facts["home"]) == (language, 42, "/home/box")
        assert self.packages.peers == {HOST}, "it was downloaded from inside the box"
        assert "trying again" not in w.so_far()
        return facts
