"""SGLang: `sglang.launch_server` of the environment that holds it, one launch per draft length.

Written from what is documented of SGLang 0.5.23 and not run: SGLang needs a GPU. `--stream-interval 1` is to make it
send one chunk per step. The running `usage` of each chunk, where it is sent, says how many tokens it holds; otherwise
they are counted in the text. A chain of K drafted tokens is `--speculative-num-steps K` with one candidate per level
and K + 1 draft tokens, since it counts the root.
"""

from collections.abc import Generator

from treeopt.engines.connections.completions_client import steps_of
from treeopt.engines.connections.servers import Launch, LaunchedServers, Running
from treeopt.engines.driver import DriverSettings, EngineRequest, EngineStep

CHUNKS = ("--stream-interval", "1")


class SGLang(LaunchedServers):
    """SGLang servers, launched by draft length."""

    title = "SGLang"

    def __init__(self, settings: DriverSettings) -> None:
        """Describe the launches; nothing is started yet.

        Args:
            settings: `method` is the value of `--speculative-algorithm`, such as EAGLE3; None: plain decoding only.

        Raises:
            UsageError: no interpreter.
        """
        super().__init__(settings, drafts=settings.method is not None, method=settings.method)
        self._python = settings.interpreter

    def _launch(self, length: int) -> Launch:
        settings = self.settings
        command = [self._python, "-m", "sglang.launch_server", "--model-path", settings.target, "--host", "127.0.0.1"]
        if length:
            command += ["--speculative-algorithm", str(settings.method)]
            command += [] if settings.drafter is None else ["--speculative-draft-model-path", settings.drafter]
            command += ["--speculative-num-steps", str(length), "--speculative-eagle-topk", "1"]
            command += ["--speculative-num-draft-tokens", str(length + 1)]
        return Launch([*command, *CHUNKS, *self._arguments])

    def _steps(
        self, server: Running, number: int, request: EngineRequest, lane: int, *, draft: int, began_s: float
    ) -> Generator[EngineStep, None, None]:
        client = server.client
        chunks = client.stream(request, model=client.model())
        return steps_of(chunks, number, draft=draft, began_s=began_s, where=client.url, count=self.settings.count)
