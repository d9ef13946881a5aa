"""Tests of the figures, whose content is read back from matplotlib's objects."""

import io

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib import pyplot
from torch import nn

from eblvm_lit.data.base import ArrayDataModule, Splits
from eblvm_lit.data.digits import Digits
from eblvm_lit.draws.choice import draws_of
from eblvm_lit.energies.base import Energy, MarginalEnergy
from eblvm_lit.energies.deep import DeepVectorEnergy
from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
from eblvm_lit.energies.grbm import GRBM
from eblvm_lit.figures.corner import Corner
from eblvm_lit.figures.density import Density, density_on_grid
from eblvm_lit.figures.energies import Energies
from eblvm_lit.figures.filters import Filters
from eblvm_lit.figures.image_grid import tile
from eblvm_lit.figures.learning_curves import LearningCurves, curves_of, draw_curves
from eblvm_lit.figures.samples import Samples
from eblvm_lit.figures.tsne import PosteriorMap
from eblvm_lit.posteriors.gaussian import LinearGaussianPosterior
from eblvm_lit.samplers.gibbs import Gibbs
from eblvm_lit.samplers.langevin import Langevin
from eblvm_lit.training.callbacks.figures import Figures
from helpers.annealing import few
from helpers.models import generator
from helpers.stand_in import StandIn

BOUNDS = ((-7.0, 5.0), (-6.0, 9.0))


class Plane(ArrayDataModule):
    event_shape = (2,)
    bounds = BOUNDS

    def load(self):
        v = torch.randn(3000, 2, generator=generator()) * 0.5 + torch.tensor([-2.0, 3.0])
        return Splits(v[:2000], v[2000:2500], v[2500:])


class Images(ArrayDataModule):
    event_shape = (6,)
    image_shape = (1, 3, 2)

    def load(self):
        v = torch.rand(50, 6, generator=generator())
        return Splits(v[:30], v[30:40], v[40:])


class Numbers(ArrayDataModule):
    """Data that are neither points in the plane nor images."""

    event_shape = (3,)

    def load(self):
        return Splits(*torch.zeros(3, 4, 3))


class Unbounded(Plane):
    """A data set of points in the plane with one outlier, units of its own, and no given plot window."""

    bounds = None
    column_names = ("height", "weight")
    unit_of_v = torch.tensor([2.0, 10.0])

    def load(self):
        splits = super().load()
        splits.train[0] = 1000.0
        return splits

    def in_units(self, v):
        return v * self.unit_of_v.to(v)


class Bowl(MarginalEnergy):
    """The energy of N((-2, 3), I) up to an additive constant, in a class that cannot compute log Z."""

    event_shape = (2,)
    h_dim = 1
    continuous = False

    def __init__(self):
        super().__init__()
        self.centre = nn.Parameter(torch.tensor([-2.0, 3.0]))

    def energy(self, v, h):
        return 0.5 * (v - self.centre).square().sum(-1) + 0 * h.sum(-1)

    def free_energy(self, v):
        return 0.5 * (v - self.centre).square().sum(-1) + 7


class Pair(Energy):
    """A joint energy in which v ~ N((-2, 3), diag(1, 1/4)), and which offers no conditional distributions."""

    event_shape = (2,)
    h_dim = 3
    continuous = True

    def __init__(self):
        super().__init__()
        self.centre = nn.Parameter(torch.tensor([-2.0, 3.0]))

    def energy(self, v, h):
        marginal = 0.5 * ((v - self.centre) * torch.tensor([1.0, 2.0])).square().sum(-1)
        return marginal + 0.5 * (h - v[:, :1]).square().sum(-1)


def grbm(v_dim):
    torch.manual_seed(0)
    model = GRBM(v_dim=v_dim, h_dim=4)
    model.W.data.mul_(2)
    return model


def shifted_grbm():
    """Build a GRBM whose probability mass lies around (-2, 3), in the upper left of the plot window."""
    model = grbm(2)
    model.b.data.copy_(torch.tensor([-2.0, 3.0])), model.W.data.mul_(0.1)
    return model


def setting(data, energy):
    data.setup()
    return StandIn(energy=energy), data, generator()


