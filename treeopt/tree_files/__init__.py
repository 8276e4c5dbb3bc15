"""Tree files: read the trees of other programs and of papers.

* `choice_lists`: `read_tree`: lists of rank paths (Medusa's choices), also in engines' configurations; growmaps.
* `tree_text`: the values that a text spells: JSON, Python, YAML, the first bracket.
* `paper_trees`: published trees by name.
"""
