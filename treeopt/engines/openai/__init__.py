"""Any OpenAI-compatible server, which runs already.

* `driver`: one server for each draft length.
"""
