"""Tree files: read the trees of other programs and of papers.

* `choice_lists`: `read_tree`: lists of rank paths (Medusa's choices) in Python, JSON or text; growmaps too.
* `growmaps`: the growmap dictionaries of Sequoia and UMbreLLa.
* `paper_trees`: published trees by name.
"""
