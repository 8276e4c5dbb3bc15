"""Profiles: measured step times of one target and drafter on one device, as a cost model; their files.

step = draft(batch, levels) + rest(batch, tokens), both by context. Dynamic trees add the time that drafting them takes,
where it was measured (`Growing`). At measured sizes the time is the measured one, dips and breaks included, as far as
it was more than noise (`calibrate`). Between them the ratio of the measurement to the fitted `Basis` is interpolated,
so that a tile's edge stays where it is; without a basis the time itself is interpolated. A batch size between two
measured ones is priced from both, with a wider interval (`error_between`). Straight lines through two batch sizes are
wrong by up to a quarter of step / plain step at twice the larger one, and by up to 43 % at four times it, mostly too
fast (the shipped profiles, tests/simulate/profiles/test_batches_between.py). So sizes outside the measured ones are
refused with a CostError, which holds the command that measures them.
"""

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from msgspec import Meta, structs
from numpy.typing import ArrayLike, NDArray

from simulate.drafter_kinds import known_kind
from simulate.profiles.basis import Basis, basis_of, over_basis
from simulate.profiles.step_tables import BatchTimes as BatchTimes
from simulate.profiles.step_tables import Prefill, batch_shares, check_measured, interpolate, is_measured
from treeopt.comparison.mismatch_warnings import differing_models, names_weights
from treeopt.cost_model import CostParts, StepShape, far
from treeopt.display_methods import ValueMethods
from treeopt.errors import CostError
from treeopt.storage.json_records import parse, reading
from treeopt.storage.provenance import GREEDY, look, rule_in, same_choosing
from treeopt.storage.typed_records import AtLeastOne, Count, Index, NotNegative, Record, read_record
from treeopt.storage.user_files import read_text, shipped, write_text

if TYPE_CHECKING:
    import pandas as pd


class ProfileRecord(Record, frozen=True, tag_field="schema", tag="treeopt.profile/2"):
    """Measured step times of one target and drafter on one device."""

    batches: Annotated[tuple[BatchTimes, ...], Meta(description="by rising batch size, then by rising context")]
    context: Annotated[tuple[Index, Index], Meta(description="fewest and most tokens per sequence in the cache")]
    relative_error: Annotated[NotNegative, Meta(description="half-width of the 95 % interval of step / plain step")]
    meta: Annotated[dict[str, Any], Meta(description="provenance")]
    basis: Basis | None
    committed: Annotated[AtLeastOne, Meta(description="tokens per sequence and step that `rest` holds for")]
    captured: Annotated[
        tuple[Count, ...], Meta(description="tokens of a batch that CUDA graphs are captured for, rising")
    ]
    prefill: Prefill | None = None


SCHEMA = "treeopt.profile/2"
DOUBTFUL = (
    0.9  # share of the growth of the batch by which a plain step may grow: reading weights does not grow or shrink
)
SHORT_S, LONG_S = 1e-4, 2.0  # no plain step is shorter; few are longer at the smallest batch
NEW_FILE = "profile.json"  # named by the command that measures a profile again
NORMAL_95 = 1.96
# Standard deviation between measuring runs of step time / plain step time (README, "Predicted against measured").
RUN = 0.018
BETWEEN_RUNS = NORMAL_95 * math.sqrt(2) * RUN  # half-width of the 95 % interval of the difference of two runs
# Largest error of step / plain step at a batch size that was left out and interpolated, the basis fitted without it:
# over all sizes and all pairs around them in data/profiles and, of the 8B shape, in data/gpu: a small model's steps on
# a GPU are launches, and off by more (tests/simulate/profiles/test_batches_between).
ONE_THREAD = 0.092
OTHER_DEVICES = 0.156  # a GPU, or several threads of a processor


