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

# Name of a command -> module that holds it, as an attribute of the same name.
COMMANDS = {
    "search": "treeopt.cli.commands.search",
    "decode": "treeopt.cli.commands.decode",
    "export": "treeopt.cli.commands.export",
    "trace": "treeopt.cli.commands.trace",
    "profile": "treeopt.cli.commands.profile",
    "times": "treeopt.cli.commands.times",
    "simulate": "treeopt.cli.commands.simulate",
    "verdict": "treeopt.cli.commands.verdict",
    "whatif": "treeopt.cli.commands.whatif",
    "models": "treeopt.cli.commands.models",
    "compare": "treeopt.cli.commands.compare",
    "tune": "treeopt.cli.commands.tune",
    "validate": "treeopt.cli.commands.validate",
    "watch": "treeopt.cli.commands.watch",
    "train": "treeopt.cli.commands.train",
    "report": "treeopt.cli.commands.report",
    "explore": "treeopt.cli.commands.explore",
    "doctor": "treeopt.cli.commands.doctor",
}
