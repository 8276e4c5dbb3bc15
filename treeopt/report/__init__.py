"""The page of results for people: one HTML file that needs no other.

* `slider_model`: the formulas of the sliders, and their data.
* `html_page`: the HTML; its template, style and scripts lie in the folder `page_files`.
"""
