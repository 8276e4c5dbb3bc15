"""Real exchanges with a worker that speaks JSON lines: recorded between driver and worker, and replayed to the driver.

A recording holds one JSON object per line: first the provenance, then every line of the exchange in the order in which
it passed, as {"order": ...} to the worker or {"answer": ...} from it. Both ends of this file are programs:

    python worker_exchanges.py record FILE PYTHON WORD...  pass lines between stdin, stdout and that worker; keep them
    python worker_exchanges.py replay FILE                 answer as recorded; exit 9 at an order that differs
"""

import json
import subprocess
import sys
import threading
from pathlib import Path


def record(path: Path, words: list[str]) -> int:
    lock = threading.Lock()
    with (
        path.open("a", encoding="utf-8") as kept,
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker,
    ):

        def keep(kind: str, line: str) -> None:
            with lock:
                kept.write(json.dumps({kind: json.loads(line)}) + "\n")
                kept.flush()

        def orders() -> None:
            for line in sys.stdin:
                keep("order", line)
                worker.stdin.write(line)
                worker.stdin.flush()
            worker.stdin.close()

        threading.Thread(target=orders, daemon=True).start()
        for line in worker.stdout:
            keep("answer", line)
            sys.stdout.write(line)
            sys.stdout.flush()
        return worker.wait()


def replay(path: Path) -> int:
    with path.open(encoding="utf-8") as lines:
        next(lines)  # the provenance
        for line in lines:
            (kind, message), *_ = json.loads(line).items()
            if kind == "answer":
                sys.stdout.write(json.dumps(message) + "\n")
                sys.stdout.flush()
                continue
            order = sys.stdin.readline()
            if not order:
                return 0
            if json.loads(order) != message:
                sys.stderr.write(f"the recording has the order {json.dumps(message)}, the driver sent {order}")
                return 9
    sys.stdin.read()
    return 0


def interpreter(folder: Path, script: str) -> Path:
    """Write a program that takes an interpreter's place, whatever its arguments; `script` is Python."""
    source, program = folder / "fake_worker.py", folder / "fake_python"
    source.write_text(script, encoding="utf-8")
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{source}" "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return program


def replayer(folder: Path, recording: Path) -> Path:
    """Write an interpreter that answers as recorded."""
    words = [sys.executable, str(Path(__file__)), "replay", str(recording)]
    return interpreter(folder, f"import os\nos.execv({sys.executable!r}, {words!r})\n")


def recorder(folder: Path, recording: Path, python: Path) -> Path:
    """Write an interpreter that runs the real one and appends what passes to a recording."""
    words = [sys.executable, str(Path(__file__)), "record", str(recording), str(python)]
    return interpreter(folder, f"import os, sys\nos.execv({sys.executable!r}, {words!r} + sys.argv[1:])\n")


if __name__ == "__main__":
    what, name, *others = sys.argv[1:]
    sys.exit(record(Path(name), others) if what == "record" else replay(Path(name)))
