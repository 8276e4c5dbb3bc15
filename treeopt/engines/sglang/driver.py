"""SGLang: `sglang.launch_server` of the environment that holds it, one launch per draft length.

Written from what is documented of SGLang 0.5.23 and not run: SGLang needs a GPU. `--stream-interval 1` is to make it
send one chunk per step. The running `usage` of each chunk, where it is sent, says how many tokens it holds; otherwise
they are counted in the text. A chain of K drafted tokens is `--speculative-num-steps K` with one candidate per level
and K + 1 draft tokens, since it counts the root.
"""

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path

from treeopt.engines.connections.launched_servers import LaunchedServers
from treeopt.engines.connections.server_pool import ALIVE, Launch
from treeopt.engines.connections.streamed_steps import TIMEOUT_S, steps_of
from treeopt.engines.driver import Count, Draft, EngineRequest, EngineStep
from treeopt.errors import UsageError

CHUNKS = ("--stream-interval", "1")


class SGLang(LaunchedServers):
    """SGLang servers, launched by draft length."""

    def __init__(
        self,
        python: Path | str,
        target: Path | str,
        *,
        method: str | None = None,
        drafter: Path | str | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        alive: int = ALIVE,
        timeout_s: float = TIMEOUT_S,
        count: Count | None = None,
    ) -> None:
        """Describe the launches; nothing is started yet.

        Args:
            python: the interpreter of the environment that holds SGLang.
            target: folder or name of the target.
            method: value of `--speculative-algorithm`, such as EAGLE3; None: plain decoding only.
            drafter: folder or name of the drafter.
            arguments: further arguments of the server, such as --tp-size 2.
            environment: variables beside those of this process.
            alive: servers at a time.
            timeout_s: longest time that a server may take to start, and then to send anything.
            count: counts the tokens of a text, for versions that do not report them.
        """
        super().__init__(alive=alive, timeout_s=timeout_s)
        self._python, self._target, self._method, self._drafter = str(python), str(target), method, drafter
        self._arguments, self._environment, self._count = tuple(arguments), dict(environment or {}), count
        self.meta = {"name": "sglang", "method": method, "arguments": list(self._arguments)}

    def _launch(self, length: int) -> Launch:
        command = [self._python, "-m", "sglang.launch_server", "--model-path", self._target, "--host", "127.0.0.1"]
        if length:
            command += ["--speculative-algorithm", str(self._method)]
            command += [] if self._drafter is None else ["--speculative-draft-model-path", str(self._drafter)]
            command += ["--speculative-num-steps", str(length), "--speculative-eagle-topk", "1"]
            command += ["--speculative-num-draft-tokens", str(length + 1)]
        return Launch("SGLang", [*command, *CHUNKS, *self._arguments], environment=self._environment)

    def decode(self, requests: Sequence[EngineRequest], *, draft: Draft, concurrency: int) -> Iterator[EngineStep]:
        """See `Driver.decode`.

        Raises:
            UsageError: a tree, or drafted tokens without a method.
        """
        if not isinstance(draft, int):
            raise UsageError("this driver runs SGLang with chains: give draft lengths")
        if draft and self._method is None:
            raise UsageError(f"SGLang needs an algorithm for a draft of {draft}: give --method and --engine-drafter")
        server = self._servers.server(draft)
        client, model, began_s = server.client, server.client.model(), time.monotonic()

        def ask(number: int, request: EngineRequest, lane: int) -> Generator[EngineStep, None, None]:
            chunks = client.stream(request, model=model)
            return steps_of(chunks, number, draft=draft, began_s=began_s, where=client.url, count=self._count)

        yield from self._decoded(server, requests, ask, concurrency=concurrency)
