"""The page of results for people: one HTML file that needs no other.

* `page_parts`: the page as values: questions, findings, files that could not be read.
* `page_sections`: results as findings: their tables and charts.
* `trace_section`: traces as findings.
* `measured_blocks`: tables of profiles and of engines' acceptance checks.
* `damaged_field`: the field at which a damaged record cannot be read.
* `slider_model`: the formulas of the sliders.
* `html_page`: the HTML; its template, style and scripts lie in the folder `page_files`.
"""
