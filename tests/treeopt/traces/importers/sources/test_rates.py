"""Rates by position as people paste them: tables, cards, lines of programs; all of the same 2000 steps or none."""

import pytest

from tests.helpers.source_texts import bring, chain_of, reading, turned_away
from treeopt.errors import TraceError
from treeopt.traces.importers.trace_source import read_output

MAX = "".join(
    f'maxserve_spec_decode_acceptance_rate_per_position_{part}{{position="{place}"}} {value}\n'
    for place, total in enumerate((40000.0, 30000.0, 20000.0))
    for part, value in (("sum", total), ("count", 500))
)
ATOM = (
    "[MTP Stats         ] Average toks/fwd: 2.80, Accepted/Total Draft tokens: {}/{}, Acceptance rate: 60.00%, "
    "Accepted tokens distribution: {{0: '20.00%', 1: '20.00%', 2: '20.00%', 3: '40.00%'}}\n"
)
DEEPSPEC = """\
+----------+------------+---------------+---------------+---------------+
| dataset  | accept_len | accept_rate@0 | accept_rate@1 | accept_rate@2 |
+----------+------------+---------------+---------------+---------------+
| gsm8k    | 2.95       | 0.8500        | 0.6500        | 0.4500        |
| mt-bench | 2.65       | 0.7500        | 0.5500        | 0.3500        |
"""
IK_LLAMA = """\
| task | rounds |    accepted |    rate | pos accept        |
|------|--------|-------------|---------|-------------------|
| code |   1500 |   2700/4500 |  60.00% | 80.0% 60.0% 40.0% |
| qa   |    500 |    900/1500 |  60.00% | 80.0% 60.0% 40.0% |
"""
PULL_REQUEST = """\
Number of draft proposals: 2,000
Number of accepted tokens: 3,600
Acceptance rate at token 0: 0.80
Acceptance rate at token 1: 0.60
Acceptance rate at token 2: 0.40
"""
SWEEP = (
    "max_concurrency,spec_decode_num_drafts,spec_decode_per_position_acceptance_rates\n"
    '8,1200,"[0.8, 0.6, 0.4]"\n16,800,"[0.8, 0.6, 0.4]"\n'
)
NEMO = '{"num_drafts": 2000, "acceptance_rate": 60.0, "per_position_acceptance_rates": [0.8, 0.6, 0.4]}'


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        (MAX, None),
        (ATOM.format(1800, 3000) + ATOM.format(3600, 6000), 2000),
        (DEEPSPEC, None),
        (IK_LLAMA, 2000),
        (PULL_REQUEST, 2000),
        (SWEEP, 2000),
        (NEMO, 2000),
        (
            '{"conditional_accept_rates": [0.8, 0.75, 0.667], "marginal_accept_rates": [0.8, 0.6, 0.4]}',
            None,
        ),  # ModelOpt
        (
            '{"num_drafts": 2000, "accepted_per_pos": [1600, 1200, 800], "acceptance_rate_per_pos": [0.8, 0.6, 0.4]}',
            2000,
        ),
        ("Per-position acceptance rate: 0.800, 0.600, 0.400", None),
        (
            "| run | pos 1 | pos 2 | pos 3 | accepted |\n|---|\n| plain | - | - | | |\n| MTP | 0.8 | 0.6 | 0.4 | |\n",
            None,
        ),
        ('{\n "per_position_acceptance": [\n  0.8,\n  0.6,\n  0.4\n ]\n}', None),
        ("acceptance rate at position 1: 80%, at position 2: 60%, at position 3: 40%", None),
        ("| Position | acceptance rate | note |\n|---|---|---|\n| 0 | 0.8 | |\n| 1 | 0.6 | |\n| 2 | 0.4 | |\n", None),
        ("| Position | acceptance rate |\n|---|---|\n| 0 | 0.8 |\n| 1 | 0.6 |\n| 2 | 0.4 |\n", None),
        (
            "|Metric|Value|\n|---|---|\n| Num_drafts | 2000 |\n| **Per-position acceptance rate** | 0.8, 0.6, 0.4 |",
            2000,
        ),
        ("set,accept_pos_0,accept_pos_1,accept_pos_2,steps\na,0.9,0.7,0.5,1000\nb,0.7,0.5,0.3,1000\n", 2000),
        ("Drafts: 2000\nPer-position acceptance (%):\n Position 0:  80.0\n Position 1: 60.0\n Position 2: 40.0", 2000),
        ("position\tacceptance_rate\n0\t0.8\n1\t0.6\n2\t0.4\n", None),
        ("k,pos_0,pos_1,pos_2,accept_length\n3,0.8,0.6,0.4,2.8\n", None),
    ],
)
def test_rates_are_read(text, steps):
    found = reading(text)
    assert (found.kind, found.chain.steps) == ("rates", steps)
    assert found.chain.survival == pytest.approx((0.8, 0.6, 0.4))