def image_of(panel):
    return np.asarray(panel.images[0].get_array())


def test_density_is_that_of_the_model_at_the_cells_centres_and_integrates_to_one():
    model = shifted_grbm()
    p = density_on_grid(model, BOUNDS, 30)
    v = torch.tensor([[-7 + 4.5 * 12 / 30, -6 + 20.5 * 15 / 30]])  # the centre of the cell in column 4, row 20
    expected = (-model.free_energy(v) - model.log_partition()).exp()
    assert p[20, 4].item() == pytest.approx(expected.item(), rel=1e-5)
    assert density_on_grid(Bowl(), BOUNDS, 200).sum() * 12 * 15 / 200**2 == pytest.approx(1, abs=1e-3)
    # The density is normalised over the whole plane, so that a window with a quarter of the mass integrates to 0.25.
    corner = density_on_grid(Bowl(), ((-2.0, 5.0), (3.0, 9.0)), 300)
    assert corner.sum() * 7 * 6 / 300**2 == pytest.approx(0.25, abs=1e-3)


def test_the_density_figure_shows_data_and_model_alike():
    figure = Density(n_cells=50, n_bins=40).draw(*setting(Plane(), shifted_grbm()))
    for panel in figure.axes:
        assert (tuple(panel.images[0].get_extent()), panel.images[0].origin) == ((-7, 5, -6, 9), "lower")
        picture = image_of(panel)
        # The brightest cell is the one with the most mass, which must be in the upper left.
        row, column = np.unravel_index(picture.argmax(), picture.shape)
        assert row > picture.shape[0] * 0.5 > column


def test_tiles_keep_every_pixel_in_its_place():
    images = torch.arange(5 * 18.0).view(5, 18)
    board = tile(images, (3, 3, 2), background=-1)
    assert board.shape == (2 * 4 - 1, 3 * 3 - 1, 3)  # five images fill two rows of three places
    for i in range(5):
        y = i // 3 * 4
        x = i % 3 * 3
        torch.testing.assert_close(board[y : y + 3, x : x + 2], images[i].view(3, 3, 2).permute(1, 2, 0))
    assert (board[3] == -1).all()


def test_samples_of_the_plane_are_dots_in_the_window():
    method, data, g = setting(Plane(), shifted_grbm())
    figure = Samples(n_points=500, sampler=Gibbs(n_steps=20)).draw(method, data, g)
    left, right = (np.asarray(panel.collections[0].get_offsets()) for panel in figure.axes)
    np.testing.assert_allclose(right, draws_of(method, data, Gibbs(n_steps=20)).draw(500, seed=0))
    assert {tuple(v) for v in left.astype(np.float32)} <= {tuple(v) for v in Plane().load().train.numpy()}
    assert len({tuple(v) for v in left}) == 500
    assert all(panel.get_xlim() == BOUNDS[0] and panel.get_ylim() == BOUNDS[1] for panel in figure.axes)


def test_samples_without_conditionals_are_langevin_samples_of_v_and_h_together():
    langevin = Langevin(n_steps=400, step_size=0.1)
    figure = Samples(n_points=4000, sampler=langevin).draw(*setting(Plane(), Pair()))
    v = torch.as_tensor(np.asarray(figure.axes[1].collections[0].get_offsets()))
    torch.testing.assert_close(v.mean(0), torch.tensor([-2.0, 3.0]).double(), atol=0.08, rtol=0)
    # Langevin steps of size a change the variance by a relative a / 4 times the curvature of the energy, here by about
    # a tenth at most.
    torch.testing.assert_close(v.std(0), torch.tensor([1.0, 0.5]).double(), atol=0, rtol=0.12)


def test_filters_are_columns_of_the_coupling():
    model = GRBM(v_dim=6, h_dim=5, parametrisation="paper")
    model.log_std.data.fill_(0.3), model.W.data[:, 1].zero_()
    figure = Filters(n=4).draw(*setting(Images(), model))
    board = image_of(figure.axes[0])
    column = model.coupling().detach()[:, 2]
    expected = 0.5 + 0.5 * column / column.abs().max()
    np.testing.assert_allclose(board[4:7, :2].flatten(), expected, atol=1e-6)
    np.testing.assert_allclose(board[:3, 3:5], 0.5)  # the filter of the unit without weights is grey


