"""How many requests a server decodes at once, as shares of time: from a table, or from its `/metrics`."""

import csv
import re
from collections import defaultdict
from pathlib import Path

import numpy as np

from treeopt.errors import UsageError
from treeopt.storage.json_records import reading
from treeopt.storage.user_files import read_text

# Gauges of vLLM, SGLang and llama.cpp; a file may hold any number of scrapes, one after the other.
GAUGE = re.compile(
    r"(?m)^(?:vllm:num_requests_running|sglang:num_running_reqs|llamacpp:requests_processing)\S*\s+(\S+)"
)
BUCKET = re.compile(r'(?m)^\S*(?:running|iteration_tokens)\S*_bucket\{\S*le="([^"]+)"\S*\}\s+(\S+)')
LOADS = 8  # numbers of requests that are simulated
MOST = 2**14


def read_running(path: Path) -> dict[int, float]:
    """Return running requests -> share of the time that the server is busy, at most `LOADS` of them.

    The file is a table `requests,share` (CSV), scrapes of `/metrics` with a gauge of running requests, or a histogram
    of them; vLLM's `iteration_tokens_total`, recorded without speculation, counts as one: a decoding step has a token
    per request. Neighbours are joined, at their mean.

    Raises:
        UsageError: names the file and what it must hold.
    """
    with reading(path, UsageError):
        text = read_text(path)
    shares = defaultdict[float, float](float)
    try:
        if text.lstrip().lower().startswith("requests"):
            for row in csv.DictReader(text.split("\n"), skipinitialspace=True):
                shares[float(row["requests"])] += float(row["share"])
        elif buckets := BUCKET.findall(text):
            totals, before = defaultdict[float, float](float), (0.0, 0.0)
            for edge, count in buckets:  # of all engines and scrapes
                totals[float(edge)] += float(count)
            for edge, count in sorted(totals.items()):
                middle = before[0] if np.isinf(edge) else (before[0] + 1 + edge) / 2
                shares[middle] += count - before[1]
                before = (edge, count)
        for value in GAUGE.findall(text):
            shares[float(value)] += 1
        if wrong := [(n, share) for n, share in shares.items() if not (n >= 0 and share >= 0)]:
            raise ValueError(f"{wrong[0][0]:g} requests, {wrong[0][1]:g} of the time")
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: is no distribution of running requests: {error!r:.80}") from error
    busy = sorted((n, share) for n, share in shares.items() if n >= 1 and share > 0)
    if not busy or busy[-1][0] > MOST or not np.isfinite(sum(share for _, share in busy)):
        raise UsageError(
            f"{path}: must hold running requests from 1 to {MOST}: a table `requests,share`, or /metrics with "
            "vllm:num_requests_running, sglang:num_running_reqs, llamacpp:requests_processing or a histogram of them"
        )
    sizes, weights = np.array(busy).T
    group = np.minimum((weights.cumsum() - weights / 2) / weights.sum() * LOADS, LOADS - 1).astype(int)
    group = group if len(busy) > LOADS else np.arange(len(busy))
    joined = defaultdict[int, float](float)
    for place in np.unique(group):
        part = group == place
        joined[round(float(np.average(sizes[part], weights=weights[part])))] += float(
            weights[part].sum() / weights.sum()
        )
    return dict(sorted(joined.items()))
