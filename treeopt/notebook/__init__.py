"""Values in notebooks and files. The methods of `treeopt.value_methods` call this room.

* `value_html`: a value as HTML and as lines of text.
* `value_files`: tables, charts and files of values; records read from files.
"""