@dataclass(frozen=True)
class Profile(ValueMethods):
    """Measured step times: a `CostModel` for the batch sizes, tree sizes, levels and contexts that were measured.

    Attributes:
        batches: by rising batch size, and by rising context where one was measured at several.
        context: fewest and most tokens per sequence in the cache while measuring.
        relative_error: half-width of the 95 % interval of step time / plain step time, as a share.
        meta: provenance.
        basis: how time moves between measured sizes; None for straight lines.
        committed: tokens per sequence that a step is assumed to commit where a shape does not say.
        captured: rising batch totals of tokens that CUDA graphs are captured for. Steps are padded to the next of
            them; there is no padding beyond the largest, or if this is empty.
        prefill: prefill times; None if they were not measured.
    """

    batches: tuple[BatchTimes, ...]
    context: tuple[int, int]
    relative_error: float
    meta: Mapping[str, Any] = field(default_factory=dict)
    basis: Basis | None = None
    committed: float = 1.0
    captured: tuple[int, ...] = ()
    prefill: Prefill | None = None

    def __post_init__(self) -> None:
        """Check what the types of a file's fields leave open.

        Raises:
            CostError: names the field.
        """
        places = [(times.batch, times.context) for times in self.batches]
        if not places or places != sorted(set(places)):
            sizes = [batch for batch, _ in places]
            raise CostError(f"batches must have rising sizes, and rising contexts at one size, found {sizes}")
        for times in self.batches:
            if times.growth.keys() != self.growths:
                raise CostError(
                    f"growth must have the same kinds everywhere, found {sorted(self.growths)} at batch "
                    f"{self.batches[0].batch} and {sorted(times.growth)} at batch {times.batch}"
                )
        if not 0 <= self.context[0] <= self.context[1]:
            raise CostError(f"context must be a range of token counts, found {self.context}")
        if list(self.captured) != sorted(set(self.captured)):
            raise CostError(f"captured must be rising sizes, found {list(self.captured)}")

    @property
    def separable(self) -> bool:
        """True if drafting time does not depend on level widths, or if it is not known: see `widths_known`."""
        return not any(times.widths for times in self.batches)

    @property
    def widths_known(self) -> bool:
        """See `Measured`. Tables without widths are believed if the profile does not name its drafter."""
        if all(times.widths or times.widths_told for times in self.batches):
            return True
        kind = look(self.meta, "drafter", "kind")
        known = known_kind(str(kind))
        return kind is None or (known is not None and known.parallel)

    @property
    def apart(self) -> bool:
        """True if step times were measured separately at several contexts."""
        sizes = [times.batch for times in self.batches]
        return len(set(sizes)) < len(sizes)

    def priced_at(self, context: int | None = None) -> int | None:
        """See `Measured`. Return the mean over batch sizes, whose requests differ in length."""
        first = {times.batch: times.context for times in reversed(self.batches)}
        return context if context is not None else round(math.fsum(first.values()) / len(first)) or None

    def unmeasured(self, batches: Sequence[int]) -> list[int]:
        """See `Measured`."""
        measured, outside = {times.batch for times in self.batches}, self.outside(batches)
        return [batch for batch in batches if batch not in measured and batch not in outside]

    def outside(self, batches: Sequence[int]) -> list[int]:
        """See `Measured`."""
        return [batch for batch in batches if not self._sizes[0] <= batch <= self._sizes[-1]]

    def way_to(self, batches: Sequence[int]) -> tuple[str, str]:
        """See `Measured`."""
        way, command = way_to_measure(self.meta, [*self._sizes, *batches])
        outside, measured = (", ".join(map(str, numbers)) for numbers in (batches, self._sizes))
        lies = "lies" if len(batches) == 1 else "lie"
        return f"batch {outside} {lies} outside the profile, which measured batch {measured}; {way}", command

    @property
    def doubts(self) -> Sequence[str]:
        """Doubts about imported times: the import's, a plain step that the batch belies, or that takes no time."""
        if look(self.meta, "imported") is None:
            return ()
        plain = {times.batch: times.plain_s for times in sorted(self.batches, key=lambda times: -times.context)}
        smallest, largest = min(plain), max(plain)
        if plain[smallest] < SHORT_S:
            return (f"a plain step takes {1e3 * plain[smallest]:.3g} ms at batch {smallest}: were seconds given as ms",)
        if plain[smallest] > LONG_S:
            return (f"a plain step takes {plain[smallest]:.3g} s at batch {smallest}: were microseconds given as ms",)
        why = "in proportion or more: was tokens_s that of one request, not of all"
        if plain[largest] < plain[smallest] * DOUBTFUL:
            why = "less: was it divided by the batch"
        elif largest < 2 * smallest or plain[largest] <= plain[smallest] * largest / smallest * DOUBTFUL:
            doubt = look(self.meta, "imported", "doubt")
            return (doubt,) if isinstance(doubt, str) else ()
        return (
            f"a plain step takes {1e3 * plain[smallest]:.3g} ms at batch {smallest} and {1e3 * plain[largest]:.3g} ms "
            f"at batch {largest}, {why}",
        )

    def caveats(self, *, context: int | None = None, trace: Any = None, batches: Sequence[int] = ()) -> list[str]:
        """See `Measured`."""
        low, high = self.context
        middle = self.priced_at() or (low + high) // 2
        sentences = list(self.doubts)
        for key, origin in (("predicted", "predicted from sizes"), ("transfer", "carried over from another device")):
            if look(self.meta, key) is not None:
                error = f"a step over a plain step may be off by {self.relative_error:.0%}"
                sentences.append(f"step times are {origin}, not measured: {error}")
        if look(self.meta, "imported") is not None:
            sentences.append(
                "step times were imported from an engine: they do not say whether they belong to the trace's models, "
                "and a tree that branches is priced like a chain with the same number of nodes"
            )
        if context is not None and not self.apart and far(context, middle):
            sentences.append(
                f"step times were measured at mixed contexts of {low} to {high} tokens (mean {middle}), not at each "
                f"context: at {context} they may differ"
            )
        if between := self.unmeasured(batches):
            sizes, known = (", ".join(map(str, dict.fromkeys(numbers))) for numbers in (between, self._sizes))
            sentences.append(
                f"step times of batch {sizes} are interpolated between those of batch {known}, which were "
                "profiled: intervals are wider"
            )
        if not self.widths_known:
            sentences.append("the drafter's cost of wider levels was not measured: it is taken to be zero")
        measured = GREEDY | dict(self.meta)
        if not same_choosing(measured, trace):
            sentences.append(
                f"step times were measured with {rule_in(measured)} and the trace was recorded with {rule_in(trace)}: "
                "the rules differ in the time that they take"
            )
        return sentences

    @property
    def growths(self) -> Collection[str]:
        """See `CostModel.growths`."""
        return self.batches[0].growth.keys()

    def step_s(self, shapes: Sequence[StepShape]) -> NDArray[np.float64]:
        """See `CostModel.step_s`. Committing fewer tokens never saves more than half the time besides drafting."""
        seconds = np.empty(len(shapes))
        for batch, context in {(shape.batch, shape.context) for shape in shapes}:
            chosen = [i for i, shape in enumerate(shapes) if (shape.batch, shape.context) == (batch, context)]
            alike, tables = [shapes[i] for i in chosen], self._at(batch, context)
            tokens = self._padded(batch, [shape.tokens for shape in alike])
            try:
                for _, times in tables:
                    check_measured("tokens", tokens, times.rest, batch=times.batch)
                draft = sum(share * (times.drafts(alike) + times.growing(alike)) for share, times in tables)
            except CostError as error:
                raise CostError(f"{error}{self._remedy(batch, alike, tables)}") from error
            rest = self._rest_s(batch, tokens, tables, context)
            extra = np.array([0.0 if s.committed is None else s.committed - self.committed for s in alike])
            per_token = math.fsum(share * times.commit_s for share, times in tables)
            seconds[chosen] = draft + np.maximum(rest + extra * per_token, 0.5 * rest)
        return seconds

    def parts(self, *, batch: int, tokens: int, depth: int, width: int, context: int | None = None) -> CostParts:
        """See `CostModel.parts`. A level costs the time that one more level adds to drafting."""
        tables = self._at(batch, context)
        draft = sum(share * times.levels(depth, width) for share, times in tables)
        sizes = np.append(0.0, self._padded(batch, np.arange(1, tokens + 1)))
        inside = np.logical_and.reduce([is_measured(sizes, times.rest) for _, times in tables])
        verify = np.full(tokens + 1, np.inf)
        verify[inside] = self._rest_s(batch, sizes[inside], tables, context)
        return CostParts(verify, np.asarray(draft))

    def plain_s(self, *, batch: int, context: int | None = None) -> float:
        """See `CostModel.plain_s`."""
        return math.fsum(share * times.plain_s for share, times in self._at(batch, context))

    def error(self, shape: StepShape) -> float:
        """See `CostModel.error`. The error is that of the batch size if enough was measured there, else of the profile.

        The difference between two runs on one machine is added, which no single run shows, unless times are predicted;
        for dynamic trees also the spread of the time that drafting them takes. Between measured batch sizes and
        contexts the largest error around counts, and that of interpolating between batch sizes is added: of the device,
        or that of this profile's own inner sizes, left out, where it is larger. This is taken to grow with the square
        root of the logarithm of the factor between two sizes: of 16 such errors above 10 % in the shipped profiles 13
        grow at least as fast; with the logarithm itself 5 do.
        """
        tables = [times for _, times in self._at(shape.batch, shape.context)]
        errors = [error for times in tables if (error := times.error(shape.tokens)) is not None]
        spreads = [known.spread for times in tables for kind, known in times.growth.items() if kind == shape.growth]
        between = self._error_between(shape.batch) if self.unmeasured([shape.batch]) else 0.0
        runs = 0.0 if look(self.meta, "predicted") is not None else BETWEEN_RUNS
        measured = max(errors, default=self.relative_error)
        return math.hypot(measured, NORMAL_95 * max(spreads, default=0.0), runs, between)

    def left_out_error(self, batch: int, low: int, high: int) -> float:
        """Return the largest error of log(step / plain step) at a measured batch size, as two others around it give it.

        The trees have all measured sizes and depths that the three have, and are not padded to captured sizes.
        """
        alone, some = replace(self, captured=()), [t for t in self.batches if t.batch in (low, batch, high)]
        around = replace(alone, batches=tuple(t for t in some if t.batch != batch), basis=None)
        least, shallowest = max(t.rest[0][0] for t in some), max(t.draft[0][0] for t in some)
        most, deepest = min(t.rest[-1][0] for t in some), min(t.deepest for t in some)
        sizes = [size for t in some if t.batch == batch for size, _ in t.rest if least <= size <= most]
        depths = range(shallowest, deepest + 1)
        asked = [StepShape(batch, size, (1,) * depth) for size in sizes for depth in depths if depth < size]
        ratios = [known.step_s(asked) / known.plain_s(batch=batch) for known in (around, alone)]
        return float(np.abs(np.log(ratios[0] / ratios[1])).max(initial=0.0))

    @cached_property
    def _left_out(self) -> list[tuple[float, float]]:
        """The factor between the neighbours of each inner batch size, and the error at it if it is left out."""
        inner = zip(self._sizes, self._sizes[1:], self._sizes[2:], strict=False)
        return [(high / low, self.left_out_error(size, low, high)) for low, size, high in inner]

    def _error_between(self, batch: int) -> float:
        (_, low), (_, high) = batch_shares(batch, self._sizes)
        own = [error * math.sqrt(math.log(min(high / low, factor), factor)) for factor, error in self._left_out]
        return max([error_between(str(look(self.meta, "device"))), *own])

    def frame(self) -> "pd.DataFrame":
        """Return a table with one row per measured time.

        Columns: `batch`, `context` (tokens in the cache; 0: not measured separately), `part`, `size`, `unit` of the
        size, `time_s` (seconds). Parts: `plain` (a plain step), `draft` (a chain of `size` levels), `rest` (the rest of
        a step with `size` tokens per sequence), `width` (additional seconds of a level that is fed `size` nodes).
        """
        import pandas as pd

        columns = ["batch", "context", "part", "size", "unit", "time_s"]
        return pd.DataFrame([row for times in self.batches for row in times.rows()], columns=columns)

    def _remedy(self, batch: int, shapes: Sequence[StepShape], tables: list[tuple[float, BatchTimes]]) -> str:
        """Say which limits would avoid shapes that are too large; empty if none is too large, or if nothing fits."""
        tokens, depth = (max(sizes) for sizes in zip(*((s.tokens, len(s.widths)) for s in shapes), strict=True))
        sizes = self._padded(batch, np.arange(1, tokens + 1))  # index: nodes
        fitting = np.flatnonzero(np.logical_and.reduce([is_measured(sizes, times.rest) for _, times in tables]))
        deepest = min(times.deepest for _, times in tables)
        advice = ""
        if len(fitting) and 0 < fitting[-1] < tokens - 1:
            advice += f"; choose fewer nodes (search: --max-nodes {fitting[-1]})"
        if depth > deepest:
            advice += f"; choose fewer levels (search: --max-depth {deepest})"
        return advice

    @cached_property
    def _sizes(self) -> list[int]:
        """The measured batch sizes, rising."""
        return list(dict.fromkeys(times.batch for times in self.batches))

    def _at(self, batch: int, context: int | None) -> list[tuple[float, BatchTimes]]:
        """Return the tables around a batch size and a context with their shares above 0; without a context the first.

        Raises:
            CostError: either lies outside what was measured.
        """
        low, high = self.context
        if context is not None and not low <= context <= high:
            _, command = way_to_measure(self.meta, [context], option="--context")
            raise CostError(
                f"context {context} lies outside what the profile measured, {low} to {high} tokens: give a --context "
                "within (simulate: --prompt-tokens), or profile at that context" + (command and f" (`{command}`)")
            )
        if self.outside([batch]):
            way, command = self.way_to([batch])
            raise CostError(f"{way}{command and f' (`{command}`)'}")
        return [
            (outer * share, times)
            for outer, size in batch_shares(batch, self._sizes)
            for share, times in self._around(size, context)
        ]

    def _around(self, batch: int, context: int | None) -> list[tuple[float, BatchTimes]]:
        """Return the tables of a measured batch size on both sides of a context, with their shares above 0."""
        tables = [times for times in self.batches if times.batch == batch]
        contexts = [times.context for times in tables]
        place = float(np.interp(contexts[0] if context is None else context, contexts, range(len(tables))))
        first = int(place)
        shares = ((first, 1 - (place - first)), (first + 1, place - first))
        return [(share, tables[i]) for i, share in shares if share > 0]

    def _padded(self, batch: int, tokens: ArrayLike) -> NDArray[np.float64]:
        """Return tokens per sequence after padding to the next captured size; no padding beyond the largest."""
        wanted = np.asarray(tokens, dtype=np.float64)
        sizes = np.array([*self.captured, np.inf])
        padded = sizes[np.searchsorted(sizes, wanted * batch)]
        return np.where(np.isinf(padded), wanted, padded / batch)

    def _rest_s(
        self, batch: int, tokens: NDArray[np.float64], tables: list[tuple[float, BatchTimes]], context: int | None
    ) -> NDArray[np.float64]:
        """Return the seconds of everything but drafting; tokens must lie within the tables."""
        if self.basis is None and batch in self._sizes:
            return np.asarray(sum(share * interpolate(tokens, times.rest) for share, times in tables))
        rows, basis = tokens * batch, self.basis or self._basis_between
        ratio = sum(share * interpolate(rows / times.batch, over_basis(times, basis)) for share, times in tables)
        cached = math.fsum(share * self._nearest(times.batch, context) for share, times in tables)
        return np.asarray(ratio * basis.rest_s(tokens, batch=batch, context=cached))

    @cached_property
    def _basis_between(self) -> Basis:
        """The basis between batch sizes of profiles that hold none."""
        return basis_of(self.batches)

    def _nearest(self, batch: int, context: int | None) -> float:
        """Return the context nearest to `context` of those measured at a batch size."""
        contexts = [times.context for times in self.batches if times.batch == batch]
        return contexts[0] if context is None else min(max(context, contexts[0]), contexts[-1])


