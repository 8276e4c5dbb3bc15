"""Prompts and conversations: reading them, and turning them into tokens.

* `prompt_files`: files of prompts, texts to continue or conversations to answer, as text and tokens.
* `chat_template`: conversations as text and tokens by the tokenizer's template.
* `data_files`: files and folders of records and texts: JSON, tables, and which are passed over.
* `conversation_forms`: OpenAI messages, ShareGPT, questions and prompts, with tools and thoughts.
* `message_parts`: contents in parts, tool calls and offered tools; the report of a reading.
"""
