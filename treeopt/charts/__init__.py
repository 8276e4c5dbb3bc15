"""Charts as values, and two renderers: what the report, the notebooks and the local page draw.

* `chart`: the value: axes, layers, conditions, text for readers who cannot see it.
* `palette`: colours and shapes, in light and dark.
* `vega_lite`, `matplotlib_axes`: the renderers: interactive, and into matplotlib's axes or an SVG.
* `tree_chart`: a tree, drawn as a tree.
* `acceptance_charts`: acceptance by depth and rank, and by domain.
* `tau_chart`, `learning_chart`: tau against nodes; tau against the number of requests.
* `speedup_charts`: speedup against batch; drafters side by side.
* `agreement_charts`: predicted against measured.
* `step_time_chart`, `roofline_chart`: step time against verified tokens; devices' rooflines.
* `latency_charts`: throughput against latency.
* `server_charts`: a server's load over time, rates and latencies.
* `page_charts`: traces and plans, as pages and notebooks show them.
"""
