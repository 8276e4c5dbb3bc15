"""The page of results, from files: what needs rooms of `treeopt` and `simulate` together.

* `read_results`: `report_page`, results that commands wrote, read and put on one page.
* `result_files`: the files, each read once.
* `unreadable_files`: what files are that are no results.
* `device_charts`: charts of profiles and devices.
* `slider_inputs`: the data of the sliders.
"""
