"""The pictures that README shows, drawn from shipped files: `python -m tests.benchmarks.pictures` writes them again."""

import json
from pathlib import Path

from treeopt import load_profile, load_trace, search
from treeopt.charts.marks import as_svg
from treeopt.charts.speed_charts import agreement, speedups
from treeopt.storage.atomic_files import shipped, write_text

FOLDER = Path(__file__).resolve().parent.parent.parent / "docs" / "pictures"


def pictures() -> dict[str, str]:
    """Return the pictures as SVG, by name."""
    trace = load_trace(shipped("traces/medusa-t0.npz"), ranks_only=True)
    profile = load_profile(shipped("profiles/medusa-cpu.json"))
    plan = search(trace, profile, batch=(1, 2, 4, 8, 16), solver_work=0)
    record = json.loads(shipped("validations/medusa-cpu.json").read_text("utf-8"))
    return {
        "speedup_by_batch.svg": as_svg(speedups(plan).to_dict()) + "\n",
        "predicted_and_measured.svg": as_svg(agreement(record).to_dict()) + "\n",
    }


if __name__ == "__main__":
    for name, picture in pictures().items():
        write_text(FOLDER / name, picture)
