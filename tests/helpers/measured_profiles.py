"""A profile measured in one call."""

from collections.abc import Callable, Sequence
from pathlib import Path

from executor.profiling.measurement_rounds import Measurement
from executor.profiling.profile_settings import Measuring
from executor.runners.runner import Runner, Tokens
from simulate.profiles.profile import Profile


def measure_profile(
    runner: Runner,
    prompts: Sequence[Tokens],
    settings: Measuring,
    *,
    work: Path | None = None,
    progress: Callable[[int], None] = lambda blocks: None,
) -> Profile:
    """Measure the profile of a runner that is not entered; `progress` is called with 1 after every block."""
    with Measurement(runner, prompts, settings, work=work) as measurement:
        return measurement.run(progress)
