"""Connections: processes of engines and clients of their servers; nothing here knows one engine from another.

* `engine_supervisor`: the program between treeopt and an engine that ends all its processes.
* `servers`: servers' processes, a few alive at a time by draft length, and what drivers share that launch them.
* `completions_client`: the OpenAI completions API, streamed: times of chunks, steps of chunks, requests in flight.
* `step_worker`: the program that decodes by single steps under an engine's own Python.
* `worker_driver`: what drivers of such workers share, and the child process that speaks JSON lines.
"""
