"""Search algorithms, one a file; each says what it proves."""
