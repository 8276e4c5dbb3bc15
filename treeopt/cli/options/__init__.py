"""Options that several commands share, and the files that they load."""
