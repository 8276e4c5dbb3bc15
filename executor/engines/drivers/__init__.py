"""Drivers: one engine a file.

* `openai`: any OpenAI-compatible server that runs already.
* `vllm`: vLLM's server, launched by draft length.
"""
