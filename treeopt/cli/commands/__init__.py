"""Commands: the list of all, one command per file; each parses its options, calls the Python API and prints.

* `compare`: drafters side by side on the same prompts.
* `decode`: continue prompts with a target, a drafter and a tree.
* `doctor`: what is installed, what the machine is, and whether the decoding loop is right on it.
* `explore`: a local page that calls the library while its controls are moved.
* `export`: hand a plan to an inference engine.
* `models`: the models that are known by name, and their sizes.
* `profile`: measure step times.
* `report`: results that other commands wrote, as one HTML page.
* `search`: the fastest tree for each batch size.
* `simulate`: a run of many requests, or a server's days.
* `times`: step times of an inference engine, as a profile.
* `trace`: collect a trace, import one, describe one, join several, split one.
* `train`: train a drafter for a target by a published recipe, with changes by name.
* `tune`: the best draft length of an engine, by measuring.
* `validate`: predicted against measured.
* `verdict`: no speculation, a fixed length, a schedule or adaptive verification, by load.
* `watch`: whether running servers still do what their plan says.
* `whatif`: the best tree on devices, batch sizes and contexts that were not measured.
"""

NAMES = """search decode export trace profile times simulate verdict whatif models compare tune validate watch train
    report explore doctor"""
# Name of a command -> module that holds it, as an attribute of the same name; in the order of the main job.
COMMANDS = {name: f"treeopt.cli.commands.{name}" for name in NAMES.split()}
