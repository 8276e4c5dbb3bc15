"""Importers: chains that other programs counted, as traces; they run no model.

* `chain_counts`: a chain's counts by position or step, and the trace made of it (`Chain`, `chain_trace`).
* `made_up_texts`: the texts that stand for counted steps, so that their ends bias nothing.
* `synthetic_trace`: a trace made of frequencies, in random order.
* `source_file`: reading a source, and its entry in a trace's `meta`.
* `readers`: the formats, one kind of source per file.
"""
