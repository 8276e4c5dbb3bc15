"""Recording: collect a trace of a drafter on what the target writes."""
