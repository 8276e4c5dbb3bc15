"""Columns of several kinds of results; those of high numbers leave narrow terminals first."""

from treeopt.results.blocks import Column

BATCH = Column("batch", key=True, field="batch")
NODES = Column("nodes", drop=4, meaning="Drafted tokens in the tree.", field="nodes")
DEPTH = Column("depth", drop=8, meaning="Drafted tokens on the longest path.", field="depth")
TAU = Column(
    "tau",
    drop=3,
    meaning="Tokens committed per step and sequence, bonus counted.",
    field="tau",
    digits=2,
    exact=True,
)
STEP = Column("step", "ms", drop=6, meaning="Time of one step: draft, verify, accept.", field="step_s", digits=2)
PLAIN_STEP = Column("plain", "ms", drop=7, meaning="Time of one step of plain decoding.", field="plain_s", digits=2)
TOKENS_S = Column("tokens/s", drop=2, meaning="Tokens per second of the whole batch.", field="tokens_s")
SPEEDUP = Column("speedup", field="speedup", digits=2, exact=True)