def test_rows_are_pooled_by_their_steps():
    text = IK_LLAMA.replace("80.0% 60.0% 40.0% |\n| qa", "60.0% 40.0% 20.0% |\n| qa")
    assert chain_of(text).survival == pytest.approx((0.65, 0.45, 0.25))
    assert "the 2 rows do not say how many steps they cover" in chain_of(DEEPSPEC).assumed[1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Per-position acceptance rate: 0.4, 0.6", "is accepted more often"),
        ("per-position acceptance: 80%, 0.6, 0.4\n", "rates mix per cent and shares"),
        ("Conditional acceptance per position: 0.80, 0.75\n", "give `--acceptance 0.8,0.6`"),
        ("Conditional acceptance: pos 1: 80%, pos 2: 75%", "give `--acceptance 0.8,0.6`"),
        ("Acceptance: pos 1: 80% (800/1000), pos 2: 75% (600/800)", "give `--acceptance 0.8,0.6`"),
        ("A per-position acceptance: 0.8, 0.6\nB per-position acceptance: 0.7, 0.5\n", "it has 2 lists"),
        ("Mean acceptance length: 3.50\nPer-position acceptance: 0.8, 0.6, 0.4\n", "add up to 2.80 tokens a step"),
        (
            "|Metric|Value|\n|Acceptance length| 3.50 |\n|Per-position acceptance| 0.8, 0.6, 0.4 |\n",
            "add up to 2.80 tokens a",
        ),
        ("Acceptance rate at token 0: 0,80\nAcceptance rate at token 1: 0,60\n", "numbers with a decimal point"),
        (ATOM.format(6, 9).replace("3: '40", "3: '30"), "adds up to 90.0%"),
        ("per-position accept " + "0.1, " * 20_000 + "x", "no acceptance by position or step"),  # in linear time
        ("0.8\n0.6\n0.4\n", "--format table --column survival"),
        ("| Draft tokens | Acceptance rate |\n|---|---|\n| 1 | 80% |\n| 2 | 72% |\n", "`--acceptance R@K`"),  # lengths
        ("k,accept@1,accept@2\n1,0.8,-\n2,0.8,0.6\n", "it has rates of 1 to 2 positions: keep those of one length"),
        ("k,accept@1,accept@2\n2,-,0.6\n", "numbers with a decimal point, found ['-']"),
        ("model,mean_itl_ms,acceptance_length\ndspark,4.69,3.44\n", "`--accepted-length L@K`"),
    ],
)
def test_what_is_refused(text, words):
    with pytest.raises(TraceError) as refused:
        read_output(text, {})
    assert words in str(refused.value)


def test_shares_of_all_steps_in_a_table(tmp_path):
    path = tmp_path / "rates.csv"
    path.write_text("0.8\n0.6\n0.4\n")
    trace, _ = bring(tmp_path, path, "table", "--column", "survival", "--steps", 3000)
    assert trace.meta["imported"]["survival"] == [0.8, 0.6, 0.4]
    _, said = bring(tmp_path, path, "table", "--column", "rank")
    assert "0.8, 0.6, 0.4 are each given the one before; if they are shares of all steps: --column survival" in said
    survival = ("table", "--column", "survival")
    turned_away(tmp_path, path, *survival, "--length", 64, words=("no --depth or --length",), code=2)
    path.write_text("0.8,0.6\n0.6,0.4\n")
    turned_away(tmp_path, path, *survival, words=("one rate for each position",), code=2)


@pytest.mark.parametrize("end", ["_total", ""])
def test_counters_under_other_names(end):
    text = "".join(
        f'ray_vllm_spec_decode_{name}{end}{{model_name="m"{label}}} {value}\n'
        for name, label, value in (
            ("num_drafts", "", 2000),
            ("num_draft_tokens", "", 6000),
            ("num_accepted_tokens", "", 3600),
            *(("num_accepted_tokens_per_pos", f',position="{place}"', n) for place, n in enumerate((1600, 1200, 800))),
        )
    )
    found = reading(text)
    assert (found.kind, found.engine, found.chain.survival) == ("counters", "vllm", (0.8, 0.6, 0.4))
