"""The decoding loop: draft, verify, accept, commit."""
