"""The page of results for people: plots, and one HTML page that needs no other file.

* `plots`: plots of plans, traces and records.
* `page_sections`: results as sections of the HTML page.
* `html_page`: the HTML page.
"""
