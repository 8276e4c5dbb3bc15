"""Tree files: read the trees of other programs and of papers.

* `choice_lists`: rank paths and growmaps of other programs; published trees by name.
* `tree_text`: the values that a text spells: JSON, Python, YAML, the first bracket.
"""
