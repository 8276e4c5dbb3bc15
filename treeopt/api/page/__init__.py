"""The page of results, from files: what needs rooms of `treeopt` and `simulate` together.

* `read_results`: `report_page`, results that commands wrote, read and put on one page.
* `chart_inputs`: charts of profiles and devices.
* `slider_inputs`: the data of the sliders.
"""
