"""From a trace and a cost model to a plan."""
