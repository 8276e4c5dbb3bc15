"""Prompts and conversations: reading them, and turning them into tokens.

* `prompt_files`: files of prompts, texts to continue or conversations to answer.
* `data_files`: records and texts of JSON, JSON lines, parquet, arrow, saved data sets, and folders.
* `reading_report`: what was read, what was passed over, and why.
* `conversation_forms`: ShareGPT, OpenAI messages and Spec-Bench turns, with tools and thoughts.
* `record_forms`: other data sets' records, such as Alpaca's, LMSYS' or UltraChat's, as messages.
* `message_parts`: contents in parts.
* `tool_calls`: tool calls and offered tools.
* `conversations`: conversations as text and tokens.
"""
