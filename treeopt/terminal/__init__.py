"""Results on a terminal of any width.

* `terminal_blocks`: blocks printed on a terminal.
* `table_layout`: tables as lines that fit a width; no cell is cut.
* `terminal_text`: the terminal, and lines of text that fit it.
"""
