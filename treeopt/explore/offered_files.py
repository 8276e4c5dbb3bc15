"""Traces, profiles, models and devices that the page offers: those of the command line, or the shipped ones."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from simulate.model_sizes.hf_config import context_limit, shape_fields
from simulate.profiles.find_profile import profile_of_trace
from simulate.profiles.profile import Profile
from treeopt.api.file_loading import load_profile, load_trace
from treeopt.comparison.mismatch_warnings import differing_models, names_weights
from treeopt.errors import CostError, UsageError
from treeopt.storage.user_files import shipped
from treeopt.traces.resumable_shards import optional_in
from treeopt.traces.trace import Trace

if TYPE_CHECKING:
    from simulate.whatif.whatif_settings import Config

Value = TypeVar("Value")

SIZES = ("1b", "8b", "14b", "70b")  # shapes that the page offers as targets
FIRST = "medusa-t0.npz"  # of the shipped traces, the first to be shown
COUNTS = (1, 2, 4, 8)  # devices that share every layer


@dataclass(frozen=True)
class Offer:
    """Files by the names that the page shows.

    Attributes:
        traces: recorded acceptance.
        profiles: measured step times.
        targets: sizes of target models, for devices.
        drafter: sizes of the drafter, for devices; None: as the target's.
    """

    traces: Mapping[str, Path]
    profiles: Mapping[str, Path]
    targets: "Mapping[str, Config]"
    drafter: Path | None = None

    @classmethod
    def of_files(
        cls,
        traces: Sequence[Path | str] = (),
        profiles: Sequence[Path | str] = (),
        targets: Sequence[Path | str] = (),
        drafter: Path | str | None = None,
    ) -> "Offer":
        """Return an offer of these files; shipped traces and profiles where none is given.

        Raises:
            UsageError: no trace was given, and none is shipped.
        """
        own = sorted(sorted(shipped("traces").glob("*.npz")), key=lambda path: path.name != FIRST)
        named_traces = _by_name(traces or own)
        if not named_traces:
            raise UsageError("this installation ships no traces: give one with --trace")
        named_targets: dict[str, Config] = {**_by_name(targets), **{name: shape_fields(name) for name in SIZES}}
        named_profiles = _by_name(profiles or sorted(shipped("profiles").glob("*.json")))
        return cls(named_traces, named_profiles, named_targets, None if drafter is None else Path(drafter))

    def trace(self, name: str, *, candidates: bool = False) -> Trace:
        """Return a trace, read once.

        Args:
            name: as it is offered.
            candidates: also read what a folder's parts hold besides ranks.

        Raises:
            UsageError: it is not offered.
            TraceError: names what is wrong in the file.
        """
        return _read_trace(_offered(self.traces, name, "trace"), ranks_only=not candidates)

    def takes_policies(self, trace: str, profile: str) -> bool:
        """Return True if dynamic trees can be tried: the trace records candidates, the profile priced drafting them.

        Raises:
            UsageError: a file is not offered.
        """
        path = _offered(self.traces, trace, "trace")
        recorded = "candidates" in optional_in(path) if path.is_dir() else self.trace(trace).candidates is not None
        return recorded and bool(self.profile(profile).growths)

    def profile(self, name: str) -> Profile:
        """Return a profile, read once.

        Raises:
            UsageError: it is not offered.
            CostError: names what is wrong in the file.
        """
        return _read_profile(_offered(self.profiles, name, "profile"))

    def target(self, name: str) -> "Config":
        """Return the sizes of a target.

        Raises:
            UsageError: it is not offered.
        """
        return _offered(self.targets, name, "target")

    def profiles_for(self, trace: str) -> list[str]:
        """Return the names of the profiles, the best for this trace first, then those of the same models, then others.

        The best is the one that `treeopt search` finds, if it is offered.
        """
        meta, best = self.trace(trace).meta, None
        with suppress(CostError):
            best = profile_of_trace(self.trace(trace).meta)[0].meta

        def place(name: str) -> tuple[bool, bool]:
            profile = self.profile(name)
            other = not names_weights(meta) or bool(differing_models(profile.meta, meta))
            return profile.meta != best, other

        return sorted(self.profiles, key=place)

    def check(self) -> None:
        """Read every file.

        Raises:
            TreeoptError: names file and field of what is wrong.
        """
        for name in self.traces:
            self.trace(name)
        for name in self.profiles:
            self.profile(name)
        for config in (*self.targets.values(), *([] if self.drafter is None else [self.drafter])):
            context_limit(config)


def _by_name(paths: Sequence[Path | str]) -> dict[str, Path]:
    """Return files by their names, with the folder where two files share a name."""
    named: dict[str, Path] = {}
    for path in map(Path, paths):
        name = path.name if path.name not in named else str(path)
        named[name] = path
    return named


def _offered(offered: Mapping[str, Value], name: str, noun: str) -> Value:
    if name not in offered:
        raise UsageError(f"the page offers no {noun} {name!r}; it offers {', '.join(offered)}")
    return offered[name]


@lru_cache(maxsize=16)
def _read_trace(path: Path, *, ranks_only: bool) -> Trace:
    return load_trace(path, ranks_only=ranks_only)


_read_profile: Callable[[Path], Profile] = lru_cache(maxsize=64)(load_profile)
