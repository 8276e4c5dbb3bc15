"""Models of the Hugging Face hub: `hf:org/name` stands for the folder of its files in the hub's cache."""

import logging
import re
import sys
from functools import cache
from pathlib import Path

from treeopt.errors import ExecutorError

HUB = "hf:"
CONFIGS = ["*config.json"]  # sizes need no more
TEXTS = ["*.json", "*.model", "*.txt", "*.jinja", "*.safetensors"]
PICKLES = ["*.bin", "*.pt", "*.pth"]  # of models without safetensors
COPIES = ["original/*", "consolidated*"]  # the same weights in the layout of another library


def model_folder(model: Path | str, *, weights: bool = True) -> Path:
    """Return the folder of a model: `hf:org/name` names it on the hub, `models--org--name` in the hub's cache.

    Files that the cache lacks are downloaded, unless `HF_HUB_OFFLINE` is set; without `weights` only configurations.

    Raises:
        ExecutorError: the hub has no such model, or cannot be reached and the files are not cached.

    >>> model_folder("models/llama").as_posix()
    'models/llama'
    """
    path = Path(model)
    if path.as_posix().startswith(HUB) and not path.exists():
        return Path(_snapshot(path.as_posix().removeprefix(HUB), weights))
    commit = path / "refs" / "main"
    return path / "snapshots" / commit.read_text("utf-8").strip() if commit.is_file() else path


def folder_name(path: Path | str) -> str:
    """Return the name of a model's folder; in the hub's cache the name of the model.

    >>> folder_name("hub/models--org--llama/snapshots/4f1a"), folder_name("models/llama")
    ('llama', 'llama')
    """
    folder = Path(path).resolve()
    names = (name for name in (folder.name, folder.parent.parent.name) if name.startswith("models--"))
    return next((name.split("--")[-1] for name in names), folder.name)


def hub_hint(path: Path | str) -> str:
    """Return how to name a model of the hub, where a path without a file may be one; empty where it is none.

    >>> hub_hint("org/llama"), hub_hint("models/deep/llama")
    ('; a model of the Hugging Face hub is named hf:org/llama', '')
    """
    name = Path(path).as_posix()
    named = re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name) and not Path(path).exists()
    return f"; a model of the Hugging Face hub is named {HUB}{name}" if named else ""


@cache
def _snapshot(name: str, weights: bool) -> str:
    """Return the folder that holds a model's files, after fetching those that the cache lacks."""
    try:
        from huggingface_hub import errors, snapshot_download
        from huggingface_hub.utils.tqdm import disable_progress_bars
    except ImportError as error:
        raise ExecutorError(f"{HUB}{name} needs huggingface_hub: pip install huggingface_hub") from error
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        for patterns in [TEXTS, PICKLES] if weights else [CONFIGS]:
            folder: str = snapshot_download(name, allow_patterns=patterns, ignore_patterns=COPIES)
            if any(Path(folder).glob("**/*.safetensors")):
                break
    except errors.RepositoryNotFoundError as error:
        raise ExecutorError(
            f"{HUB}{name}: the hub has no such model, or shows it only after `hf auth login` and a request on its page"
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise ExecutorError(
            f"{HUB}{name}: not in the cache, and the hub cannot be reached; connect, unset HF_HUB_OFFLINE, or name a "
            "folder"
        ) from error
    except (errors.HTTPError, OSError, ValueError) as error:  # type: ignore[attr-defined]
        raise ExecutorError(f"{HUB}{name}: the hub's files cannot be fetched: {str(error).splitlines()[0]}") from error
    return folder
