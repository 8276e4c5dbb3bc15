"""Prompts and conversations: reading them, and turning them into tokens.

* `prompt_files`: files of prompts, texts to continue or conversations to answer.
* `conversations`: ShareGPT, OpenAI messages and Spec-Bench turns; chat templates.
"""
