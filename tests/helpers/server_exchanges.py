"""Real exchanges with an engine's server: recorded between driver and server, and replayed to the driver.

A recording holds one JSON object per line: first the provenance, then what passed:

    {"launch": [WORD, ...]}                     the server's arguments, without its port; what follows belongs to it
    {"launch": ["--version"], "printed": TEXT}  a launch that only printed
    {"get": PATH, "text": TEXT}                 an answer without a body to the request
    {"post": PATH, "body": {...}, "events": [[SECONDS, TEXT], ...]}  a streamed answer, times since the request

Both ends are programs that take the place of the engine's:

    python server_exchanges.py record FILE PROGRAM WORD... --port PORT   run the program behind a proxy that records
    python server_exchanges.py replay FILE WORD... --port PORT           answer as recorded; exit 9 at another launch

At a request that is not in the recording, the replay answers 400 with the request in words.
"""

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from tests.helpers.worker_exchanges import interpreter

ROOT = Path(__file__).resolve().parents[2]
STREAM = "text/event-stream"


class Proxy(BaseHTTPRequestHandler):
    """Passes requests to the server and appends the exchanges to the recording."""

    path_of_recording: Path
    inner: int
    seen: ClassVar[set[str]] = set()
    lock = threading.Lock()

    def log_message(self, *_: Any) -> None:
        pass

    def keep(self, record: dict[str, Any]) -> None:
        with self.lock, self.path_of_recording.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(record) + "\n")

    def asked(self, method: str, body: bytes | None) -> http.client.HTTPResponse | None:
        """Return the server's answer; None, after a 503, if it does not answer yet."""
        connection = http.client.HTTPConnection("127.0.0.1", self.inner, timeout=600)
        try:
            connection.request(method, self.path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
        except OSError:
            self.send_error(503)
            return None
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.headers.get("Content-Type", ""))
        self.send_header("Connection", "close")
        self.end_headers()
        return answer

    def do_GET(self) -> None:
        answer = self.asked("GET", None)
        if answer is None:
            return
        text = answer.read()
        self.wfile.write(text)
        if answer.status == http.HTTPStatus.OK and self.path not in self.seen:
            self.seen.add(self.path)
            if self.path == "/server_info":  # SGLang's holds all settings of the machine
                text = json.dumps({"version": json.loads(text)["version"]}).encode()
            self.keep({"get": self.path, "text": text.decode()})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        began_s = time.monotonic()
        answer = self.asked("POST", body)
        if answer is None:
            return
        events = []
        while line := answer.readline():
            self.wfile.write(line)
            self.wfile.flush()
            if line.startswith(b"data: "):
                data = line.decode().removeprefix("data: ").strip()
                events.append([round(time.monotonic() - began_s, 4), data])
        self.keep({"post": self.path, "body": json.loads(body), "events": events})


def record(path: Path, program: str, words: list[str]) -> int:
    if words == ["--version"]:
        done = subprocess.run([program, *words], capture_output=True, text=True, check=True)
        Proxy.path_of_recording = path
        text = done.stdout + done.stderr
        with path.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps({"launch": words, "printed": text}) + "\n")
        sys.stdout.write(text)
        return 0
    *words, option, port = words
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        inner = free.getsockname()[1]
    with path.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps({"launch": words}) + "\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    server = subprocess.Popen([program, *words, option, str(inner)], env=environment)
    Proxy.path_of_recording, Proxy.inner = path, inner
    proxy = ThreadingHTTPServer(("127.0.0.1", int(port)), Proxy)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    return server.wait()


def launches(path: Path) -> list[dict[str, Any]]:
    """Return the launches of a recording, each with its `exchanges`."""
    found: list[dict[str, Any]] = []
    for line in path.read_text("utf-8").splitlines()[1:]:
        record = json.loads(line)
        if "launch" in record:
            found.append(record | {"exchanges": []})
        else:
            running = next(launch for launch in reversed(found) if "printed" not in launch)
            running["exchanges"].append(record)
    return found


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two requests are the same; which slot is free first differs from run to run."""
    slots = ({"id_slot": None} if "id_slot" in body else {} for body in (one, other))
    return one | next(slots) == other | next(slots)


class Answers(BaseHTTPRequestHandler):
    """Answers as recorded."""

    exchanges: ClassVar[list[dict[str, Any]]] = []
    lock = threading.Lock()

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, status: int, kind: str, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self) -> None:
        found = next((e for e in self.exchanges if e.get("get") == self.path), None)
        self.answer(404 if found is None else 200, "application/json", "{}" if found is None else found["text"])

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.lock:
            found = next((e for e in self.exchanges if e.get("post") == self.path and same(e["body"], body)), None)
            if found is not None:
                self.exchanges.remove(found)
        if found is None:
            message = f"the recording has no such request to {self.path}: {json.dumps(body)}"
            self.answer(400, "application/json", json.dumps({"error": {"message": message}}))
        else:
            self.answer(200, STREAM, "".join(f"data: {data}\n\n" for _, data in found["events"]))


def replay(path: Path, words: list[str]) -> int:
    known = launches(path)
    launched = [launch for launch in known if launch["launch"] == (words if "printed" in launch else words[:-2])]
    if not launched:
        sys.stderr.write(f"error: the recording has no such launch: {json.dumps(words)}\n")
        return 9
    if "printed" in launched[0]:
        sys.stdout.write(launched[0]["printed"])
        return 0
    Answers.exchanges = [exchange for launch in launched for exchange in launch["exchanges"]]
    ThreadingHTTPServer(("127.0.0.1", int(words[-1])), Answers).serve_forever()
    return 0


def program(folder: Path, *words: str) -> Path:
    """Write a program that runs this file with `words` and its own arguments; return its path."""
    line = [sys.executable, "-m", "tests.helpers.server_exchanges", *words]
    run = f"os.execv({sys.executable!r}, {line!r} + sys.argv[1:])"
    return interpreter(folder, f"import os, sys\nos.environ['PYTHONPATH'] = {str(ROOT)!r}\n{run}\n")


if __name__ == "__main__":
    what, name, *others = sys.argv[1:]
    code = record(Path(name), others[0], others[1:]) if what == "record" else replay(Path(name), others)
    os._exit(code)
