"""Monitoring: compare a running server with the plan that it was set up by.

* `change_detector`: a sequential test that a ratio stays in a band, with a bound on the rate of false alarms.
* `server_counters`: totals of a server's counters at a scrape, and their growth since the one before.
* `plan_watch`: acceptance and step times of servers beside those of a plan, as a state that survives between runs; the
  Prometheus textfile of both.
"""
