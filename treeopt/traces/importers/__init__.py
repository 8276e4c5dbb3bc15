"""Importers: acceptance that other programs counted, as traces; they run no model.

* `trace_source`: the kinds of sources (`SOURCES`), and the trace of a file of any kind (`import_trace`).
* `sources`: the kinds, one per file.
* `chain_counts`: a chain's counts by position or step, and the trace made of it (`Chain`, `chain_trace`).
* `acceptance_curves`: traces of a rate, rates by position, an accepted length or a published curve, and their law.
* `synthetic_trace`: a trace made of frequencies, in random order.
* `source_file`: reading a source, and its entry in a trace's `meta`.
"""
