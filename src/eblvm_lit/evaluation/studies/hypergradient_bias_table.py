"""The table of the bias of unrolled hypergradients, its metrics and its figure."""

from __future__ import annotations

from typing import NamedTuple

from matplotlib.figure import Figure

from eblvm_lit.figures.style import new_figure, styled

__all__ = ["HypergradientBiasTable"]


class HypergradientBiasTable(NamedTuple):
    r"""The errors of hypergradients, and the distances of phi from its optimum, for each number of steps.

    K is the number of lower-level steps, and N the number of unrolled steps.

    Attributes:
        optimum_kl: The mean KL divergence of q from p at phi*, in nats.
        at_optimum: The error of the hypergradient of N steps that are unrolled from phi*, for each N.
        biases: The error of the hypergradient after K lower-level steps and N unrolled steps, for each K, then each N.
        distances: The distance between phi after K lower-level steps and phi*, for each K.

    Example:
        >>> table = HypergradientBiasTable(0.0, {0: 0.5}, {5: {0: 1.0}}, {5: 2.0})
        >>> list(table.metrics())
        ['optimum_kl', 'hypergradient_bias_optimum_n0', 'phi_distance_k5', 'hypergradient_bias_k5_n0']
        >>> [text.get_text() for text in table.figure().axes[0].get_legend().get_texts()]
        ['K = 5', '$\\phi^0 = \\phi^*$']
    """

    optimum_kl: float
    at_optimum: dict[int, float]
    biases: dict[int, dict[int, float]]
    distances: dict[int, float]

    def metrics(self) -> dict[str, float]:
        """Return all numbers of the table under their metric names."""
        found = {"optimum_kl": self.optimum_kl}
        found |= {f"hypergradient_bias_optimum_n{n}": bias for n, bias in self.at_optimum.items()}
        for k, row in self.biases.items():
            found[f"phi_distance_k{k}"] = self.distances[k]
            found |= {f"hypergradient_bias_k{k}_n{n}": bias for n, bias in row.items()}
        return found

    @styled
    def figure(self) -> Figure:
        """Draw the hypergradient's bias, and the distance of phi from its optimum, against the numbers of steps."""
        figure = new_figure(8, 3.4)
        left, right = figure.subplots(1, 2)
        left.set_title("bias of the hypergradient")
        curves = {f"K = {k}": row for k, row in self.biases.items()} | {r"$\phi^0 = \phi^*$": self.at_optimum}
        for label, row in curves.items():
            left.plot(list(row), list(row.values()), marker="o", label=label)
        left.set(yscale="log", xlabel="unrolled steps N", ylabel="relative error")
        left.legend()
        right.set_title(r"distance of $\phi$ from $\phi^*$")
        right.plot(list(self.distances), list(self.distances.values()), marker="o")
        right.set(xlabel="lower steps K", ylabel=r"$\|\phi^0 - \phi^*\|$")
        return figure
