"""Charts in altair: what the report, the notebooks and the local page draw.

* `marks`: colours; the pieces of charts: axes, series, lines, points; charts as SVG and as figures of a page.
* `speed_charts`: speedup by batch size; drafters side by side; predicted and measured; throughput and latency; servers.
* `trace_charts`: acceptance by depth and domain, tau by tree size, learning curves, trees; those of plans.
* `matplotlib_axes`: speedup and tau, drawn into matplotlib's axes.
"""
