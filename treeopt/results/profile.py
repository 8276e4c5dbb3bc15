"""Profiles: the measured range of step times, by batch size and context."""

from collections.abc import Iterator
from typing import Any

from treeopt.results.kinds import ResultKind
from treeopt.results.tables_and_numbers import BATCH, Block, Column, Line, Table
from treeopt.results.words import describe_measurement
from treeopt.storage.provenance import look

COLUMNS = (
    BATCH,
    Column(
        "context", "tokens", meaning="Mean tokens per sequence in the cache; 0: not measured apart.", field="context"
    ),
    Column("plain step", "ms", meaning="Time of one step of plain decoding.", field="plain_s", digits=2),
    Column("smallest", "tokens", meaning="Fewest verified tokens per sequence that were measured.", field="fewest"),
    Column(
        "its step", "ms", meaning="Time of a step except drafting, at the fewest tokens.", field="fewest_s", digits=2
    ),
    Column("largest", "tokens", meaning="Most verified tokens per sequence that were measured.", field="most"),
    Column("its step", "ms", meaning="Time of a step except drafting, at the most tokens.", field="most_s", digits=2),
    Column("drafting 1 level", "ms", meaning="Time of drafting a chain of one token.", field="first_level_s", digits=2),
    Column("deepest", "levels", meaning="Most drafted levels that were measured.", field="levels"),
    Column("drafting them", "ms", meaning="Time of drafting a chain of that depth.", field="levels_s", digits=2),
    Column("error", "± %", meaning="Half of the 95 % interval of step over plain step.", field="error", digits=1),
)


def _rows(profile: Any) -> Iterator[dict[str, Any]]:
    """Yield the ends of what was measured at each batch size and context."""
    for times in profile.batches:
        error = profile.relative_error if times.relative_error is None else times.relative_error
        (fewest, fewest_s), (most, most_s) = times.rest[0], times.rest[-1]
        yield {
            "batch": times.batch,
            "context": times.context,
            "plain_s": times.plain_s,
            "fewest": fewest,
            "fewest_s": fewest_s,
            "most": most,
            "most_s": most_s,
            "first_level_s": times.draft[0][1],
            "levels": times.draft[-1][0],
            "levels_s": times.draft[-1][1],
            "error": error,
        }


def _tables(profile: Any, **_: Any) -> Iterator[Block]:
    yield Table.of("measured step times", COLUMNS, _rows(profile))
    left_out = look(profile.meta, "left_out_sizes", "median_error")
    if isinstance(left_out, float):
        yield Line("note", f"Sizes left out in turn are predicted with a median error of {left_out:.1%}.")


ENTRY = ResultKind(
    name="profile",
    title="Step times",
    models=lambda profile: profile.meta,
    question="How long does a step take?",
    place=6,
    command="profile",
    schema="treeopt.profile/2",
    record="simulate.profiles.profile:ProfileRecord",
    value="simulate.profiles.profile:Profile",
    read="simulate.profiles.profile:load_profile",
    write="simulate.profiles.profile:save_profile",
    rows=_rows,
    columns=COLUMNS,
    answers=lambda profile: [
        f"A plain step takes {', '.join(f'{t.plain_s * 1e3:.2f} ms at batch {t.batch}' for t in profile.batches)}."
    ],
    tables=_tables,
    remarks=lambda profile, **_: [Line("condition", f"Measured: {describe_measurement(profile.meta)}.")],
    charts={"steps": "treeopt.api.device_charts:profile_chart"},
)
