# SPDX-License-Identifier: Apache-2.0
"""Files of a session over the HTTP API."""

import http.client
import json
import socket
import urllib.parse


class Answer:
    def __init__(self, response, body):
        self.status = response.status
        self.headers = response.headers
        self.body = body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def etag(self):
        return self.headers["ETag"]


class Files:
    """Each request on a connection of its own."""

    def __init__(self, socket_path, session, timeout=60):
        self.socket_path = str(socket_path)
        self.session = session
        self.timeout = timeout

    def connect(self):
        conn = http.client.HTTPConnection("localhost", timeout=self.timeout)
        conn.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        conn.sock.settimeout(self.timeout)
        conn.sock.connect(self.socket_path)
        return conn

    def url(self, suffix="", **query):
        text = urllib.parse.urlencode({k: v for k, v in query.items() if v is not None})
        return f"/v1/sessions/{self.session}/files{suffix}" + (f"?{text}" if text else "")

    def ask(self, method, suffix="", body=None, headers=None, **query):
        conn = self.connect()
        try:
            conn.request(method, self.url(suffix, **query), body, headers or {})
            response = conn.getresponse()
            return Answer(response, response.read())
        finally:
            conn.close()

    def get(self, path, **headers):
        return self.ask("GET", path=path, headers={k.replace("_", "-"): v for k, v in headers.items()})

    def put(self, path, body, headers=None, **query):
        return self.ask("PUT", body=body, headers=headers, path=path, **query)

    def list(self, path, **query):
        return self.ask("GET", list=path, **query)

    def remove(self, path, headers=None, **query):
        return self.ask("DELETE", path=path, headers=headers, **query)

    def change(self, **body):
        return self.ask("POST", body=json.dumps(body))
