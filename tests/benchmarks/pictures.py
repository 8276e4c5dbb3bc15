"""The picture that README shows, drawn from shipped files: `python -m tests.benchmarks.pictures` writes it again."""

import json
from pathlib import Path

from treeopt.charts.marks import as_svg
from treeopt.charts.speed_charts import agreement
from treeopt.storage.atomic_files import shipped, write_text

FOLDER = Path(__file__).resolve().parent.parent.parent / "docs" / "pictures"


def pictures() -> dict[str, str]:
    """Return the picture as SVG, by name."""
    record = json.loads(shipped("validations/medusa-cpu.json").read_text("utf-8"))
    return {"predicted_and_measured.svg": as_svg(agreement(record).to_dict()) + "\n"}


if __name__ == "__main__":
    for name, picture in pictures().items():
        write_text(FOLDER / name, picture)
