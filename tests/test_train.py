import numpy as np
import pytest
import torch

from executor.drafters.medusa import MedusaHeads
from executor.train import corpus
from executor.train.recipes import MEDUSA1, Recipe
from executor.train.trainer import DrafterTrainer, Rows, arguments, depth_losses, top_accuracy
from tests.models import HIDDEN, VOCABULARY, random_heads, small_target


def test_teacher_forced_equals_step_by_step():
    """Row t of depth k is what the heads say when f_t is all they have."""
    target, heads = small_target(), random_heads(layers=2, own=True)
    tokens = torch.randint(0, VOCABULARY, (2, 9))
    features = target.features(tokens).features
    rows = torch.stack([forced.scores for forced in heads.teacher_forced(target, tokens, features, 4)])
    for t in range(9):
        state = heads.begin(target, 2, 4, 16, 16)
        lengths = torch.tensor([t + 2, t + 2])
        heads.admit(state, torch.arange(2), torch.zeros(2, t + 2, dtype=torch.long), features[:, : t + 1], lengths)
        for k in range(4):
            scores = heads.level(state, tokens[:, :1], torch.zeros(1, 1, dtype=torch.long))
            torch.testing.assert_close(scores[:, 0], rows[k, :, t], rtol=1e-5, atol=1e-5)


def test_heads_are_the_published_formula():
    """z = f + SiLU(A f + b), logits = U z, written out in float64; Cai et al. 2024, section 2.1."""
    target = small_target(dtype=torch.float64)
    heads = random_heads(own=True, dtype=torch.float64)
    f = torch.randn(3, HIDDEN, dtype=torch.float64)
    found = heads(target, f, 5)
    for k in range(5):
        a = f @ heads.weight[k, 0].T + heads.bias[k, 0]
        z = f + a / (1 + torch.exp(-a))
        torch.testing.assert_close(found[k], z @ heads.output[k].T, rtol=1e-12, atol=1e-12)


def test_untrained_heads_guess_the_next_token():
    target, heads = small_target(), MedusaHeads(2, HIDDEN)
    tokens = torch.randint(0, VOCABULARY, (1, 6))
    outputs = target.features(tokens)
    for forced in heads.teacher_forced(target, tokens, outputs.features, 2):
        torch.testing.assert_close(forced.scores, outputs.logits)


def test_losses_are_minus_log_probabilities_of_the_right_tokens():
    target = small_target(dtype=torch.float64)
    heads = random_heads(dtype=torch.float64)
    tokens = torch.randint(0, VOCABULARY, (2, 8))
    features = target.features(tokens).features
    found = depth_losses(heads, target, tokens, 3)
    for k in range(1, 4):
        due = []
        for row in range(2):
            for t in range(8 - 1 - k):
                logits = heads(target, features[row, t : t + 1], k)[k - 1, 0]
                due.append(-(logits - logits.logsumexp(0))[tokens[row, t + 1 + k]].item())
        assert found[k - 1].item() == pytest.approx(np.mean(due), rel=1e-5)  # the loss is taken in float32


def test_gradients_by_finite_differences():
    target = small_target(dtype=torch.float64)
    heads = random_heads(heads=2, dtype=torch.float64).requires_grad_(True)
    tokens = torch.randint(0, VOCABULARY, (1, 7))

    def loss() -> torch.Tensor:
        features = target.features(tokens).features
        logits = [forced.scores for forced in heads.teacher_forced(target, tokens, features, 2)]
        return sum(
            0.8**k * torch.nn.functional.cross_entropy(x[0, : -1 - k], tokens[0, 1 + k :])
            for k, x in enumerate(logits, 1)
        )

    loss().backward()
    for index in ((0, 0, 3, 5), (1, 0, 10, 2)):
        with torch.no_grad():
            heads.weight[index] += 1e-6
            up = loss().item()
            heads.weight[index] -= 2e-6
            down = loss().item()
            heads.weight[index] += 1e-6
        assert heads.weight.grad[index].item() == pytest.approx((up - down) / 2e-6, rel=1e-4, abs=1e-7)


