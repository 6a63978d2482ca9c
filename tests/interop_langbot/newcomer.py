# SPDX-License-Identifier: Apache-2.0
"""Does in front of a LangBot that has just been installed what its user does in the browser: makes an account, names a
model, picks the agent, and asks for something that needs a tool. Runs on LangBot's own Python.

usage: newcomer.py URL        prints the answer of the chat

The model is a server of ours: it wants the exec tool called, and repeats what came of it.
"""

import asyncio
import http.server
import io
import json
import pathlib
import sys
import threading
import time
import urllib.error
import urllib.request
import zipfile

import websockets

HERE = pathlib.Path(__file__).resolve().parent
COMMAND = "echo made in $(pwd) by python$(python3 -c 'print(6 * 7)')"
ACCOUNT = {"user": "newcomer@example.org", "password": "Correct-horse-7"}
PATIENCE_S = 300


class Model(http.server.BaseHTTPRequestHandler):
    """An OpenAI-compatible model with two answers."""

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        said = [m for m in request["messages"] if m["role"] == "tool"]
        if said:
            message = {"role": "assistant", "content": f"The tool said: {said[-1]['content']}"}
        else:
            call = {"name": "exec", "arguments": json.dumps({"command": COMMAND})}
            message = {"role": "assistant", "content": "", "tool_calls": [
                {"id": "call_1", "index": 0, "type": "function", "function": call}]}
        end = "stop" if said else "tool_calls"
        if request.get("stream"):
            self.answer("text/event-stream", "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in (
                self.body("chat.completion.chunk", {"delta": message, "finish_reason": None}),
                self.body("chat.completion.chunk", {"delta": {}, "finish_reason": end}))) + "data: [DONE]\n\n")
        else:
            self.answer("application/json", json.dumps(
                self.body("chat.completion", {"message": message, "finish_reason": end})))

    def body(self, kind, choice):
        return {"id": "x", "object": kind, "created": 0, "model": "scripted", "choices": [{"index": 0, **choice}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}

    def answer(self, kind, text):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


class LangBot:
    def __init__(self, url):
        self.url, self.headers = url, {}

    def ask(self, method, path, body=None, kind="application/json"):
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/api/v1/{path}", data, {**self.headers, "Content-Type": kind},
                                         method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{method} {path}: {error.code} {error.read()[:500]}") from None
        if answer.get("code") != 0:
            raise RuntimeError(f"{method} {path}: {answer}")
        return answer["data"]

    def patiently(self, what, seconds=PATIENCE_S):
        """Repeats something that fails, or has no answer yet, while LangBot starts."""
        end = time.monotonic() + seconds
        while True:
            try:
                if result := what():
                    return result
                failure = "no answer"
            except (OSError, RuntimeError) as error:
                failure = error
            if time.monotonic() > end:
                raise RuntimeError(f"LangBot did not get there: {failure}")
            time.sleep(0.2)

    def sign_up(self):
        self.patiently(lambda: self.ask("GET", "user/init"))
        self.ask("POST", "user/init", ACCOUNT)
        token = self.ask("POST", "user/auth", ACCOUNT)["token"]
        self.headers["Authorization"] = f"Bearer {token}"
        return token

    def add_model(self, port):
        provider = self.ask("POST", "provider/providers", {
            "name": "scripted", "requester": "openai-chat-completions", "base_url": f"http://127.0.0.1:{port}/v1",
            "api_keys": ["none"]})["uuid"]
        return self.ask("POST", "provider/models/llm", {
            "name": "scripted", "provider_uuid": provider, "abilities": ["func_call"], "extra_args": {}})["uuid"]

    def add_agent(self):
        """Since 4.11 an agent is a plugin, like those of LangBot's market: installed from a file here."""
        package = io.BytesIO()
        with zipfile.ZipFile(package, "w") as archive:
            for path in sorted((HERE / "agent_plugin").rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    archive.write(path, path.relative_to(HERE / "agent_plugin"))
        edge = b"----newcomer"
        head = b'Content-Disposition: form-data; name="file"; filename="agent.lbpkg"\r\nContent-Type: application/zip'
        body = b"--" + edge + b"\r\n" + head + b"\r\n\r\n" + package.getvalue() + b"\r\n--" + edge + b"--\r\n"
        self.patiently(lambda: self.ask("POST", "plugins/install/local", body,
                                        f"multipart/form-data; boundary={edge.decode()}"))

    def runners(self):
        meta = self.ask("GET", "pipelines/_/metadata")
        return [o["name"] for part in meta["configs"] if part["name"] == "ai" for stage in part["stages"]
                for item in stage["config"] if item["name"] in ("runner", "id") for o in item.get("options") or []]

    def choose_agent(self, model):
        made = self.ask("POST", "pipelines", {"name": "chat", "description": "a first one"})["uuid"]
        pipeline = self.ask("GET", f"pipelines/{made}")["pipeline"]
        config = pipeline["config"]
        if "local-agent" in self.runners():
            config["ai"]["runner"]["runner"] = "local-agent"
            config["ai"]["local-agent"]["model"] = {"primary": model, "fallbacks": []}
        else:
            self.add_agent()
            name = self.patiently(lambda: next((r for r in self.runners() if "box-tests/Agent" in r), None))
            config["ai"]["runner"]["id"] = name
            config["ai"].setdefault("runner_config", {})[name] = {"model": model, "enable-all-tools": True}
        self.ask("PUT", f"pipelines/{made}", {"name": pipeline["name"], "description": "", "config": config})
        return made

    async def chat(self, token, pipeline):
        address = self.url.replace("http", "ws", 1) + f"/api/v1/pipelines/{pipeline}/ws/connect?session_type=person"
        workspace = self.ask("GET", "workspaces")
        workspace = (workspace.get("workspaces") or workspace.get("items") or workspace)[0]
        async with websockets.connect(address, origin=self.url) as socket:
            await socket.send(json.dumps({"type": "authenticate", "token": token,
                                          "workspace_uuid": workspace.get("uuid") or workspace["workspace"]["uuid"]}))
            await socket.send(json.dumps({"type": "message", "message": [{"type": "Plain", "text": "Where are you?"}]}))
            while True:
                event = json.loads(await asyncio.wait_for(socket.recv(), PATIENCE_S))
                print(event, file=sys.stderr)
                if event.get("type") == "error":
                    raise RuntimeError(event)
                data = event.get("data") or {}
                if event.get("type") == "response" and data.get("is_final", True):
                    return "".join(part.get("text", "") for part in data["message_chain"])


def main():
    model = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=model.serve_forever, daemon=True).start()
    langbot = LangBot(sys.argv[1])
    token = langbot.sign_up()
    pipeline = langbot.choose_agent(langbot.add_model(model.server_port))
    print(asyncio.run(langbot.chat(token, pipeline)))


if __name__ == "__main__":
    main()
