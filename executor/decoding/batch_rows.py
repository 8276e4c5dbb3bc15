"""The sequences of a batch on the device, and the four parts of a step: draft, verify, accept, commit.

No function here reads a value from the device, unless the growth does: the host reads `outcome` when it chooses to.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from executor.decoding.tree_growth import Growth
from executor.device import to_device
from executor.drafters.base.drafter import Admitted, Committed, Drafter
from executor.target.causal_model import Outputs
from executor.target.target_model import Target
from executor.verification.acceptance_rules import Accepted, Greedy, Rule, best_of
from executor.verification.replayed_acceptance import Imposed
from executor.verification.tree_tensors import Draft

Tokens = Sequence[int]
MOST_COMMITTED = 128  # entries of a tree that a kernel commits: that for 256 compiles in 20 s, that for 512 in minutes


class Rows:
    """`batch` sequences, each with its cache row; all tensors are changed in place.

    Attributes:
        lengths: int64 (batch,), tokens in the cache.
        root: int64 (batch,), the last committed token, not in the cache yet; any for rows without a request.
        idle: bool (batch,), rows without a request: they are computed, and stay where they are.
        capacity: entries of each row's cache.
        outcome: int64 (batch, depth + 4), of the last step: drafted tokens accepted; place in the order of feeding of
            the deepest accepted node, -1 if it was never fed; tokens drafted; tokens committed, in their order.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        growth: Growth,
        rule: Rule,
        batch: int,
        length: int,
        capacity: int,
    ) -> None:
        """Take the target's cache; all rows are idle, and may reach `length` positions."""
        # First the drafter, which may raise: the target's cache then stays with the run that has it.
        self.state = drafter.begin(target, batch, growth.depth, length, capacity) if drafter is not None else None
        target.allocate(batch, capacity)
        device, steps = target.device, growth.depth + 1

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.long, device=device)

        self.target, self.drafter, self.growth, self.rule = target, drafter, growth, rule
        self.batch, self.capacity = batch, capacity
        self.imposed = rule if isinstance(rule, Imposed) else None
        if self.imposed is not None:
            self.imposed.begin(batch, device)
        self.lengths, self.root, self.idle = zeros(batch), zeros(batch), zeros(batch) == 0
        self.outcome = zeros(batch, steps + 3)
        self.taps = None if drafter is None else drafter.taps
        features = torch.zeros(batch, steps, target.feature_width(self.taps), dtype=target.dtype, device=device)
        fed = zeros(batch, steps)
        self.committed = Committed(zeros(batch, steps), features, fed, zeros(batch), growth.fed_in_place)
        self._committed = [self.committed.first(moved) for moved in range(1, steps)] + [self.committed]

    def leave(self, rows: Mapping[int, int]) -> None:
        """Mark rows as idle; `rows` maps each to the length at which it stays."""
        for row, length in rows.items():  # filled, not assigned: on CUDA a number from the host is copied, which waits
            self.idle[row : row + 1].fill_(True)
            self.lengths[row : row + 1].fill_(length)

    @torch.no_grad()
    def admit(self, rows: Sequence[int], prompts: Sequence[Tokens], requests: Sequence[int] = ()) -> None:
        """Begin requests in these rows: all tokens of a prompt but the last go into the caches, the last is the root.

        `requests`, their numbers, matter only where acceptance is imposed.
        """
        features = self.target.prefill(rows, [prompt[:-1] for prompt in prompts], taps=self.taps)
        admitted = Admitted.of(rows, prompts, torch.nn.utils.rnn.pad_sequence(features, batch_first=True))
        place = admitted.rows
        if self.imposed is not None:
            self.imposed.admit(place, list(requests))
        self.lengths[place] = admitted.lengths - 1
        self.root[place] = to_device([prompt[-1] for prompt in prompts], place.device)
        self.idle.index_fill_(0, place, False)
        self.committed.counts.index_fill_(0, place, 0)
        if self.drafter is not None:
            self.drafter.admit(self.state, admitted)

    @torch.no_grad()
    def draft(self, *, view: int, steps: int, all_fed: bool) -> Draft:
        """Propose the next trees.

        Args:
            view: no sequence, the step's entries included, is longer.
            steps: no sequence committed more tokens in the last step.
            all_fed: see `Drafter.extend`.
        """
        if self.drafter is not None:
            self.drafter.extend(self.state, self._committed[steps - 1], view=view, all_fed=all_fed)
        return self.growth.draft(self.drafter, self.state, self.root, self.rule, idle=self.idle)

    @torch.no_grad()
    def verify(self, draft: Draft, *, view: int) -> Outputs:
        """Run the step's one forward of the target, over all nodes of the trees."""
        tree = draft.topology
        return self.target.verify(draft.tokens, self.lengths, tree.depth, tree.ancestors, view, taps=self.taps)

    @torch.no_grad()
    def settle(self, draft: Draft, outputs: Outputs) -> None:
        """Accept a path of each tree and commit it; where the target has kernels, greedy steps do so in one."""
        large = draft.topology.count > MOST_COMMITTED
        if large or self.target.fused is None or not isinstance(self.rule, Greedy):
            self.commit(draft, outputs, self.rule.accept(outputs.logits, draft))
            return
        from executor.kernels.accepted_path import commit_longest

        emitted, last, tree = best_of(outputs.logits), self.committed, draft.topology
        changed = self.lengths, self.root, last.tokens, last.fed, last.counts, self.outcome
        shape = tree.parent, tree.depth, tree.below, tree.path
        with torch.cuda.device_of(emitted):
            before, path = commit_longest(draft.tokens, emitted, shape, tree.present, draft.fed, self.idle, changed)
        self._move(outputs, before, path)

    def _move(self, outputs: Outputs, before: Tensor, path: Tensor) -> None:
        """Move the entries of accepted paths to the end of the cache, and their features to where the drafter reads."""
        cache = self.target.cache
        assert cache is not None
        if not self.growth.in_place and self.target.fused is None:
            cache.compact(before, path)
        elif not self.growth.in_place:
            from executor.kernels.accepted_path import move_accepted

            with torch.cuda.device_of(path):
                move_accepted(cache.stores, before, path.contiguous())
        if self.taps is not None:
            nodes = path[:, :, None].expand(-1, -1, outputs.features.shape[2])
            torch.gather(outputs.features, 1, nodes, out=self.committed.features)

    def commit(self, draft: Draft, outputs: Outputs, accepted: Accepted) -> None:
        """Move the cache, the lengths and the roots to the end of the accepted paths, and write `outcome`."""
        last = self.committed
        self._move(outputs, self.lengths, accepted.path)
        if self.drafter is not None:
            torch.gather(draft.fed.expand(self.batch, -1), 1, accepted.path, out=last.fed)
        torch.add(accepted.count, 1, out=last.counts).masked_fill_(self.idle, 0)
        if self.target.recurrent:
            self.target.rewind(draft.tokens, self.lengths, last.counts)
        last.tokens.copy_(accepted.emitted)
        self.lengths.add_(last.counts)
        self.root.copy_(accepted.emitted[:, -1])
        drafted = draft.topology.nodes.expand(self.batch)
        torch.cat([accepted.count[:, None], last.fed[:, -1:], drafted[:, None], accepted.emitted], 1, out=self.outcome)
