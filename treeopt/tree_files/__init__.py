"""Tree files: read the trees of other programs and of papers.

* `choice_lists`: `read_tree`: lists of rank paths (Medusa's choices), also in engines' configurations; growmaps too.
* `literals`: the value that a text spells: JSON, Python, an option, YAML.
* `python_values`: the values that Python assigns.
* `value_names`: values by name, of which a text may have several.
* `growmaps`: the growmap dictionaries of Sequoia and UMbreLLa.
* `paper_trees`: published trees by name.
"""
