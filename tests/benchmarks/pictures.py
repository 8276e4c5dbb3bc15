"""Pictures of README and docs, drawn from shipped files: `python -m tests.benchmarks.pictures` writes them again."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from treeopt.charts.marks import Axis, as_svg, line, points, rule, series_of, titled
from treeopt.charts.speed_charts import SPEEDUP, agreement
from treeopt.storage.user_files import shipped, write_text

if TYPE_CHECKING:
    import altair as alt

FOLDER = Path(__file__).resolve().parent.parent.parent / "docs" / "pictures"


def verified_widths() -> "alt.LayerChart":
    """Return the speedup of DFlash by the tokens of a block that a step verifies, by length of block and batch size."""
    blocks = json.loads(shipped("benchmarks/one-pass-cpu.json").read_text("utf-8"))["blocks"]
    rows = [
        {"series": f"block of {cell['slots']}, batch {batch}", "verified": cell["verified"], "speedup": speedup}
        for batch in ("1", "4")
        for cell in blocks
        for speedup in [cell["speedup"][batch]]
    ]
    x, series = Axis("verified", "tokens verified per step", ticks=range(1, 16), limits=(0.5, 15.5)), series_of(rows)
    best = max(rows, key=lambda row: row["speedup"])
    return titled(
        [*rule(y=1.0), *line(rows, x, SPEEDUP, series), *points(rows, x, SPEEDUP, series)],
        "Block length and verified width",
        "DFlash on the shipped target: 200 requests replayed, step times of one thread of an Intel Xeon. Dashed: plain "
        "decoding. Differences between blocks are within the error of step times.",
        words=f"The fastest is a {best['series']}, of which {best['verified']} tokens are verified: more lose.",
    )


def pictures() -> dict[str, str]:
    """Return the pictures as SVG, by name."""
    record = json.loads(shipped("validations/medusa-cpu.json").read_text("utf-8"))
    charts = {"predicted_and_measured.svg": agreement(record), "verified_width.svg": verified_widths()}
    return {name: as_svg(chart.to_dict()) + "\n" for name, chart in charts.items()}


if __name__ == "__main__":
    for name, picture in pictures().items():
        write_text(FOLDER / name, picture)