def test_curves_are_read_column_by_column(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text(
        "val/loss,iteration,train/upper_loss,test/fisher,val/empty,train/rate\n"
        ",10,3.0,,,nan\n,30,1.0,,,1\n5,20,2.0,,,inf\n4,30,,-7,,\n99,,,,,\n"
    )
    curves = {name: [part.tolist() for part in curve] for name, curve in curves_of(path).items()}
    assert curves == {"train/upper_loss": [[10, 20, 30], [3, 2, 1]], "val/loss": [[20, 30], [5, 4]]}
    figure = LearningCurves(csv_path=path).draw(None, None, generator())
    # the curves of training come before those of validation
    assert [panel.get_title() for panel in figure.axes] == ["train/upper_loss", "val/loss"]
    path.write_text("iteration,val/loss\n1,2\n")
    assert draw_curves(path) is None


def test_a_number_that_never_changes_has_no_panel_unless_none_changes(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("iteration,val/loss,val/truth\n1,2,5\n2,3,5\n")
    assert [panel.get_title() for panel in draw_curves(path).axes] == ["val/loss"]
    path.write_text("iteration,val/truth\n1,5\n2,5\n")
    assert [panel.get_title() for panel in draw_curves(path).axes] == ["val/truth"]


class Labelled(ArrayDataModule):
    """Vectors in three distant groups; the label is the group, and labels have names."""

    event_shape = (4,)
    class_names = ("a", "b", "c")

    def load(self):
        v = 0.1 * torch.randn(90, 4, generator=generator()) + 10 * torch.arange(90)[:, None].remainder(3)
        return Splits(*v.split(30))

    def load_labels(self):
        return Splits(*torch.arange(90).remainder(3).split(30))


def with_posterior(data, h_dim=2):
    method, data, g = setting(data, DeepVectorEnergy(v_dim=4, h_dim=h_dim))
    torch.manual_seed(0)
    method.posterior = LinearGaussianPosterior(v_dim=4, h_dim=h_dim)
    return method, data, g


def test_tsne_keeps_near_examples_near_and_has_a_legend_of_labels():
    (axes,) = PosteriorMap().draw(*with_posterior(Labelled())).axes
    groups = [np.asarray(dots.get_offsets()) for dots in axes.collections]
    assert [len(points) for points in groups] == [10, 10, 10]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b", "c"]
    points = np.concatenate(groups)
    distance = np.linalg.norm(points[:, None] - points, axis=-1) + 1e9 * np.eye(30)
    # the nearest neighbour of every example belongs to its own group
    assert (distance.argmin(1) // 10 == np.arange(30) // 10).all()


def test_energies_of_data_and_noise_are_free_energies_or_bounds():
    left, _ = Energies().draw(*setting(Plane(), Bowl())).axes
    assert left.get_xlabel() == "$F(v)$"
    shares, edges, _ = left.patches[0].get_data()
    # The mean of F(v) is 7 + 1/4, because the data have the variance 1/4 in both coordinates.
    assert shares @ (edges[1:] + edges[:-1]) / 2 == pytest.approx(7 + 1 / 4, abs=0.1)
    assert "E_q" in Energies(n=8, n_particles=3).draw(*with_posterior(Labelled())).axes[0].get_xlabel()


@pytest.mark.parametrize(
    ("picture", "data", "energy"),
    [
        (Density(), Numbers, grbm(3)),
        (Density(), Plane, None),
        (Samples(), Images, Pair()),
        (Samples(sampler=Gibbs(n_steps=1)), Numbers, grbm(3)),
        (Corner(sampler=Gibbs(n_steps=1)), Plane, grbm(2)),
        (Corner(sampler=Gibbs(n_steps=1)), Images, grbm(6)),
        (Filters(), Plane, grbm(2)),
        (Filters(), Images, GaussianLatentModel(v_dim=6, h_dim=2)),
        (Energies(), Labelled, DeepVectorEnergy(v_dim=4, h_dim=2)),
        (PosteriorMap(), Labelled, grbm(4)),
    ],
)
def test_figures_draw_nothing_where_they_do_not_apply(picture, data, energy):
    method, data, g = setting(data(), energy)
    assert not picture.applies(method, data) or picture.draw(method, data, g) is None


def test_a_window_follows_the_bulk_of_the_points_and_is_in_their_units():
    method, data, g = setting(Unbounded(), shifted_grbm())
    figure = Density(n_cells=50, n_bins=40).draw(method, data, g)
    left, right = figure.axes
    assert (left.get_xlabel(), left.get_ylabel()) == ("height", "weight")
    x0, x1 = right.get_xlim()
    y0, y1 = right.get_ylim()
    assert -9 < x0 < -6 < -2 < x1 < 1
    assert 0 < y0 < 20 < 40 < y1 < 60
    # Both panels show densities in the units of the points, so that each integrates to almost one.
    for panel in (left, right):
        density = panel.images[0].get_array()
        assert density.sum() * (x1 - x0) * (y1 - y0) / density.size == pytest.approx(
            1, abs=0.35 if panel is right else 0.05
        )
    dots = Samples(n_points=50, sampler=Gibbs(n_steps=5)).draw(method, data, g).axes[0].collections[0].get_offsets()
    assert (abs(dots.data) > 1).all()


def test_a_corner_shows_each_column_and_all_pairs():
    method, data, g = setting(Labelled(), grbm(4))
    figure = Corner(n=20, max_columns=3, sampler=Gibbs(n_steps=2)).draw(method, data, g)
    assert len(figure.axes) == 6
    assert [axes.get_xlabel() for axes in figure.axes[-3:]] == ["$v_{1}$", "$v_{2}$", "$v_{3}$"]
    pair = figure.axes[1]
    n = min(20, len(data.splits.test))
    torch.testing.assert_close(torch.tensor(pair.collections[0].get_offsets().data), data.splits.test[:n, :2].double())


def test_figures_change_no_global_state():
    model = GRBM(v_dim=6, h_dim=3)

    def state():
        return pyplot.get_fignums(), dict(matplotlib.rcParams), torch.get_rng_state().tolist()

    before = state()
    Samples(n=4, sampler=Gibbs(n_steps=2)).draw(*setting(Images(), model)).savefig(io.BytesIO(), format="png")
    assert state() == before
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


def test_images_of_models_without_conditionals_are_chain_samples():
    torch.manual_seed(0)
    method, data, g = setting(Digits(), DeepVectorEnergy(v_dim=64, h_dim=3))
    method.posterior = LinearGaussianPosterior(v_dim=64, h_dim=3)
    method.seed = 5
    figure = Samples(n=6, sampler=few(), deep_images=True).draw(method, data, g)
    drawn = draws_of(method, data, few()).draw(6, seed=5)
    board = tile(drawn, data.image_shape).clamp(0, 1).squeeze(-1)
    np.testing.assert_allclose(image_of(figure.axes[1]), board, atol=1e-6)
    assert Samples(n=6).draw(method, data, g) is None


def drawing(folder, data, energy, formats=("png",), **figures):
    """Return the figures callback, together with the method and the data whose figures it draws."""
    method, data, _ = setting(data, energy)
    return Figures(figures=figures, save_dir=str(folder), formats=list(formats)), method, data


def files(folder):
    return sorted(path.name for path in (folder / "figures").iterdir())


def test_figures_keep_their_iteration_and_are_written_in_every_format_that_was_asked_for(tmp_path):
    callback, method, data = drawing(tmp_path, Images(), grbm(6), dot=Filters(n=1), formats=["png", "pdf"])
    for iteration in (600, 1_200_000):
        # draw returns the PNG files that loggers receive
        assert callback.draw(method, data, iteration) == [tmp_path / "figures" / "dot.png"]
    stems = ("dot", "dot_000600", "dot_1200000")
    assert files(tmp_path) == [f"{stem}.{kind}" for stem in stems for kind in ("pdf", "png")]
    assert (tmp_path / "figures" / "dot.pdf").read_bytes().startswith(b"%PDF")
