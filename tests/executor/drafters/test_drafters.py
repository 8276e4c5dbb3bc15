"""What holds for every trained drafter: the pass that trains and records it is what the loop runs."""

import pytest
import torch
from transformers import Glm4MoeConfig

from executor.drafters.base.decoder_layer import layer_config
from executor.drafters.base.drafter import Committed
from executor.target.causal_model import pick_rows
from tests.helpers.drafters import DRAFTERS, MAKE, admitted, random_drafter
from tests.helpers.models import VOCABULARY, random_prompts, small_target

DEPTH = 4


def assert_equal_scores(found, due):
    """To 1e-5 of the largest score: without a last norm random weights make them large."""
    largest = due[due.isfinite()].abs().max().item()
    torch.testing.assert_close(found, due, rtol=0, atol=1e-5 * max(1.0, largest))


def committed(tokens, features, counts, fed=True):
    steps = tokens.shape[1]
    return Committed(tokens, features, torch.arange(steps).expand(len(tokens), -1), counts, True)


@pytest.fixture(scope="module", params=MAKE)
def drafter(request):
    return random_drafter(request.param, small_target())


def test_the_teacher_forced_pass_is_drafting_step_by_step(drafter):
    """Of any anchor: read the text up to it in one go, or in pieces, then draft along the true tokens."""
    target = small_target()
    text = torch.tensor(random_prompts((14, 14), seed=3))
    features = target.features(text, drafter.taps).features
    levels = list(drafter.teacher_forced(target, text, features, DEPTH))
    forced = [f.scores for f in levels]
    for t in (1, 4, 7):  # the anchor: f_t is the last feature, x_{t+1} the root
        for pieces in ([], [2], [1, 3]):
            state = drafter.begin(target, 2, DEPTH, 30, 40)
            start = t + 2 - sum(pieces)
            if start < len(getattr(drafter, "parts", "1")):  # several MTP modules need a token for each
                continue
            # Row 1 is admitted in front of the same text: nothing of it may come through.
            garbage = text.roll(5, 1)
            drafter.admit(state, admitted(garbage, features, (9, 7)))
            drafter.admit(state, admitted(text, features, (start, start)))
            at = start
            for piece in pieces or [0]:
                wide = max(piece, 1) + 2  # right of the count nothing has a meaning
                tokens = torch.randint(0, VOCABULARY, (2, wide))
                seen = torch.randn(2, wide, features.shape[2])
                tokens[:, :piece] = text[:, at : at + piece]
                seen[:, :piece] = features[:, at - 1 : at - 1 + piece]
                drafter.extend(state, committed(tokens, seen, torch.tensor([piece] * 2)), view=32, all_fed=False)
                at += piece
            for k in range(DEPTH):
                scores = drafter.level(state, text[:, at - 1 + k, None], torch.zeros(1, 1, dtype=torch.long))
                assert_equal_scores(scores[:, 0], forced[k][:, t])
            if levels[0].confidence is not None:
                due = torch.stack([level.confidence[:, t] for level in levels], 1).sigmoid()
                found = drafter.confidences(state, text[:, at - 1 : at - 1 + DEPTH])
                torch.testing.assert_close(found, due, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "heads", "shared"),
    [
        ((4096, 96, 8, 128), 64, 8),
        ((60, 8, 8, 16), 6, 6),
    ],
)
def test_a_layer_has_heads_that_divide_its_width(shape, heads, shared):
    hidden, had, keys, width = shape
    config = Glm4MoeConfig(
        hidden_size=hidden,
        num_attention_heads=had,
        num_key_value_heads=keys,
        head_dim=width,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
    )
    found = layer_config(config)
    assert (found.num_attention_heads, found.num_key_value_heads, found.head_dim) == (heads, shared, width)
    assert "partial_rotary_factor" not in found.rope_parameters