def test_training_lowers_the_loss_and_raises_accuracy(tmp_path):
    """Text that the target wrote itself can be learnt by the heads: a fixed cycle of tokens."""
    target = small_target()
    cycle = np.resize(np.arange(7), 16 * 40).reshape(40, 16).astype(np.int64)
    heads = MedusaHeads(2, HIDDEN, vocabulary=VOCABULARY)
    recipe = Recipe(depths=2, decay=0.8, learning_rate=2e-2, warmup=0.1, weight_decay=0.0)
    before = [x.item() for x in depth_losses(heads, target, torch.from_numpy(cycle), 2)]
    untrained = top_accuracy(heads, target, cycle, depths=2)
    settings = arguments(tmp_path, steps=60, batch=8, learning_rate=2e-2, warmup=0.1, weight_decay=0.0, seed=0)
    DrafterTrainer(heads, target=target, recipe=recipe, args=settings, train_dataset=Rows(cycle)).train()
    after = [x.item() for x in depth_losses(heads, target, torch.from_numpy(cycle), 2)]
    trained = top_accuracy(heads, target, cycle, depths=2)
    for k in range(2):
        assert after[k] < before[k] / 2
        assert trained[k][0] > untrained[k][0] + 0.3


def test_top_accuracy_counts_ranks():
    target, heads = small_target(), random_heads(heads=1)
    rows = torch.randint(0, VOCABULARY, (3, 10))
    found = top_accuracy(heads, target, rows.numpy(), depths=1)
    scores = next(heads.teacher_forced(target, rows, target.features(rows).features, 1)).scores
    for i, top in enumerate((1, 2, 4, 8)):
        best = scores[:, :-2].topk(top).indices
        assert found[0][i] == pytest.approx((best == rows[:, 2:, None]).any(-1).float().mean().item(), abs=1e-4)


def test_medusa1_weights():
    assert [round(MEDUSA1.weight(k), 3) for k in (1, 2, 3)] == [0.8, 0.64, 0.512]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    root = tmp_path_factory.mktemp("lib")
    for i in range(40):
        (root / f"module{i}.py").write_text("".join(f"def f{i}_{j}(x):\n    return x + {j}\n" for j in range(60)))
    (root / "test").mkdir()
    (root / "test" / "test_x.py").write_text("assert False\n")
    return corpus.standard_library(root)


def test_corpus_is_split_by_name(library):
    names = {s.name for s in library}
    assert len(names) == 40
    assert not any("test" in name for name in names)
    held = {s.name for s in library if s.held_out}
    assert 0 < len(held) < 20
    half = [s for s in library if s.name < "module5"]  # files may come and go, the split stays
    assert {s.name for s in half if s.held_out} == held & {s.name for s in half}
    assert corpus.fingerprint(library) == corpus.fingerprint(list(library))
    assert corpus.fingerprint(library) != corpus.fingerprint(half)


def test_prompts_come_from_held_out_files_alone(library):
    tokenizer = corpus.train_tokenizer(library, vocabulary=300)
    drawn = corpus.prompts(tokenizer, library, count=20, shortest=8, longest=24, seed=0)
    held = {s.name.removesuffix(".py"): s.text for s in library if s.held_out}
    assert len(drawn) == 20
    for prompt in drawn:
        assert prompt.text in held[prompt.domain]
        assert 4 <= len(tokenizer.encode(prompt.text).ids) <= 25
    assert drawn == corpus.prompts(tokenizer, library, count=20, shortest=8, longest=24, seed=0)


def test_packed_rows_are_the_text(library):
    tokenizer = corpus.train_tokenizer(library, vocabulary=300)
    rows = corpus.pack(tokenizer, library[:3], length=32)
    stream = rows.flatten().tolist()
    end = tokenizer.token_to_id(corpus.END)
    first = stream[: stream.index(end)]
    assert tokenizer.decode(first) == library[0].text
