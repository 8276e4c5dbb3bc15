"""The page of results for people: one HTML page that needs no other file.

* `page_sections`: results as sections of the HTML page.
* `html_page`: the HTML page.
"""
