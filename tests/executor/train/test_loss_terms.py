"""Every term against its formula, written out with loops in float64, and its gradient by finite differences."""

import math
from dataclasses import replace

import pytest
import torch

from executor.train import losses
from executor.train.losses import TERMS, Anchors

ROWS, VOCABULARY, WIDTH, GROUPS = 5, 7, 4, 3
OPTIONS = {"top_k": {"count": 3}, "csra": {"temperature": 0.3}}


def drawn(seed: int = 0, *, depth: int = 3, missing: bool = False, dtype: torch.dtype = torch.float64) -> Anchors:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    scores = normal(ROWS, VOCABULARY)
    if missing:
        scores[:, [1, 4]] = -torch.inf
    return Anchors(
        scores=scores,
        labels=torch.randint(0, VOCABULARY, (ROWS,), generator=generator),
        teacher=2 * normal(ROWS, VOCABULARY),
        features=normal(ROWS, WIDTH),
        hidden=normal(ROWS, WIDTH),
        earlier=normal(depth - 1, ROWS, WIDTH) if depth > 1 else None,
        routes=normal(ROWS, GROUPS).log_softmax(-1),
        confidence=normal(ROWS),
    )


def softmax(values: list[float]) -> list[float]:
    highest = max(values)
    weights = [math.exp(v - highest) for v in values]
    return [w / sum(weights) for w in weights]


def laws(at: Anchors) -> list[tuple[list[float], list[float], bool]]:
    """p and q of each row on the proposed tokens, and whether the target's best token is among them."""
    found = []
    for scores, teacher in zip(at.scores.tolist(), at.teacher.tolist(), strict=True):
        kept = [x for x in range(VOCABULARY) if scores[x] > -math.inf]
        p, q = softmax([teacher[x] for x in kept]), softmax([scores[x] for x in kept])
        found.append((p, q, teacher.index(max(teacher)) in kept))
    return found


def written_out(name: str, at: Anchors) -> float:
    rows: list[float] = []
    if name == "hard_ce":
        for scores, label in zip(at.scores.tolist(), at.labels.tolist(), strict=True):
            if scores[label] > -math.inf:
                rows.append(-math.log(softmax(scores)[label]))
    elif name in ("soft_ce", "kl", "top_k"):
        for p, q, known in laws(at):
            if known:
                pairs = sorted(zip(p, q, strict=True), reverse=True)
                pairs = pairs[: OPTIONS["top_k"]["count"]] if name == "top_k" else pairs
                rows.append(sum(a * ((math.log(a) if name == "kl" else 0) - math.log(b)) for a, b in pairs))
    elif name == "l1":
        rows = [sum(abs(a - b) for a, b in zip(p, q, strict=True)) for p, q, known in laws(at) if known]
    elif name == "confidence":
        for (p, q, known), logit in zip(laws(at), at.confidence.tolist(), strict=True):
            due, odds = 1 - sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2, 1 / (1 + math.exp(-logit))
            if known:
                rows.append(-due * math.log(odds) - (1 - due) * math.log(1 - odds))
    elif name == "smooth_l1":
        for hidden, feature in zip(at.hidden.tolist(), at.features.tolist(), strict=True):
            apart = [abs(a - b) for a, b in zip(hidden, feature, strict=True)]
            rows.append(sum(x * x / 2 if x < 1 else x - 0.5 for x in apart) / WIDTH)
    elif name == "csra":
        views = [at.hidden, *([] if at.earlier is None else at.earlier), at.features]
        units = [[(v / v.norm()).tolist() for v in view] for view in views]

        def weight(a: list[float], b: list[float]) -> float:
            return math.exp(sum(x * y for x, y in zip(a, b, strict=True)) / OPTIONS["csra"]["temperature"])

        for i in range(ROWS):
            own = units[0][i]
            total = sum(weight(own, view[j]) for m, view in enumerate(units) for j in range(ROWS) if (m, j) != (0, i))
            rows.append(-sum(math.log(weight(own, view[i]) / total) for view in units[1:]) / (len(units) - 1))
    elif name == "router_ce":
        width = math.ceil(VOCABULARY / GROUPS)
        for teacher, routes in zip(at.teacher.tolist(), at.routes.tolist(), strict=True):
            p = softmax(teacher)
            rows.append(-sum(sum(p[n * width : (n + 1) * width]) * routes[n] for n in range(GROUPS)))
    return sum(rows) / len(rows)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("name", TERMS)
