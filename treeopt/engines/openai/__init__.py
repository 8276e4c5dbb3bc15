"""Any OpenAI-compatible server, which runs already.

* `driver`: one server for each draft length.
"""

from treeopt.engines.engine import Engine

ENTRY = Engine(
    name="openai",
    title="an OpenAI-compatible server",
    driver="treeopt.engines.openai.driver:OpenAI",
    launched=False,
)
