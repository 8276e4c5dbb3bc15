"""A program that answers like an OpenAI-compatible server, and misbehaves in the way that its first argument names.

`python fake_engine.py MANNER --port PORT`. It continues a prompt of token ids n, n + 1, ... with tokens that count on
from the last, and commits 1, 2, 3, 1, 2, 3, ... tokens a step after the prefill's one, where 2 tokens are drafted.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODEL = "fake"
STEP_S = 0.005


def steps_of(prompt: list[int], new_tokens: int, drafted: int = 2) -> list[list[int]]:
    """The tokens of each step, the prefill first."""
    tokens = list(range(prompt[-1] + 1, prompt[-1] + 1 + new_tokens))
    steps, place = [tokens[:1]], 1
    while place < len(tokens):
        size = 1 + (len(steps) - 1) % (drafted + 1)
        steps.append(tokens[place : place + size])
        place += size
    return steps


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    manner = "well"
    drafted = 2
    requests = 0
    busy = 2  # answers of a busy server before it takes a request

    def log_message(self, *_):
        pass

    def do_GET(self):
        known = {"/v1/models": {"data": [{"id": MODEL}]}, "/version": {"version": "0.0"}, "/health": {}}
        known["/server_info"] = known["/version"]
        if self.manner == "models without a name" and self.path == "/v1/models":
            known["/v1/models"] = {"data": []}
        self.answer(200 if self.path in known else 404, known.get(self.path, {}))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.manner == "an error":
            self.answer(400, {"error": {"message": "max_tokens is too large: 4096"}})
        elif self.manner == "busy" and Handler.busy > 0:
            Handler.busy -= 1
            self.answer(503, {"error": "loading"}, {"retry-after": "0.01"})
        elif self.manner == "standard fields only" and "return_token_ids" in body:
            self.answer(422, {"detail": "return_token_ids: extra fields not permitted"})
        elif self.manner == "no stream":
            self.answer(200, {"choices": [{"text": "a", "finish_reason": "stop"}]})
        else:
            self.stream_answer(body)

    def stream_answer(self, body):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        limit = body["sampling_params"]["max_new_tokens"] if "input_ids" in body else body["max_tokens"]
        steps = steps_of(body.get("prompt") or body["input_ids"], limit, self.drafted)
        type(self).requests += 1
        self.counts = [sum(len(step) == size for step in steps[1:]) for size in range(1, self.drafted + 2)]
        if self.manner == "merged":  # a busy SGLang: the second and third step in one chunk
            steps[2:4] = [steps[2] + steps[3]]
        if self.manner == "all at once":
            steps = [[token for step in steps for token in step]]
        if self.manner == "no tokens":
            steps = []
        self.stream(steps)

    def stream(self, steps):
        done = 0
        for number, tokens in enumerate(steps):
            if number == 3 and self.manner == "broken JSON":
                self.event("{")
            if number == 3 and self.manner == "an error in the stream":
                self.event(json.dumps({"error": {"message": "out of memory"}}))
            if number == 3 and (self.manner == "closes" or (self.manner == "closes after 3" and self.requests > 3)):
                self.connection.close()
                return
            if number == 3 and self.manner == "dies":
                print("CUDA error: an illegal memory access", file=sys.stderr, flush=True)
                os._exit(9)
            if number == 3 and self.manner == "hangs":
                time.sleep(60)
            done += len(tokens)
            self.event(json.dumps(self.chunk(tokens, done, last=number == len(steps) - 1)))
            time.sleep(STEP_S)
        self.event("[DONE]")
        self.close_connection = True

    def chunk(self, tokens, done, *, last):
        choice = {
            "index": 0,
            "text": "".join(f" {token}" for token in tokens),
            "finish_reason": "length" if last else None,
        }
        record = {"id": "c", "object": "text_completion", "choices": [choice]}
        if self.path == "/generate":
            counts = {"spec_correct_drafts_histogram": self.counts} if last else {}
            finish = {"type": "length"} if last else None
            return {"output_ids": tokens, "meta_info": {"completion_tokens": done, "finish_reason": finish} | counts}
        if self.manner == "usage":
            record["usage"] = {"completion_tokens": done}
        elif self.manner == "logprobs":
            choice["logprobs"] = {"tokens": [str(token) for token in tokens]}
        elif self.manner not in ("standard fields only", "text"):
            choice["token_ids"] = tokens
        return record

    def event(self, text):
        self.wfile.write(f"data: {text}\n\n".encode())
        self.wfile.flush()

    def answer(self, code, record, headers=()):
        data = json.dumps(record).encode()
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


class Server(ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        """Print nothing where a client left before its answer ended; that is what an interrupted command does."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    def close(self):
        self.shutdown()
        self.server_close()


def serve(manner: str, port: int, *, drafted: int = 2) -> Server:
    """A server on 127.0.0.1 that runs in a thread; port 0 takes a free one."""
    server = Server(("127.0.0.1", port), type("Manner", (Handler,), {"manner": manner, "drafted": drafted}))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return server


def main(manner: str, port: int) -> None:
    if manner == "exits":
        print("loading\nValueError: No such file: model.gguf", file=sys.stderr)
        sys.exit(3)
    if manner == "ignores signals":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if manner == "leaves children":
        command = [sys.executable, "-c", "import time; time.sleep(600)"]
        subprocess.Popen(command, start_new_session=True)
        subprocess.Popen(command)
    if manner == "never answers":
        time.sleep(600)
    plain = "sglang.launch_server" in sys.argv and not any(word.startswith("--speculative") for word in sys.argv)
    serve(manner, port, drafted=0 if plain else 2)
    time.sleep(600)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[sys.argv.index("--port") + 1]))
