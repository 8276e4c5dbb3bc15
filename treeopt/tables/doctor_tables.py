"""The results of `treeopt doctor` as tables on the terminal."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from treeopt.tables.terminal_text import terminal

GIB = 2**30


def show_health(record: Mapping[str, Any], console: Console | None = None) -> None:
    """Print packages, device and trials; `record` is what `treeopt doctor --json` prints."""
    console = console or terminal()
    run = record["provenance"]
    commit = f", commit {run['commit']}" if run["commit"] else ""
    console.print(f"treeopt {run['treeopt']}{commit}, Python {run['software']['python']}")
    console.print(f"{run['processor']}, {run['cores']} cores for this process")
    console.print(_packages(record["packages"]))
    if "trials" not in record:
        console.print("The decoding loop is not installed: pip install 'treeopt[executor]'", markup=False)
        return
    if "device" in record:
        console.print(_device(record["device"]))
    for trial in record["trials"]:
        verdict = Text("right" if trial["holds"] else "WRONG", style="green" if trial["holds"] else "bold red")
        console.print(verdict, f"{trial['name']}: {trial['told']}", markup=False, soft_wrap=True)


def _device(device: Mapping[str, Any]) -> str:
    free = "unknown" if device["free_bytes"] is None else f"{device['free_bytes'] / GIB:.1f} GiB"
    cuda = f", CUDA {device['cuda']}, capability {'.'.join(map(str, device['capability']))}" if "cuda" in device else ""
    return f"Device {device['name']}{cuda}: {free} free, {'' if device['bf16_products'] else 'no '}bf16 products"


def _packages(packages: list[Mapping[str, Any]]) -> Table:
    table = Table()
    for name in ("package", "version", "needed for", ""):
        table.add_column(name)
    for package in packages:
        absent = "" if package["version"] or package["trouble"] else f"pip install 'treeopt[{package['extra']}]'"
        trouble = package["trouble"] or absent
        style = "bold red" if package["trouble"] else "dim" if absent else None
        table.add_row(package["name"], package["version"] or "-", package["extra"] or "all", trouble, style=style)
    return table
