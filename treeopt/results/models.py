"""The results of `treeopt models`: the models whose names `--target` takes, with their sizes."""

from treeopt.results.kinds import ResultKind
from treeopt.results.tables_and_numbers import Column

COLUMNS = (
    Column("model", align="left", key=True, field="name"),
    Column("billions", field="billions", digits=2),
    Column("active", field="active_billions", digits=2),
    Column("K/V B/token", field="kv_bytes", digits=0, drop=1),
    Column("state MB", field="state_mb", digits=1, drop=2),
    Column("not covered", align="left", field="refused", default="", drop=3),
)
ENTRY = ResultKind(
    name="models",
    title="Models that are known by name",
    command="models",
    rows=lambda record: record["models"],
    columns=COLUMNS,
    answers=lambda record: [
        f"{sum(not row['refused'] for row in record['models'])} of {len(record['models'])} models have a price; give "
        "others' sizes by hand: treeopt whatif --sizes."
    ],
)
