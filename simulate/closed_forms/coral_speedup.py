"""CORAL (Weng et al. 2025): speedup of a drafted chain from latencies (Eq. 1) or from weight counts (Eq. 5 and 6).

Good for a first look, not for a plan: the formulas know no batch, context, host time or tree, and Eq. 6 assumes that
verifying costs one plain step. On the speedups measured in the paper Eq. 6 errs by 14.6 % on average (54 rows).

Every function takes scalars or arrays (broadcast, computed in float64) and returns a float for scalars alone,
else a float64 array. `UsageError` names an argument out of range, its range and its value.
"""

from numpy.typing import ArrayLike

from simulate.closed_forms.checked_arguments import Floats, checked, float_or_array


def latency_speedup(
    *, tau: ArrayLike, gamma: ArrayLike, draft_s: ArrayLike, plain_s: ArrayLike, verify_s: ArrayLike
) -> float | Floats:
    """Return the speedup from three latencies, tau * plain_s / (gamma * draft_s + verify_s).

    The paper prints the target's two latencies exchanged, so that slower verification would mean more speed.

    Args:
        tau: tokens committed per step, the bonus token included.
        gamma: drafter forwards per step.
        draft_s: seconds of one drafter forward, L_d.
        plain_s: seconds of one plain decoding step of the target, L_t.
        verify_s: seconds of the target forward over all drafted tokens, L_t'.

    Source: CORAL (Weng et al. 2025), Eq. 1, corrected.

    >>> latency_speedup(tau=4.0, gamma=6, draft_s=0.001, plain_s=0.024, verify_s=0.026)
    3.0
    """
    tau, gamma, draft_s, plain_s, verify_s = checked(
        tau=tau, gamma=gamma, draft_s=draft_s, plain_s=plain_s, verify_s=verify_s
    )
    return float_or_array(tau * plain_s / (gamma * draft_s + verify_s))


def latency_ratio(*, draft_weights: ArrayLike, target_weights: ArrayLike) -> float | Floats:
    """Return drafter forward over plain step in seconds, estimated as the ratio of the weights that the two read.

    Holds if both forwards are bound by reading weights; launches and small matrices make a drafter slower.

    Args:
        draft_weights: weights that one drafter forward reads, W_d: LM head counted, embedding not.
        target_weights: the same of one plain decoding step of the target, W_t, in the same unit.

    Source: CORAL (Weng et al. 2025), Eq. 5; `simulate.model_sizes.drafter_sizes` counts the weights.

    >>> latency_ratio(draft_weights=350, target_weights=7000)
    0.05
    """
    draft_weights, target_weights = checked(draft_weights=draft_weights, target_weights=target_weights)
    return float_or_array(draft_weights / target_weights)


def weight_speedup(
    *, tau: ArrayLike, gamma: ArrayLike, draft_weights: ArrayLike, target_weights: ArrayLike
) -> float | Floats:
    """Return the speedup from weight counts, tau * W_t / (gamma * W_d + W_t); verifying counts as one plain step.

    Args:
        tau: tokens committed per step, the bonus token included.
        gamma: drafter forwards per step.
        draft_weights: weights that one drafter forward reads, W_d.
        target_weights: weights that one plain decoding step of the target reads, W_t, in the same unit.

    Source: CORAL (Weng et al. 2025), Eq. 6.

    >>> weight_speedup(tau=4.0, gamma=6, draft_weights=500, target_weights=7000)
    2.8
    """
    tau, gamma, draft_weights, target_weights = checked(
        tau=tau, gamma=gamma, draft_weights=draft_weights, target_weights=target_weights
    )
    return float_or_array(tau * target_weights / (gamma * draft_weights + target_weights))
