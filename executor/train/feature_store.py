"""What a target that does not learn gives for its rows, kept on disk: computed once for all epochs and drafters."""

import hashlib
import json
import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from executor.models.fingerprint import identity
from executor.target.causal_model import Outputs
from executor.target.features import HEAD, Taps
from executor.target.target_model import Target
from executor.train.text_files import Rows
from treeopt.errors import ExecutorError, UsageError
from treeopt.storage.atomic_files import whole, why, write_text
from treeopt.storage.json_records import RecordError, get, parse

SCHEMA = "treeopt.features/1"
WHOSE = "target.json"


class FeatureStore:
    """A folder with a file for each row, named by its tokens; several trainings may use it at once.

    A file holds, each (length, hidden), the input of the LM head as `head`, from which logits are computed again, and
    by their numbers the inputs of the layers that were asked for.
    """

    def __init__(self, folder: Path, target: Target, precision: str) -> None:
        """Begin a folder, or go on with one.

        Args:
            folder: made if it is not there.
            target: whose features they are.
            precision: what is computed in where it is safe, see `arguments` in trainer.py.

        Raises:
            UsageError: the folder holds those of another target or precision.
            ExecutorError: it cannot be read or written, or features do not tell the target's logits.
        """
        self.folder, self.target = folder, target
        _ = target.head_scaling  # which refuses such targets
        who = {**identity(target, None)["target"], "precision": precision}
        path = folder / WHOSE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                write_text(path, json.dumps({"schema": SCHEMA, "target": who}, indent=1) + "\n")
            was = get(parse(path.read_text("utf-8"), SCHEMA), "target", dict, "the record")
        except (OSError, UnicodeDecodeError) as error:
            raise ExecutorError(f"{path}: {why(error)}") from error
        except RecordError as error:
            raise ExecutorError(f"{path}: {error}") from error
        for key in sorted({*who, *was} - {"name"}):
            if was.get(key) != who.get(key):
                found, due = was.get(key), who.get(key)
                raise UsageError(f"{folder} holds features of a target whose {key} is {found}, not {due}")

    def check_room(self, *parts: Rows, taps: Taps, at_most: int) -> None:
        """Refuse a disk that cannot hold what is still to come.

        Args:
            parts: rows that will be asked for.
            taps: layers that will.
            at_most: rows of the first part that will.

        Raises:
            ExecutorError: says what is needed and what there is.
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
        """What `Target.features` gives for rows of tokens, int64 (batch, length); what was not there is now.

        Raises:
            ExecutorError: a file cannot be read or written, or holds something else.
        """
        layers = (HEAD, *(taps or ()))
        rows = tokens.cpu()
        found = [self._read(row, layers) for row in rows]
        absent = [place for place, values in enumerate(found) if values is None]
        if absent:
            unscored = tokens.new_zeros(len(absent), 0)  # logits come below, for all rows alike
            computed = self.target.features(tokens[absent], layers, rows=unscored).features.cpu()
            for place, values in zip(absent, computed, strict=True):
                found[place] = values
                self._write(rows[place], layers, values)
        features = torch.stack([values for values in found if values is not None]).to(tokens.device)
        head, rest = features.split((self.target.hidden, features.shape[-1] - self.target.hidden), -1)
        return Outputs(self.target.scored(head), rest if taps else head)

    def _path(self, row: Tensor) -> Path:
        return self.folder / f"{hashlib.sha256(row.numpy().tobytes()).hexdigest()[:32]}.safetensors"

    def _read(self, row: Tensor, layers: tuple[int, ...]) -> Tensor | None:
        """(length, layers x hidden); None if one of them is not there."""
        path = self._path(row)
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                if not set(map(_name, layers)) <= set(file.keys()):
                    return None
                found = [file.get_tensor(_name(layer)) for layer in layers]
        except (OSError, SafetensorError) as error:
            raise ExecutorError(f"{path}: features cannot be read, remove the file: {error}") from error
        for layer, values in zip(layers, found, strict=True):
            if tuple(values.shape) != (len(row), self.target.hidden):
                due = f"({len(row)}, {self.target.hidden})"
                raise ExecutorError(f"{path}: {_name(layer)} must be {due}, found {tuple(values.shape)}")
        return torch.cat(found, -1)

    def _write(self, row: Tensor, layers: tuple[int, ...], values: Tensor) -> None:
        """Beside what the file holds of other layers."""
        path = self._path(row)
        try:
            held = load_file(path) if path.exists() else {}
            new = {_name(layer): part for layer, part in zip(layers, values.chunk(len(layers), -1), strict=True)}
            with whole(path) as temporary:
                save_file({name: part.contiguous() for name, part in (held | new).items()}, temporary)
        except (OSError, SafetensorError) as error:
            reason = why(error) if isinstance(error, OSError) else str(error)
            raise ExecutorError(f"{path}: features cannot be kept: {reason}") from error


def _name(layer: int) -> str:
    """Of a tensor in a file."""
    return "head" if layer == HEAD else f"layer {layer}"
