"""Values in notebooks: summaries in HTML, plots, files. The methods of `treeopt.value_methods` call this room.

* `html_summary`: a summary as HTML, escaped, with the colours of the page around it; or as text.
* `value_summaries`: trees, traces, plans and profiles as summaries.
* `record_summaries`: validations and other records as summaries.
* `value_html`: HTML and plain text of each kind of value.
* `value_plots`: charts of each kind of value, drawn into axes.
* `value_files`: values written to files and records read from them.
"""