@pytest.mark.parametrize("kind", DRAFTERS)
def test_rows_of_a_teacher_forced_pass_are_those_of_the_whole(kind):
    """Of the target's logits too; the features are all there."""
    target = small_target()
    drafter = random_drafter(kind, target) if kind in MAKE else DRAFTERS[kind]()[1]
    text, rows = torch.tensor(random_prompts((14, 14), seed=3)), torch.tensor([[2, 3, 4, 9], [7, 8, 8, 1]])
    whole, part = target.features(text, drafter.taps), target.features(text, drafter.taps, rows=rows)
    torch.testing.assert_close(part.features, whole.features)
    torch.testing.assert_close(part.logits, pick_rows(whole.logits, rows))
    depth = min(3, drafter.max_depth)
    every = drafter.teacher_forced(target, text, whole.features, depth)
    some = drafter.teacher_forced(target, text, whole.features, depth, rows=rows)
    for k, (all_of_them, found) in enumerate(zip(every, some, strict=True), 1):
        assert k <= depth
        assert_equal_scores(found.scores, pick_rows(all_of_them.scores, rows))
    assert k == depth


def test_a_node_is_scored_by_its_own_path_alone(drafter):
    """Two branches in one tree against each branch as a chain, the sequences of unequal lengths."""
    target = small_target()
    prompts = torch.tensor(random_prompts((8, 8), seed=5))
    features = target.features(prompts, drafter.taps).features[:, :-1]
    lengths = torch.tensor([8, 5])
    nothing = committed(
        torch.zeros(2, 1, dtype=torch.long), torch.zeros(2, 1, features.shape[2]), torch.zeros(2).long()
    )

    def draft(paths):
        """Scores after each of `paths` (lists of tokens, equally long), drafted together."""
        state = drafter.begin(target, 2, DEPTH, 30, 40)
        drafter.admit(state, admitted(prompts, features, lengths.tolist()))
        drafter.extend(state, nothing, view=32, all_fed=False)
        roots = prompts.gather(1, lengths[:, None] - 1)
        scores = drafter.level(state, roots, torch.zeros(1, 1, dtype=torch.long))
        for level in range(len(paths[0])):
            tokens = torch.tensor([[path[level] for path in paths]]).expand(2, -1)
            parents = torch.zeros(1, len(paths), dtype=torch.long) if level == 0 else torch.arange(len(paths))[None]
            scores = drafter.level(state, tokens, parents)
        return scores.expand(2, len(paths), -1)

    together = draft([[3, 5, 9], [40, 5, 9], [3, 60, 2]])
    for i, path in enumerate([[3, 5, 9], [40, 5, 9], [3, 60, 2]]):
        assert_equal_scores(together[:, i], draft([path])[:, 0])
    one_pass = drafter.kind in ("medusa", "dflash", "dspark", "p-eagle", "pard")  # at most the token before is read
    if not one_pass and getattr(drafter, "grounded", True):
        assert not torch.allclose(together[:, 0], together[:, 1])


def test_the_router_only_proposes_from_a_node_s_own_groups():
    target, drafter = small_target(), random_drafter("coral-router", small_target())
    guess = torch.randn(2, 3, target.hidden)
    size = -(-VOCABULARY // 8)
    groups = drafter.route(guess)
    whole = torch.nn.functional.pad(target.head(guess), (0, 8 * size - VOCABULARY), value=-torch.inf)
    inside = whole.unflatten(-1, (8, size)).log_softmax(-1)
    for part in (slice(0, 1), slice(0, 2)):  # few nodes: only the union of their groups is multiplied
        found = drafter.scores(target, guess[part, :1])
        for row, scores in enumerate(found[:, 0]):
            for token in range(VOCABULARY):
                group = token // size
                allowed = group in groups[row, 0].topk(3).indices
                due = groups[row, 0, group] + inside[row, 0, group, token % size]
                assert scores[token].item() == pytest.approx(due.item() if allowed else -torch.inf, rel=1e-5)
    torch.testing.assert_close(drafter.scores(target, guess)[:2, :1], drafter.scores(target, guess[:2, :1]))
    drafter.routed = False
    torch.testing.assert_close(drafter.scores(target, guess), target.head(guess))
