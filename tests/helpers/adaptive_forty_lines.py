"""Adaptive verification of a batch in forty lines, written from the published description alone, before our own code.

Source: vLLM's blog of 2026-08-14 and PR 47808. Each request drafts K tokens; S(r, k) is the product of its confidences
up to k. The budget B maximises (requests + sum of the B largest S) / (draft_s[requests] + verify_s[requests + B]) and
uses the confidences of each request's step before (of a new request: 1). The B largest pairs by the present S are
verified; of equal ones those of the first row come first.
"""

from collections.abc import Sequence


def seconds_and_steps(
    confidences: Sequence[Sequence[Sequence[float]]],
    right: Sequence[Sequence[int]],
    *,
    rows: int,
    draft_s: Sequence[float],
    verify_s: Sequence[float],
) -> tuple[float, list[tuple[int, int, int]]]:
    """Return total seconds, and per step: requests, drafted tokens verified, tokens committed.

    `confidences[r][t]` are those of the chain drafted at token t of request r, `right[r][t]` how many of it are right.
    """
    waiting, running, steps, total = list(range(len(right))), [], [], 0.0
    while waiting or running:
        while waiting and len(running) < rows:
            new = waiting.pop(0)
            running.append({"request": new, "at": 0, "stale": [1.0] * len(confidences[new][0])})

        def survivals(chain):
            product, out = 1.0, []
            for one in chain:
                product *= one
                out.append(product)
            return out

        worth = sorted((s for row in running for s in survivals(row["stale"])), reverse=True)
        best, budget, tokens = -1.0, 0, float(len(running))
        for size in range(len(worth) + 1):
            tokens += worth[size - 1] if size else 0.0
            speed = tokens / (draft_s[len(running)] + verify_s[len(running) + size])
            if speed > best:
                best, budget = speed, size
        present = [confidences[row["request"]][row["at"]] for row in running]
        pairs = sorted((-s, i, k) for i, chain in enumerate(present) for k, s in enumerate(survivals(chain)))
        committed = 0
        for i, row in enumerate(running):
            verified = sum(1 for _, j, _ in pairs[:budget] if j == i)
            texts_left = len(right[row["request"]]) - row["at"]
            step = min(min(right[row["request"]][row["at"]], verified) + 1, texts_left)
            row["at"], row["stale"], committed = row["at"] + step, present[i], committed + step
        total += draft_s[len(running)] + verify_s[len(running) + budget]
        steps.append((len(running), budget, committed))
        running = [row for row in running if row["at"] < len(right[row["request"]])]
    return total, steps
