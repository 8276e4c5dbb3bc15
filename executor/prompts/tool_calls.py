"""Tool calls and offered tools, in the form that chat templates take: arguments are objects, functions have a type."""

import json
from collections.abc import Mapping
from typing import Any

from executor.prompts.reading_report import HINT
from treeopt.errors import ExecutorError


def calls_in(turn: Mapping[str, Any], place: str) -> list[dict[str, Any]]:
    """Return the calls in `tool_calls` of a message, or in its older `function_call`.

    Raises:
        ExecutorError: names call and field.
    """
    calls = turn.get("tool_calls") or []
    if isinstance(calls, str):
        calls = _parsed(calls, f"{place}: `tool_calls`")
    if not isinstance(calls, list):
        raise ExecutorError(f"{place}: `tool_calls` must be a list of tool calls, found {type(calls).__name__} {HINT}")
    if turn.get("function_call"):
        calls = [*calls, turn["function_call"]]
    return [_call(call, f"{place}: tool_calls[{i}]") for i, call in enumerate(calls)]


def spoken_calls(value: Any, place: str) -> list[dict[str, Any]]:
    """Return the calls that a turn of ShareGPT's role `function_call` holds as JSON text.

    >>> spoken_calls('{"name": "add", "arguments": {"a": 1}}', "turn 1")
    [{'type': 'function', 'function': {'name': 'add', 'arguments': {'a': 1}}}]

    Raises:
        ExecutorError: it is no tool call.
    """
    calls = _parsed(value, place) if isinstance(value, str) else value
    return [_call(call, place) for call in (calls if isinstance(calls, list) and calls else [calls])]


def _call(call: Any, place: str) -> dict[str, Any]:
    """Return a call; arguments that are JSON text become the object that templates take."""
    if isinstance(call, str):
        call = _parsed(call, place)
    function = call.get("function", call) if isinstance(call, dict) else None
    if isinstance(function, str):  # {"function": "name", "arguments": ...}
        function = {"name": function, "arguments": call.get("arguments")}
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ExecutorError(f"{place} must be a tool call with `name` and `arguments`, found {call!r:.60} {HINT}")
    arguments = function.get("arguments", function.get("parameters"))
    if isinstance(arguments, str):
        arguments = _parsed(arguments, f"{place}: `arguments`") if arguments.strip() else {}
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise ExecutorError(f"{place}: `arguments` of a tool call must be an object, found {arguments!r:.40} {HINT}")
    found: dict[str, Any] = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
    return ({"id": call["id"]} if isinstance(call.get("id"), str) else {}) | found


def offered_tools(record: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """Return the tools that a record offers, in `tools` or in the older `functions`; either may be JSON text.

    Raises:
        ExecutorError: names tool and field.
    """
    tools: list[dict[str, Any]] = []
    for key in ("tools", "functions"):
        offered = record.get(key) or []
        if isinstance(offered, str):
            offered = _parsed(offered, f"{where}: `{key}`") if offered.strip() else []
        if not isinstance(offered, list):
            raise ExecutorError(f"{where}: `{key}` must be a list of tools, found {type(offered).__name__} {HINT}")
        tools += [_tool(tool, f"{where}: {key}[{i}]") for i, tool in enumerate(offered)]
    return tools


def _tool(tool: Any, place: str) -> dict[str, Any]:
    if isinstance(tool, str):
        tool = _parsed(tool, place)
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ExecutorError(f"{place} must be a function with a `name`, found {tool!r:.60} {HINT}")
    return tool if "function" in tool else {"type": "function", "function": function}


def _parsed(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ExecutorError(f"{place} of a tool is not JSON: {error} {HINT}") from error
