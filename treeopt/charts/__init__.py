"""Charts in altair: what the report, the notebooks and the local page draw.

* `theme`: colours, shapes and Vega-Lite's settings, in light and dark.
* `marks`: the pieces of charts: axes, series, lines, points with intervals; charts as SVG and as figures.
* `speedup_charts`: speedup by batch size; drafters side by side; predicted and measured.
* `latency_charts`: throughput and latency; a server's load, rates and latencies.
* `trace_charts`: acceptance by depth and domain, tau by tree size, learning curves, trees; those of plans.
* `matplotlib_axes`: speedup and tau, drawn into matplotlib's axes.
"""
