"""Write the tables of layouts and of recipes from the registry of drafters (make reference)."""

import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

FOLDER = Path(__file__).parent
OPTIMISER = {"beta1", "beta2", "clip", "clip_by", "floor", "learning_rate", "schedule", "warmup", "weight_decay"}
SHOWN = {"name", "kind", "depths", "coefficient", "decay"}  # in columns of their own


def layouts() -> Iterator[list[str]]:
    """Yield a row per kind that has files."""
    from simulate.drafter_kinds import DRAFTERS

    yield ["drafter", "layouts that are read", "`--layout` of what is written"]
    for kind in sorted(DRAFTERS.values(), key=lambda kind: kind.title.lower()):
        if kind.files is not None:
            yield [kind.title, kind.files.known_as, ", ".join(f"`{name}`" for name in kind.files.layouts)]


def recipes() -> Iterator[list[str]]:
    """Yield a row per recipe; its optimiser's settings are left out."""
    from executor.drafters.base import recipe
    from simulate.drafter_kinds import DRAFTERS

    yield ["recipe", "drafter", "depths", "terms of the loss", "weight at depth k", "other settings"]
    for name, each in recipe.recipes().items():
        weight = f"{each.coefficient:.3g}" + (f" x {each.decay:.3g}^k" if each.decay != 1 else "")
        others = (
            f"`{field.name}={getattr(each, field.name)}`"
            for field in fields(each)
            if field.name not in SHOWN | OPTIMISER and field.name.removesuffix("_weight") not in recipe.TERMS
            if getattr(each, field.name) != field.default
        )
        terms = " + ".join(f"{factor:g} `{term}`" for term, factor, _ in each.terms())
        yield [f"`{name}`", DRAFTERS[each.kind].title, str(each.depths), terms, weight, ", ".join(others)]


PAGES = {"reference/checkpoint_layouts.md": layouts, "guides/train_drafters.md": recipes}


def written(page: str) -> str:
    """Return a page with its table made again: the first one, whose header tells it."""
    header, *rows = (f"| {' | '.join(row)} |".replace("|  |", "| |") for row in PAGES[page]())
    table = "\n".join([header, "|---" * (header.count("|") - 1) + "|", *rows, ""])
    text = (FOLDER / page).read_text("utf-8")
    return re.sub(rf"^{re.escape(header)}\n(\|.*\n)+", lambda _: table, text, count=1, flags=re.MULTILINE)


if __name__ == "__main__":
    sys.path.insert(0, str(FOLDER.parent))
    for page in PAGES:
        (FOLDER / page).write_text(written(page), "utf-8")
