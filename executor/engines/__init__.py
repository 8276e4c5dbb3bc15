"""Engines: other programs' inference engines, driven, timed and recorded; they need their own environments.

* `engine`: the interface of every driver, and the values that pass through it: requests, draft settings, steps.
* `openvino`, `openvino_worker`: OpenVINO GenAI; the driver here, the worker under the engine's own Python.
* `worker_process`: a child process that speaks JSON lines, started and stopped as a group.
"""
