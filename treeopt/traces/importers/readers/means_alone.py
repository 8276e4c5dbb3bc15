"""Outputs of engines that hold means alone: how they are recognised, and what to ask the engine for instead.

A mean accepted length does not determine the share of steps that accept each position, so no shorter chain follows.
"""

import re
from dataclasses import dataclass

VLLM = (
    "ask vLLM for positions: save /metrics (`vllm:spec_decode_num_accepted_tokens_per_pos_total`), the JSON of `vllm "
    "bench serve --save-result`, or responses of a server started with --per-request-spec-decode-metrics detailed"
)
SGLANG = (
    "ask SGLang for histograms: `spec_correct_drafts_histogram` in the meta_info of /generate, in sglext of requests "
    "with `return_spec_tokens_details: true`, or in the log of a server started with --log-requests"
)
LLAMA_CPP = (
    "ask llama-server for positions: its log with LLAMA_TRACE=1 in the environment (every step) or --verbosity 4 "
    "(`acc per pos`), or its /metrics (--metrics)"
)
OPENVINO = (
    "ask OpenVINO GenAI for steps: extended_perf_metrics.main_model_metrics.raw_metrics.m_batch_sizes of each request, "
    'as JSON {"m_batch_sizes": [...]}'
)
TENSORRT = (
    "ask TensorRT-LLM for positions: /prometheus/metrics (`trtllm_spec_decode_accepted_tokens_total`), or responses "
    "with per_request_spec_decode_stats"
)
SPEC_BENCH = "ask Spec-Bench for steps: `accept_lengths` in the answers of its evaluation/eval.py since 2024"
AIPERF = (
    "ask AIPerf for histograms: profile_export.jsonl of --export-level records against a vLLM server started with "
    "--per-request-spec-decode-metrics, or server_metrics_export.json, which has the server's counters"
)
TGI = (
    "ask TGI for its histogram: the whole /metrics with `tgi_request_skipped_tokens_bucket` and "
    "`tgi_request_success`, which servers from version 2.1 on have"
)
LM_STUDIO = (
    "LM Studio counts no positions: run the same GGUF files in llama-server, and save its log with LLAMA_TRACE=1 in "
    "the environment"
)
EAGLE_ANSWERS = "ask for steps: Spec-Bench's evaluation/eval.py writes `accept_lengths` for EAGLE, Medusa and Hydra"
SPECDEC_BENCH = "ask ModelOpt's specdec_bench for `Acceptance_Length_Histogram` (acceptance_rate.json of --save_dir)"
ANY = (
    "ask the engine for steps, for histograms, or for accepted tokens by position: docs/guides/import_measurements.md "
    "says how each engine gives them"
)

LMDEPLOY = "ask LMDeploy for positions: its /metrics (`lmdeploy:spec_decode_num_accepted_tokens_per_pos_total`)"
# Engine whose counters may lack positions -> what to ask it for.
ASK = {"vllm": VLLM, "llama.cpp": LLAMA_CPP, "lmdeploy": LMDEPLOY, "tensorrt-llm": TENSORRT}


@dataclass(frozen=True)
class MeansAlone:
    """A kind of output that holds means alone.

    Attributes:
        sign: what its text contains.
        named: the engine's figures, in words.
        ask: what to ask that engine for.
    """

    sign: re.Pattern[str]
    named: str
    ask: str


KINDS = (
    MeansAlone(
        re.compile(r'"acc_length"\s*:\s*[\d.]+\s*,\s*"step_time"\s*:'),
        "SGLang's bench_speculative lines hold step times, which `treeopt times` reads, and mean accepted lengths",
        SGLANG,
    ),
    MeansAlone(
        re.compile(
            r"accept len: \d|\"accept_length\"\s*:|avg_spec_accept_length|sglang:spec_|Accept length:\s+\d|"
            r"\"?spec_accept_length\b"
        ),
        "it holds SGLang's mean accepted length",
        SGLANG,
    ),
    MeansAlone(
        re.compile(r'"draft_n_accepted"\s*:|draft acceptance(?: rate)?\s*= \d|n_accept\s*=|#acc tokens\s*='),
        "it holds llama.cpp's totals of drafted and accepted tokens",
        LLAMA_CPP,
    ),
    MeansAlone(
        re.compile(r'"(?:acceptanceLength|total_accepted_draft_tokens)"\s*:'),
        "it holds TensorRT-LLM's totals",
        TENSORRT,
    ),
    MeansAlone(
        re.compile(r'"acceptance_percentiles"\s*:|= ACCEPTANCE BREAKDOWN|= DECODING STATISTICS|\[AR\] \w+\s*:'),
        "it holds the means of TensorRT-LLM's trtllm-bench",
        TENSORRT,
    ),
    MeansAlone(
        re.compile(
            r"total_spec_decode_steps|token_weighted_acceptance_length|NVIDIA AIPerf|^Metric,avg,|"
            r"^\"?(?:Token-Weighted )?Acceptance Length\b[^\n]*,",
            re.MULTILINE,
        ),
        "it holds AIPerf's means",
        AIPERF,
    ),
    MeansAlone(
        re.compile(
            r"spec_decode_|[Mm]ean acceptance length:|mean_acceptance_length|Acceptance length:|Speculative metrics:"
        ),
        "it holds vLLM's mean acceptance length",
        VLLM,
    ),
    MeansAlone(
        re.compile(r"num_accepted_tokens|main_model_metrics|get_num_accepted_tokens"),
        "it holds OpenVINO's totals",
        OPENVINO,
    ),
    MeansAlone(re.compile(r'"decoding_steps"\s*:'), "it holds Spec-Bench's steps and tokens of each turn", SPEC_BENCH),
    MeansAlone(re.compile(r"tgi_request_skipped_tokens|tgi_request_"), "it holds TGI's sums", TGI),
    MeansAlone(
        re.compile(r"accepted_?draft_?tokens_?count|acceptedDraftTokensCount", re.IGNORECASE),
        "it holds LM Studio's totals",
        LM_STUDIO,
    ),
    MeansAlone(
        re.compile(r'"(?:idxs)"\s*:\s*\['),
        "it holds the steps and tokens of each turn of EAGLE's or Medusa's answers",
        EAGLE_ANSWERS,
    ),
    MeansAlone(re.compile(r'"(?:Average|Request|Category)_A[LR]"\s*:'), "it holds ModelOpt's means", SPECDEC_BENCH),
    MeansAlone(
        re.compile(r"\baccept(?:ed|ance)?[\s_-]*(?:draft[\s_-]*)?(?:len(?:gth)?|rate|ratio|tokens?)\b", re.IGNORECASE),
        "it holds figures of acceptance",
        ANY,
    ),
)


def refusal(text: str) -> str | None:
    """Return why the text of an engine is refused and what to ask that engine for; None if it is none of these.

    >>> refusal("gen throughput (token/s): 45.11") is None
    True
    """
    kind = next((kind for kind in KINDS if kind.sign.search(text)), None)
    return (
        None if kind is None else f"{kind.named} alone, from which acceptance by position does not follow; {kind.ask}"
    )
