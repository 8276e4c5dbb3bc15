"""The library's messages in the page's words: options of the command line become the controls that stand for them."""

import re

# Option of the command line -> label of the control.
LABELS = {
    "--batch": "Batch sizes",
    "--max-nodes": "Nodes, at most",
    "--max-depth": "Depth, at most",
    "--max-tpot-ms": "Milliseconds per token, at most",
    "--objective": "Objective",
    "--for": "Engine",
    "--trace": "Trace",
    "--profile": "Profile",
    "--policy": "Dynamic trees",
    "--hardware": "Device",
    "--price": "Price of a device per hour",
    "--method": "Drafting method",
    "--model": "Checkpoint of the drafter",
}
# Option that the page has no control for -> the command that takes it.
ELSEWHERE = {
    "--context": "treeopt search",
    "--near": "treeopt search",
    "--kind": "treeopt whatif",
    "--link": "treeopt whatif",
    "--like": "treeopt whatif",
    "--drafter": "treeopt explore",
    "--target": "treeopt explore",
    "--schedule-bounds": "treeopt export",
}
BARE = {"max-nodes": "--max-nodes", "max-depth": "--max-depth", "max-tpot": "--max-tpot-ms"}  # names in messages
COMMAND = re.compile(r"(`[^`]* [^`]*`)")  # a whole command line, which stays as it is
OPTION = re.compile(r"(?:(give|omit|with|search:) )?`?(?<![\w-])(--[a-z-]+|max-(?:nodes|depth|tpot)\b)`?")
VERBS = {"give": "set ", "omit": "change ", "with": "in ", "search:": ""}


def in_page_words(message: str) -> str:
    """Return a message whose options are the page's controls; command lines in backticks stay.

    >>> in_page_words("vLLM needs a method: give --method")
    'vLLM needs a method: set "Drafting method"'
    >>> in_page_words("give --context, or profile at that context (`treeopt profile --batch 4`)")
    'give `treeopt search --context`, or profile at that context (`treeopt profile --batch 4`)'
    """
    parts = COMMAND.split(message)
    return "".join(part if COMMAND.fullmatch(part) else OPTION.sub(_label, part) for part in parts)


def _label(found: re.Match[str]) -> str:
    verb, option = found[1], BARE.get(found[2], found[2])
    if option in LABELS:
        word = "empty " if (verb, option) == ("omit", "--model") else VERBS.get(verb, "")
        return f'{word}"{LABELS[option]}"'
    if option in ELSEWHERE:
        return f"{verb + ' ' if verb else ''}`{ELSEWHERE[option]} {option}`"
    return found[0]
