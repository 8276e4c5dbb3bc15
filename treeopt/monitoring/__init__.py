"""Monitoring: compare a running server with the plan that it was set up by.

* `change_detector`: a sequential test that a ratio stays in a band, with a bound on the rate of false alarms.
* `prometheus_watch`: totals of servers' Prometheus counters and their growth; acceptance and step times beside those of
  a plan, as a state that survives between runs; the Prometheus textfile of both.
"""
