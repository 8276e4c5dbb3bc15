"""The local page of `treeopt explore`: controls, the library's answer to them, and the server that shows it.

* `offered_files`: traces, profiles, models and devices that the page offers; it reads no others.
* `answers`: the controls' state as a question, the library's answer with what it reports on the way, and its files.
* `answer_parts`: what the page shows of an answer, in marimo's parts, with the price of tokens.
* `controls`: the controls.
* `marimo_page`: the page itself, a marimo app.
* `local_server`: the server on 127.0.0.1.
"""