def way_to_measure(meta: Mapping[str, Any], sizes: Collection[int], *, option: str = "--batch") -> tuple[str, str]:
    """Return how a profile gets further batch sizes or contexts, in words, and the command.

    Words of the command in capitals are for the user to replace.

    Args:
        meta: provenance of the profile, which holds the command that made it.
        sizes: all batch sizes that it shall have, or contexts.
        option: `--context` for contexts.

    >>> recorded = {"command": "treeopt profile --target t --batch 1,4 --drafter d --output old.json"}
    >>> way_to_measure({"provenance": recorded}, (1, 4, 8))
    ('profile again with all of them', 'treeopt profile --target t --drafter d --batch 1,4,8 --output profile.json')
    """
    values = ",".join(map(str, sorted(set(sizes))))
    if look(meta, "imported") is not None:
        table = look(meta, "imported", "file") or "the table"
        again = "" if look(meta, "imported", "format") == "arms" else " and read it again with `treeopt times`"
        return f"add them to {table}{again}", ""
    words = str(look(meta, "provenance", "command") or "").split()
    words[:1] = ["treeopt" if word.endswith("__main__.py") else word.rpartition("/")[2] for word in words[:1]]
    if words[:2] == ["treeopt", "whatif"] and any(word.startswith("--profiles") for word in words):
        return "predict all of them", " ".join([*_without(words, option, "--output"), option, values])
    if words[:2] != ["treeopt", "profile"]:
        name = look(meta, "engine", "name") or "ENGINE"
        engine = f" --engine {name}" if look(meta, "engine") is not None else ""
        words = f"treeopt profile{engine} --target TARGET --drafter DRAFTER --prompts PROMPTS".split()
    kept = _without([word for word in words if word != "--force"], option, "--output")
    return "profile again with all of them", " ".join([*kept, option, values, "--output", NEW_FILE])


