"""The page of results, from files: what needs rooms of `treeopt` and `simulate` together.

* `read_results`: `report_page`, results that commands wrote, read and put on one page.
* `result_files`: the files, each read once.
* `device_charts`: charts of profiles and devices.
"""
