"""Record what vLLM's own n-gram proposer drafts, for tests/executor/drafters/vllm_lookup.json.

Usage, in an environment with vLLM:
`python tests/benchmarks/record_vllm_lookup.py tests/executor/drafters/vllm_lookup.json`.
"""

import importlib.metadata
import importlib.util
import json
import random
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

CASES = 400
LONGEST_TEXT = 48
EDGES = (
    # text, shortest, longest, K
    ([7], 1, 3, 3),
    ([7, 7], 1, 1, 3),
    ([7, 7], 2, 2, 3),
    ([7, 7, 7, 7], 1, 4, 5),
    ([7, 7, 7, 7, 7, 7], 5, 5, 5),
    ([1, 2, 3, 1, 2, 3], 3, 3, 8),
    ([1, 2, 9, 1, 2, 8, 1, 2], 2, 4, 3),
    ([1, 2, 9, 4, 2, 8, 1, 2], 1, 1, 3),
    ([1, 2, 3, 4], 1, 4, 3),
    ([0, 0, 1, 0, 0], 1, 3, 2),
    ([5, 1, 5, 1, 5], 1, 2, 4),
)


def load_proposer() -> tuple[type, str]:
    """Return vLLM's class and its version, from the one file that holds it: the rest of vLLM is not imported."""
    found = importlib.util.find_spec("vllm")
    assert found is not None
    assert found.origin is not None
    file = Path(found.origin).parent / "v1" / "spec_decode" / "ngram_proposer.py"
    sys.modules["vllm"] = ModuleType("vllm")
    sys.modules["vllm.config"] = ModuleType("vllm.config")
    sys.modules["vllm.config"].VllmConfig = SimpleNamespace  # type: ignore[attr-defined]  # an annotation, no more
    spec = importlib.util.spec_from_file_location("ngram_proposer", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    names = importlib.metadata.packages_distributions()["vllm"]
    return module.NgramProposer, f"{names[0]} {importlib.metadata.version(names[0])}"


def main(path: Path) -> None:
    """Write the cases: `[text, shortest, longest, K, drafted]`."""
    import numpy as np

    proposer, version = load_proposer()
    rng = random.Random(31)
    asked = list(EDGES)
    while len(asked) < CASES:
        shortest = rng.randint(1, 4)
        text = [rng.randrange(rng.choice((2, 3, 6))) for _ in range(rng.randint(1, LONGEST_TEXT))]
        asked.append((text, shortest, shortest + rng.randint(0, 3), rng.randint(1, 6)))
    cases = []
    for text, shortest, longest, count in asked:
        config = SimpleNamespace(
            speculative_config=SimpleNamespace(
                prompt_lookup_min=shortest, prompt_lookup_max=longest, num_speculative_tokens=count
            ),
            model_config=SimpleNamespace(max_model_len=256),
            scheduler_config=SimpleNamespace(max_num_seqs=1024),
            parallel_config=SimpleNamespace(tensor_parallel_size=1),
        )
        tokens = np.zeros((1, 256), dtype=np.int32)
        tokens[0, : len(text)] = text
        # The last token is what the model has just sampled.
        (drafted,) = proposer(config).propose(count, [text[-1:]], np.array([len(text)], dtype=np.int32), tokens)
        cases.append([text, shortest, longest, count, drafted])
    lines = ",\n".join(json.dumps(case) for case in cases)
    source = json.dumps({"vllm": version, "class": "vllm.v1.spec_decode.ngram_proposer.NgramProposer"})
    path.write_text(
        f'{{"source": {source},\n"fields": ["text", "prompt_lookup_min", "prompt_lookup_max", '
        f'"num_speculative_tokens", "drafted"],\n"cases": [\n{lines}\n]}}\n'
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
