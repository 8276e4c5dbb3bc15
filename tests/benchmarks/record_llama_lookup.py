"""Record what llama.cpp's own ngram-simple drafts, for tests/executor/drafters/llama_lookup.json.

Usage: `python tests/benchmarks/record_llama_lookup.py ./llama_lookup RELEASE OUTPUT`; `llama_lookup.cpp` says how the
program is built.
"""

import json
import random
import subprocess
import sys
from pathlib import Path

CASES = 400


def main(program: str, release: str, path: Path) -> None:
    """Write the cases: `[text, size_n, size_m, drafted]`."""
    rng = random.Random(31)
    asked = [([7] * length, size, most) for size, most in ((1, 1), (1, 3), (2, 2)) for length in range(1, 14)]
    while len(asked) < CASES:
        text = [rng.randrange(rng.choice((2, 3, 4))) for _ in range(rng.randint(1, 48))]
        asked.append((text, rng.randint(1, 4), rng.randint(1, 8)))
    lines = "\n".join(" ".join(map(str, (size, most, *text))) for text, size, most in asked) + "\n"
    done = subprocess.run([program], input=lines, capture_output=True, text=True, check=True)
    cases = [
        [text, size, most, [int(token) for token in line.split()]]
        for (text, size, most), line in zip(asked, done.stdout.splitlines(), strict=True)
    ]
    source = json.dumps({"llama.cpp": release, "function": "common_ngram_simple_draft of common/ngram-map.cpp"})
    fields = json.dumps(["text", "size_n", "size_m", "drafted"])
    rows = ",\n".join(json.dumps(case) for case in cases)
    path.write_text(f'{{"source": {source},\n"fields": {fields},\n"cases": [\n{rows}\n]}}\n')


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
