"""Prompts and conversations."""
