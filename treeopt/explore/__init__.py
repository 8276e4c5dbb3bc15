"""The local page of `treeopt explore`: controls, the library's answer to them, and the server that shows it.

* `offered_files`: traces, profiles, models and devices that the page offers; it reads no others.
* `questions`: the state of the controls as arguments of the library.
* `answers`: the library's answer, with what it reports on the way.
* `token_prices`: the price of a million tokens.
* `answer_parts`: what the page shows of an answer, in marimo's parts.
* `downloads`: the plan, the engine's configuration and the report as files.
* `controls`: the controls.
* `marimo_page`: the page itself, a marimo app.
* `local_server`: the server on 127.0.0.1.
"""