def _without(words: Sequence[str], *options: str) -> Iterator[str]:
    """Yield the words of a command line without these options and their values."""
    skipped = False
    for word in words:
        option, equals, _ = word.partition("=")
        if skipped:
            skipped = False
        elif option in options:
            skipped = not equals
        else:
            yield word


def error_between(device: str) -> float:
    """Return the half-width of the 95 % interval that interpolation between batch sizes adds to step / plain step.

    Args:
        device: device of the profile, as its provenance names it.

    >>> error_between("cpu, 1 threads") < error_between("NVIDIA H200")
    True
    """
    return ONE_THREAD if device == "cpu, 1 threads" else OTHER_DEVICES


def save_profile(profile: Profile, path: Path) -> None:
    """Write a profile as JSON, whole or not at all."""
    basis = profile.basis
    record = {"schema": SCHEMA, **asdict(replace(profile, basis=None))}
    for times in record["batches"]:
        if not times["errors"]:
            del times["errors"]
    if basis is not None:
        experts = None if basis.experts is None else asdict(basis.experts)
        record["basis"] = {"seconds": dict(basis.seconds), "experts": experts, "spread": basis.spread}
    write_text(path, json.dumps(record, indent=1) + "\n")


def load_profile(path: Path) -> Profile:
    """Read and check a profile.

    Raises:
        CostError: missing or broken; names file and field.
    """
    with reading(path, CostError):
        return Profile(**structs.asdict(read_record(parse(read_text(path), SCHEMA), ProfileRecord)))


