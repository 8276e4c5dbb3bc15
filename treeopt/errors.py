"""What treeopt refuses, and why.

    TreeoptError                exit code 1: cannot be done
    ├── UsageError              exit code 2: asked for something that has no meaning
    ├── TreeError               a topology that is none, or is too large
    ├── TraceError              a trace that does not say what it must
    ├── CostError               a shape whose cost is not known
    ├── PlanError               a plan that cannot be read
    ├── InfeasibleError         a search whose conditions nothing meets
    ├── EngineError             a topology that an engine cannot express
    └── ExecutorError           a model, checkpoint or request that the executor cannot run

Every message says what must hold, where, and what was found. The command line prints it as one line.
"""


class TreeoptError(Exception):
    """Base of every deliberate failure."""

    exit_code = 1


class UsageError(TreeoptError):
    """A question without meaning, such as batch 0."""

    exit_code = 2


class TreeError(TreeoptError):
    """A topology that is none, or that exceeds a limit."""


class TraceError(TreeoptError):
    """A trace that breaks its format or cannot answer the question."""


class CostError(TreeoptError):
    """A shape outside what a cost model was calibrated for."""


class PlanError(TreeoptError):
    """A plan that cannot be read."""


class InfeasibleError(TreeoptError):
    """A search whose conditions nothing meets; the message names the condition."""


class EngineError(TreeoptError):
    """A topology that an engine cannot express."""


class ExecutorError(TreeoptError):
    """A model, checkpoint or request that the executor cannot run."""
