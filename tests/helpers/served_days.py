"""One day of a simulated server, from its trace, workload and trees."""

from typing import Any

from simulate.runs.server import Decoding, Served, serve_day
from simulate.runs.server_load import Workload
from simulate.runs.tree_switching import Switching
from treeopt.cost_model import CostModel
from treeopt.traces.trace import Trace


def serve(
    trace: Trace, work: Workload, switching: Switching, cost: CostModel, *, rows: int, pad: bool = False, **how: Any
) -> Served:
    """Serve the workload; `how` is as for `serve_day`."""
    return serve_day(Decoding(trace, switching, cost, rows=rows, pad=pad), work, rows=rows, **how)
