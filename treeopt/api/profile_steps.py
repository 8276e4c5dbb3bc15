"""Measure step times with a runner: treeopt's loop or an inference engine."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from treeopt.api.messages import Progress, silent
from treeopt.api.run_models import Models
from treeopt.api.run_prompts import Prompts, load_tokens
from treeopt.api.runners import EngineChoice, open_runner
from treeopt.api.token_sampling import Sampling
from treeopt.defaults import BUDGET_S, POLICIES_S

if TYPE_CHECKING:
    from simulate.profiles.profile import Profile


def profile_with(
    models: Models,
    prompts: Prompts,
    *,
    sampling: Sampling | None = None,
    engine: EngineChoice | None = None,
    graphs: bool = False,
    work: Path | None = None,
    progress: Progress = silent,
    **settings: Any,
) -> "Profile":
    """Measure step times and return them as a profile.

    Args:
        models: target and drafter.
        prompts: what is decoded.
        sampling: rule and temperature.
        engine: what decodes; None: treeopt's own loop.
        graphs: replay steps from CUDA graphs.
        work: file that finished blocks are kept in, so that the same measurement resumes; None: nowhere.
        progress: shows how many blocks are measured.
        settings: those of `executor.profiling.profile_settings.Settings`; without `budget_s` the loop measures for 5
            minutes, with `policies` for 7.5.

    Raises:
        UsageError, ExecutorError, EngineError: see `measure_profile`.
    """
    sampling, engine = sampling or Sampling(), engine or EngineChoice()
    sampling.check()
    engine.refuse({"--budget": settings.get("budget_s")})
    runner = open_runner(models, engine, sampling=sampling, graphs=graphs)
    tokens, _ = load_tokens(models, runner.target, prompts)
    from executor.profiling.measure_steps import Measurement
    from executor.profiling.profile_settings import Settings

    if runner.single_steps and settings.get("budget_s") is None and runner.processes == 1:
        settings["budget_s"] = BUDGET_S + POLICIES_S * bool(settings.get("policies"))
    with Measurement(runner, tokens, Settings(seed=sampling.seed, **settings), work=work) as measurement:
        measurement.note_schedule()
        with progress("measuring", measurement.left) as advance:
            return measurement.run(advance)
