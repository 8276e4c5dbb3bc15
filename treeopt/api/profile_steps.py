"""`treeopt.profile`: measure step times with treeopt's loop or an inference engine."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from executor.profiling.profile_settings import Measuring
from treeopt import defaults
from treeopt.api.messages import Progress, note, silent
from treeopt.api.ray_workers import RaySetup, on_ray
from treeopt.api.run_models import Models, Prompts, Sampling, load_tokens
from treeopt.api.runners import EngineSetup, open_runner
from treeopt.defaults import BUDGET_S, POLICIES_S
from treeopt.settings import Settings, group, takes

if TYPE_CHECKING:
    from simulate.profiles.profile import Profile


@dataclass(frozen=True, kw_only=True)
class ProfileSettings(Settings):
    """The settings of `profile`."""

    models: Models = group(Models)
    source: Prompts = group(Prompts)
    measuring: Measuring = group(Measuring)
    sampling: Sampling = group(Sampling)
    graphs: str = defaults.graphs()
    engine: EngineSetup = group(EngineSetup)
    cluster: RaySetup = group(RaySetup)


def _profiler(settings: ProfileSettings) -> tuple[None, dict[str, Any], Any]:
    """Return what measures in a worker; see `on_ray`."""
    return None, {}, lambda start: profile(settings=settings)


@takes(ProfileSettings, "target", "drafter", "prompts")
def profile(*, settings: ProfileSettings, work: Path | None = None, progress: Progress = silent) -> "Profile":
    """Measure plain and speculative steps in the loop or in an engine, and return their times as a profile.

    Without `budget_s` the loop measures for 5 minutes, with `policies` for 7.5.

    Args:
        work: file that finished blocks are kept in, so that the same measurement resumes; None: nowhere.
        progress: shows how many blocks are measured.

    Raises:
        UsageError, ExecutorError, EngineError: settings or models that do not go together, or cannot be measured.

    Examples:
        >>> import treeopt
        >>> sizes = {"batch": 1, "max_nodes": 2, "max_depth": 1, "rounds": 2, "steps": 2, "new_tokens": 12}
        >>> measured = treeopt.profile("toy", "medusa:3", random_weights=True, prompt_tokens=8, **sizes)
        >>> [times.batch for times in measured.batches]
        [1]
    """
    measuring, engine = settings.measuring, settings.engine
    engine.refuse({"--budget": measuring.budget_s, "--ray": settings.cluster.ray})
    if settings.cluster.ray is not None:
        with on_ray(settings.cluster, _profiler, settings) as (_, parts):
            measured: Profile = next(parts([0]))
            return measured
    runner = open_runner(settings.models, engine, sampling=settings.sampling, graphs=settings.graphs)
    if measuring.policies and getattr(runner, "graphs", False):
        note(["CUDA graphs run dynamic trees, but no policy that asks the host in a step: --graphs off measures those"])
    tokens, _ = load_tokens(settings.models, runner.target, settings.source)
    from executor.profiling.measurement_rounds import Measurement

    if runner.single_steps and measuring.budget_s is None and runner.processes == 1:
        measuring = measuring.changed(budget_s=BUDGET_S + POLICIES_S * measuring.policies)
    with Measurement(runner, tokens, measuring, work=work) as measurement:
        measurement.note_schedule()
        with progress("measuring", measurement.left) as advance:
            return measurement.run(advance)
