"""The feature store: outputs of a fixed target for its rows, on disk, computed once for all epochs and drafters."""

import hashlib
import json
import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from executor.checkpoints.tensors.write_tensors import full_disk
from executor.models import identity
from executor.target.causal_model import HEAD, Outputs, Taps
from executor.target.target_model import Target
from executor.train.token_rows import Rows
from treeopt.errors import ExecutorError, UsageError
from treeopt.storage.json_records import RecordError, parse
from treeopt.storage.typed_records import read_field
from treeopt.storage.user_files import read_text, whole, why, write_text

SCHEMA = "treeopt.features/1"
WHOSE = "target.json"


class FeatureStore:
    """A folder with a file for each row, named by its tokens; several trainings may use it at once.

    A file holds tensors of (length, hidden): `head`, the input of the LM head, from which logits are computed again,
    and by number the inputs of the layers that were asked for.
    """

    def __init__(self, folder: Path, target: Target, precision: str) -> None:
        """Begin a folder for a target's features in this precision, see `Job`, or reuse one.

        Raises:
            UsageError: the folder holds features of another target or precision.
            ExecutorError: it cannot be read or written, or the target's logits do not follow from its features.
        """
        self.folder, self.target = folder, target
        _ = target.head_scaling  # raises for such targets
        who = {**identity(target, None)["target"], "precision": precision}
        path = folder / WHOSE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                write_text(path, json.dumps({"schema": SCHEMA, "target": who}, indent=1) + "\n")
            was = read_field(parse(read_text(path), SCHEMA), "target", dict)
        except (OSError, UnicodeDecodeError) as error:
            raise ExecutorError(f"{path}: {why(error)}") from error
        except RecordError as error:
            raise ExecutorError(f"{path}: {error}") from error
        for key in sorted({*who, *was} - {"name"}):
            if was.get(key) != who.get(key):
                raise UsageError(
                    f"{folder} holds features of a target whose {key} is {was.get(key)}, not {who.get(key)}"
                )

    def check_room(self, *parts: Rows, taps: Taps, at_most: int) -> None:
        """Check that the disk can hold the features that are missing, of the first part `at_most` rows.

        Raises:
            ExecutorError: names the bytes needed and those free.
        """
        layers = (HEAD, *(taps or ()))
        absent = [sum(self._read(row, layers) is None for row in rows.tokens) for rows in parts]
        absent[0] = min(absent[0], at_most)
        row = parts[0].tokens.shape[1] * self.target.hidden * (1 + len(taps or ())) * self.target.dtype.itemsize
        needed, free = sum(absent) * row, shutil.disk_usage(self.folder).free
        if needed > free:
            raise ExecutorError(
                f"{self.folder}: the features of {sum(absent)} rows take {needed / 1e9:.1f} GB, "
                f"{free / 1e9:.1f} are free"
            )

    @torch.no_grad()
    def outputs(self, tokens: Tensor, taps: Taps) -> Outputs:
        """Return `Target.features` for rows of tokens, int64 (batch, length); compute and store what is missing.

        Raises:
            ExecutorError: a file cannot be read or written, or holds something else.
        """
        layers = (HEAD, *(taps or ()))
        rows = tokens.cpu()
        by_row = [self._read(row, layers) for row in rows]
        absent = [place for place, values in enumerate(by_row) if values is None]
        if absent:
            unscored = tokens.new_zeros(len(absent), 0)  # logits come below, for all rows alike
            computed = self.target.features(tokens[absent], layers, rows=unscored).features.cpu()
            for place, values in zip(absent, computed, strict=True):
                by_row[place] = values
                self._write(rows[place], layers, values)
        features = torch.stack([values for values in by_row if values is not None]).to(tokens.device)
        head, tapped = features.split((self.target.hidden, features.shape[-1] - self.target.hidden), -1)
        return Outputs(self.target.scored(head), tapped if taps else head)

    def _path(self, row: Tensor) -> Path:
        return self.folder / f"{hashlib.sha256(row.numpy().tobytes()).hexdigest()[:32]}.safetensors"

    def _read(self, row: Tensor, layers: tuple[int, ...]) -> Tensor | None:
        """Return the features, (length, layers x hidden); None if a layer is missing."""
        path = self._path(row)
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                if not set(map(_name, layers)) <= set(file.keys()):
                    return None
                by_layer = [file.get_tensor(_name(layer)) for layer in layers]
        except (OSError, SafetensorError) as error:
            raise ExecutorError(f"{path}: features cannot be read, remove the file: {error}") from error
        shape = (len(row), self.target.hidden)
        for layer, values in zip(layers, by_layer, strict=True):
            if tuple(values.shape) != shape:
                raise ExecutorError(f"{path}: {_name(layer)} must be {shape}, found {tuple(values.shape)}")
        return torch.cat(by_layer, -1)

    def _write(self, row: Tensor, layers: tuple[int, ...], values: Tensor) -> None:
        """Add layers to the row's file."""
        path = self._path(row)
        stored = load_file(path) if path.exists() else {}
        new = {_name(layer): part for layer, part in zip(layers, values.chunk(len(layers), -1), strict=True)}
        with whole(path) as temporary, full_disk(path):
            save_file({name: part.contiguous() for name, part in (stored | new).items()}, temporary)


def _name(layer: int) -> str:
    """Return the name of a layer's tensor in a file."""
    return "head" if layer == HEAD else f"layer {layer}"
