"""Prompts and conversations: reading them, and turning them into tokens.

* `prompt_files`: files of prompts, texts to continue or conversations to answer.
* `data_files`: files and folders of records and texts: which are read, and which are passed over.
* `record_files`: records of JSON, JSON lines and tables of cells.
* `parquet_files`: records of parquet, arrow and saved data sets.
* `reading_report`: what was read, what was passed over, and why.
* `conversation_forms`: ShareGPT, OpenAI messages and Spec-Bench turns, with tools and thoughts.
* `record_forms`: other data sets' records, such as Alpaca's, LMSYS' or UltraChat's, as messages.
* `message_parts`: contents in parts.
* `tool_calls`: tool calls and offered tools.
* `conversations`: conversations as text and tokens.
"""