def profile_of_trace(meta: Any, trace_file: Path | None = None, *, engine: str | None = None) -> tuple[Profile, str]:
    """Return the profile of the trace's target and drafter, and a sentence that names its file.

    Among several profiles, the first whose steps chose tokens by the trace's rule comes before the first of all.

    Args:
        meta: the provenance of the trace.
        trace_file: its file, whose folder is searched before the shipped profiles; None searches only those.
        engine: the engine that steps are wanted for, named in the error.

    Raises:
        CostError: there is no such profile.
    """
    profiles: dict[str, Profile] = {}
    beside = [] if trace_file is None else sorted(trace_file.parent.glob("*.json"))
    for path in (*beside, *sorted(shipped("profiles").glob("*.json"))):
        try:
            profile = load_profile(path)
        except CostError:
            continue  # a plan, a training log, ...
        if names_weights(meta) and not differing_models(profile.meta, meta):
            profiles.setdefault(path.name, profile)
    if not profiles:
        where = "" if trace_file is None else f"{trace_file}: "
        raise CostError(
            f"{where}no profile of this target and drafter was found; name one with --profile: measured by `treeopt "
            f"profile --engine {engine or 'ENGINE'}` or, in treeopt's own loop, `treeopt profile`; made by `treeopt "
            "times` from an engine's step times; or predicted from data sheets by `treeopt whatif --profiles`"
        )
    name = min(profiles, key=lambda name: not same_choosing(GREEDY | dict(profiles[name].meta), meta))
    graphs = ", measured with CUDA graphs" if look(profiles[name].meta, "graphs") else ""
    return profiles[name], f"profile: {name}{graphs}"
