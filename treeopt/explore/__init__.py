"""The local page of `treeopt explore`: controls, the library's answer to them, and the server that shows it.

* `answers`: the offered files, the controls' state as a question, and the library's answer, also as files.
* `answer_parts`: what the page shows of an answer, in marimo's parts, with the price of tokens.
* `controls`: the controls.
* `marimo_page`: the page itself, a marimo app.
* `local_server`: the server on 127.0.0.1.
"""
