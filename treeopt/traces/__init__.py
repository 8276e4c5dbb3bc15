"""Traces: the recorded acceptance of a drafter, its file format, its checks, shards and merging."""
