"""Drafters behind one interface, one kind a file."""
