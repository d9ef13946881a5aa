"""The old names of classes that have moved, so that older checkpoints and shared models can be read."""

from __future__ import annotations

from typing import Any

__all__ = ["with_present_names"]

LIKELIHOOD = (
    *("ais", "annealing", "hamiltonian_ais", "log_partition_sandwich", "plane_quadrature", "visible_quadrature"),
)
STUDIES = ("hypergradient_bias", "hypergradient_error", "score_bias", "whitened_descent")
# A dict from the old name of a module, or of a class with its module, to the current name.
MOVED = {
    **{f"evaluation.{name}": f"evaluation.likelihood.{name}" for name in LIKELIHOOD},
    "evaluation.estimated_likelihood.EstimatedLogLikelihood": "evaluation.likelihood.log_likelihood.LogLikelihood",
    "evaluation.likelihood.LogLikelihood": "evaluation.likelihood.log_likelihood.LogLikelihood",
    **{f"evaluation.{name}": f"evaluation.studies.{name}" for name in STUDIES},
    "methods.energy_discrepancy": "methods.log_density.energy_discrepancy",
    "methods.latent_discrepancy": "methods.log_density.energy_discrepancy",
    **{f"methods.{name}": "methods.log_density.nce" for name in ("nce", "vnce")},
    **{f"methods.{name}": "methods.log_density.snl" for name in ("snl", "vsnl")},
    "evaluation.posterior": "evaluation.posterior_divergence",
    "evaluation.reconstruction": "evaluation.reconstruction_error",
    "evaluation.samples.generator_images": "draws.generator",
    "evaluation.samples.masks": "draws.masks",
    "evaluation.samples.point_samples": "draws.points",
    "evaluation.samples.sample_cache": "draws.cache",
    "samplers.chain_samples.ChainSamples": "samplers.sampler.Sampler",
    "figures.generator_samples.GeneratedSamples": "figures.samples.Samples",
    "figures.generator_energies.GeneratedEnergies": "figures.energies.Energies",
    "figures.generator_interpolation.GeneratedInterpolation": "figures.interpolation_grid.Interpolation",
}


def with_present_names(node: Any) -> Any:
    """Replace old class names in a configuration by current ones.

    Example:
        >>> with_present_names({"ais": {"_target_": "eblvm_lit.evaluation.ais.AIS", "n_chains": 5}})
        {'ais': {'_target_': 'eblvm_lit.evaluation.likelihood.ais.AIS', 'n_chains': 5}}
    """
    if isinstance(node, dict):
        return {key: _present(value) if key == "_target_" else with_present_names(value) for key, value in node.items()}
    return [with_present_names(value) for value in node] if isinstance(node, list) else node


def _present(name: Any) -> Any:
    """Return the current name of a class."""
    module, _, last = str(name).removeprefix("eblvm_lit.").rpartition(".")
    if f"{module}.{last}" in MOVED:
        return f"eblvm_lit.{MOVED[f'{module}.{last}']}"
    return f"eblvm_lit.{MOVED[module]}.{last}" if module in MOVED else name
