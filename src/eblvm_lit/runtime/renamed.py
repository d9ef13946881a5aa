"""Keys and groups that had other names in the release before: whoever uses one is told the new name."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["RENAMED", "exit_if_renamed", "new_name"]

# Old key or choice of a group, and the new one. A key stands for all below it; None: there is none, nor any need of it.
RENAMED = {
    "select": "test_checkpoint",
    "weights": "eval_weights",
    "block": "iterations_per_batch",
    "keep_memory": "keep_freed_cpu_memory",
    "data_law": "data_energy",
    "callbacks.evaluation.metrics.fisher_divergence.data_law": "data_energy",
    "contrast": "noise_distribution",
    "variant=offset": "loss=offset_latent",
    "variant=offset_latent": "loss=offset_heavy_latent",
    "variant=complete": "loss=full_latent",
    "variant=without": "loss=no_latent",
    "variant=joint": "loss=symmetric_joint",
    "variant=canonical": "loss=canonical_joint",
    "variant": "loss",
    "variant.gap": "loss.critic_loss",
    "ratio.basic": "ratio.scale",
    "method.hypergradient": "hypergradient",
    "model.head": "marginal_model.head",
    "default_chain": "chain",
    "default_particles": "particles",
    "latents": None,
}


def new_name(override: str) -> str | None:
    """What to say about a key, or about a choice or value as on the command line; None where the name is no old one.

    Example:
        >>> new_name("variant=without")
        'variant=without is now loss=no_latent.'
        >>> new_name("method.hypergradient.n_terms=3")
        'method.hypergradient.n_terms is now hypergradient.n_terms.'
        >>> new_name("loss=no_latent") is None
        True
    """
    if override in RENAMED:
        old, new = override, RENAMED[override]
    else:
        old = override.partition("=")[0]
        known = [key for key in RENAMED if f"{old}.".startswith(f"{key}.")]
        if not known:
            return None
        longest = max(known, key=len)
        new = RENAMED[longest] and RENAMED[longest] + old.removeprefix(longest)
    return (
        f"{old} is gone: leave it out, the method says which model fits it." if new is None else f"{old} is now {new}."
    )


def exit_if_renamed(arguments: Sequence[str]) -> None:
    """End the process with a sentence and exit code 1 if the command line has an old name."""
    for argument in arguments:
        if not argument.startswith("-") and (sentence := new_name(argument.lstrip("+~"))):
            sys.exit(f"ERROR: {sentence}")
