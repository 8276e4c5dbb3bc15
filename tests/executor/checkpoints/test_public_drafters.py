"""Public configurations of drafters, as small random checkpoints: the page says what is read and what is refused."""

import json
import runpy
from collections import Counter
from pathlib import Path

DOCS = Path("docs")


def test_the_page_is_what_the_readers_say():
    """`python docs/generate_public_drafters.py` writes it again."""
    made = runpy.run_path(str(DOCS / "generate_public_drafters.py"))
    page = made["page"]()
    assert (DOCS / "reference" / "public_drafters.md").read_text("utf-8") == page
    entries = json.loads((DOCS / "reference" / "public_drafters.json").read_text("utf-8"))
    assert len(entries) >= 40
    results = Counter(line.split(" | ")[2] for line in page.splitlines() if line.startswith("| ") and "---" not in line)
    assert results["read: eagle3"] >= 25
    assert results["read: eagle"] >= 4
    assert results["read: medusa"] == 2
    assert results["read: hydra"] == 1
    # Experts and MLA are not supported; the trainers' own configurations of P-EAGLE, DFlash and MTP name no mask token,
    # and no target.
    assert results["refused"] == sum(e["names"] in ("experts", "peagle", "dflash", "mtp", "mla") for e in entries) - 1
    refused = [line for line in page.splitlines() if "| refused |" in line]
    assert all("not supported" in line or "must be" in line for line in refused)
