"""Replay: which drafted tokens a tree gets accepted along a trace."""
