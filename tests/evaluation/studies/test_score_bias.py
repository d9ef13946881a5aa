"""Tests of the study of the bias of variational scores, on models with closed forms."""

import pytest
import torch

from cases import ENERGIES, V_DIM
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.evaluation.studies.score_bias import ScoreBias
from helpers.stand_in import StandIn

pytestmark = pytest.mark.usefixtures("float64")
GRBMS = [case for case in ENERGIES if case.name.startswith("grbm")]
GAUSSIAN = next(case for case in ENERGIES if case.name == "gaussian-latent")


@pytest.mark.parametrize(("case", "q"), [(GRBMS[0], "kl"), (GAUSSIAN, "fisher")])
def test_the_study_finds_slopes_of_a_half_and_no_bound_broken(case, q):
    method = StandIn()
    method.energy = case.make()
    v = torch.randn(3, V_DIM)
    method.posterior = case.exact_posterior(method.energy)
    study = ScoreBias(levels=[1e-4, 1e-3, 1e-2, 1.0], n_repeats=5)
    found = study.compute(method, v, keyed_generator(0))
    assert 0 < found["score_bias_bound_ratio"] < 1
    small = ScoreBias(levels=[1e-4, 1e-3, 1e-2]).compute(method, v, keyed_generator(0))
    for name in ("vaes", "vages"):
        assert small[f"score_bias_slope_{name}_{q}"] == pytest.approx(0.5, abs=0.01)
    figure = study.figure()
    assert len(figure.axes) == (2 if q == "fisher" else 1)
    lines = {line.get_label(): line.get_ydata() for line in figure.axes[0].lines}
    assert lines["VaES"].tolist() == [found[f"score_bias_vaes_t{i}"] for i in range(4)]
    assert (lines["VaGES"] < lines["VaGES, bound"]).all()


def test_the_study_gives_nothing_for_models_without_closed_form():
    assert not ScoreBias().applies(StandIn(), None)
    assert ScoreBias().figure() is None
