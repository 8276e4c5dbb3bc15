"""Decode prompts in llama.cpp's server, one at a time; `LLAMA_TRACE` logs what each step accepted.

The first token comes from the prefill. A step that drafts nothing, as before the last token, is not logged.
"""

import json
import re
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from treeopt.errors import EngineError

STEP = re.compile(r"task (\d+) \| .*?accepted\s+(\d+)/\s*(\d+) draft tokens$", re.MULTILINE)
START_S, REQUEST_S = 300, 300


def llama_server_steps(words: Sequence[str], prompts: Sequence[Sequence[int]], *, new_tokens: int) -> dict[str, Any]:
    """Return `version` and, for each prompt, `steps` (tokens emitted by each) and `tokens`.

    Args:
        words: the server's command line, without its address.
        prompts: token ids.
        new_tokens: decoded after each prompt.

    Raises:
        EngineError: the server does not start; holds its last words.
    """
    texts = []
    about = subprocess.run([words[0], "--version"], capture_output=True, text=True, check=True)
    version = (about.stdout + about.stderr).partition("version: ")[2].splitlines()[0]
    with tempfile.TemporaryFile("w+") as log:
        with _server(words, log) as address:
            for prompt in prompts:
                settings = {"n_predict": new_tokens, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
                answer = _get(f"{address}/completion", {"prompt": list(prompt), "return_tokens": True} | settings)
                texts.append(answer["tokens"])
        log.seek(0)
        lines = log.read()
    accepted: dict[int, list[int]] = {}
    for task, count, _ in STEP.findall(lines):
        accepted.setdefault(int(task), []).append(int(count))
    if len(accepted) != len(prompts):
        raise EngineError(
            f"llama-server logged steps of {len(accepted)} tasks for {len(prompts)} prompts: {lines[-500:]}"
        )
    requests = []
    for text, counts in zip(texts, (accepted[task] for task in sorted(accepted)), strict=True):
        steps = [1, *(count + 1 for count in counts)]
        requests.append({"steps": steps + [1] * (len(text) - sum(steps)), "tokens": text})
    return {"version": version, "requests": requests}


@contextmanager
def _server(words: Sequence[str], log: TextIO) -> Iterator[str]:
    """Run the server on a free port of this machine; yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = ["--host", "127.0.0.1", "--port", str(port), "-np", "1", "-t", "1", "-tb", "1", "--verbosity", "4"]
    process = subprocess.Popen([*words, *place], stdout=log, stderr=log, env={"LLAMA_TRACE": "1"})
    address, end_s = f"http://127.0.0.1:{port}", time.monotonic() + START_S
    try:
        while True:
            try:
                _get(f"{address}/health")
                break
            except (urllib.error.URLError, ConnectionError):
                if process.poll() is not None or time.monotonic() > end_s:
                    log.seek(0)
                    raise EngineError(f"llama-server did not start: {log.read()[-1000:]}") from None
                time.sleep(0.5)
        yield address
    finally:
        process.terminate()
        process.wait(30)


def _get(url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=REQUEST_S) as answer:
        return json.load(answer)