def test_terms_are_their_formulas(name, depth, missing):
    at = drawn(3, depth=depth, missing=missing)
    assert TERMS[name](at, **OPTIONS.get(name, {})).item() == pytest.approx(written_out(name, at), rel=1e-12)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("name", TERMS)
def test_gradients_are_finite_differences(name, missing):
    """Of every entry that is finite; what is never proposed is given no gradient, and no NaN."""
    at = drawn(1, missing=missing)
    read = {"smooth_l1": at.hidden, "csra": at.hidden, "router_ce": at.routes, "confidence": at.confidence}
    learnt = read.get(name, at.scores).requires_grad_()
    term = TERMS[name](at, **OPTIONS.get(name, {}))
    (gradient,) = torch.autograd.grad(term, learnt)
    assert gradient.isfinite().all()
    entries, slopes = learnt.detach().view(-1), gradient.view(-1)
    for index in range(len(entries)):
        if entries[index] == -torch.inf:
            assert slopes[index] == 0
            continue
        around = []
        with torch.no_grad():
            for step in (1e-6, -2e-6, 1e-6):
                entries[index] += step
                around.append(TERMS[name](replace(at), **OPTIONS.get(name, {})).item())  # laws are kept with `at`
        assert slopes[index].item() == pytest.approx((around[0] - around[1]) / 2e-6, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("name", ["hard_ce", "soft_ce", "kl", "l1", "top_k", "confidence"])
def test_tokens_that_are_left_out_are_as_those_of_no_score(name):
    """A drafter may score the tokens alone that it proposes."""
    at = drawn(7, missing=True)
    kept = torch.tensor([x for x in range(VOCABULARY) if x not in (1, 4)])
    place = torch.full((VOCABULARY,), -1)
    place[kept] = torch.arange(len(kept))
    labels, known = place[at.labels], place[at.teacher.argmax(-1)] >= 0
    assert {bool(each) for each in (labels < 0)} == {bool(each) for each in known} == {False, True}
    less = replace(at, scores=at.scores[:, kept], teacher=at.teacher[:, kept], labels=labels, known=known)
    options = OPTIONS.get(name, {})
    torch.testing.assert_close(TERMS[name](less, **options), TERMS[name](at, **options))


def test_soft_ce_is_kl_and_the_target_s_entropy():
    at = drawn(2)
    entropy = torch.distributions.Categorical(logits=at.teacher).entropy().mean()
    torch.testing.assert_close(losses.soft_ce(at), losses.kl(at) + entropy)
    everything = losses.top_k(at, count=VOCABULARY + 1)
    torch.testing.assert_close(everything, losses.soft_ce(at))


def test_the_contrast_in_pieces_is_the_same(monkeypatch):
    at = drawn(4)
    at.hidden.requires_grad_()
    whole = losses.csra(at)
    (gradient,) = torch.autograd.grad(whole, at.hidden)
    monkeypatch.setattr(losses, "CHUNK", 1)
    pieces = losses.csra(at)
    torch.testing.assert_close(pieces, whole)
    torch.testing.assert_close(torch.autograd.grad(pieces, at.hidden)[0], gradient)


def test_only_this_depth_is_contrasted_with_a_gradient():
    at = drawn(5)
    for tensor in (at.hidden, at.earlier, at.features):
        tensor.requires_grad_()
    losses.csra(at).backward()
    assert at.hidden.grad.abs().sum() > 0
    assert at.earlier.grad is None
    assert at.features.grad is None


@pytest.mark.parametrize("name", TERMS)
def test_half_precision_is_summed_in_single(name):
    at = drawn(6, dtype=torch.bfloat16)
    exact = Anchors(**{k: v.double() if v.is_floating_point() else v for k, v in vars(at).items() if v is not None})
    found = TERMS[name](at, **OPTIONS.get(name, {}))
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(written_out(name, exact), rel=1e-5)


@pytest.mark.parametrize("name", TERMS)
def test_nothing_supervised_is_no_loss(name):
    at = drawn()
    none = Anchors(**{k: v[:, :0] if k == "earlier" else v[:0] for k, v in vars(at).items() if v is not None})
    assert TERMS[name](none).item() == 0


@pytest.mark.parametrize("name", ["hard_ce", "soft_ce", "kl", "top_k"])
def test_scores_that_are_no_numbers_show(name):
    at = drawn(missing=True)
    at.scores[2, 0] = torch.nan
    assert TERMS[name](at, **OPTIONS.get(name, {})).isnan()
