"""Time: how long a step takes and what a run of steps adds up to."""
