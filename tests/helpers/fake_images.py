"""Sources of images, and a network so small that metrics of images can be tested quickly."""

import torch
from torch import nn

from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.data.base import ArrayDataModule, Splits
from eblvm_lit.draws.base import ImageSource
from eblvm_lit.evaluation.features.base import FeatureExtractor, Features, Titles


class Noise(ImageSource):
    """Images of uniform random bytes; image i depends only on (seed, i)."""

    def __init__(self, *, seed: int = 0):
        self.seed = seed
        self.n_calls = 0

    def images(self, method, data, n):
        self.n_calls += 1
        rows = [torch.randint(256, data.image_shape, generator=keyed_generator(self.seed, i)) for i in range(n)]
        return torch.stack(rows).to(torch.uint8)


class RandomFeatures(FeatureExtractor):
    """A random linear map of the pixels, whose first three outputs also serve as logits.

    It counts the images that it has seen.
    """

    name = "random"
    titles = Titles("fd_random", "kd_random", "random_score")
    resize = "none"

    def __init__(self, *, dim=6, batch_size=7, seed=0):
        self.dim = dim
        self.batch_size = batch_size
        self.seed = seed
        self.n_seen = 0

    def prepare(self, data):
        shape = torch.Size(data.image_shape).numel(), self.dim
        self.map = torch.randn(shape, generator=keyed_generator(self.seed)) / shape[0] ** 0.5

    @property
    def fingerprint(self):
        return str(self.seed)

    def extract(self, images):
        self.n_seen += len(images)
        rows = (images.flatten(1).float() / 100) @ self.map
        return Features(rows, rows[:, :3])


class Textures(ArrayDataModule):
    """A data set of random bytes with one column darker than the others."""

    image_shape = event_shape = (1, 4, 4)
    shift = 0

    def load(self):
        x = torch.randint(256, (90, 1, 4, 4), generator=keyed_generator(0, "textures"), dtype=torch.uint8)
        x[..., 0] //= 2
        x[0, 0, 0, 0] += self.shift
        return Splits(x[:50], x[50:60], x[60:])


def textures(shift=0):
    data = Textures()
    data.shift = shift
    data.setup()
    return data


def random_inception(path):
    """Write random weights for FID's Inception network, scaled so that activations neither vanish nor explode."""
    import io

    from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

    class Unloaded(FeatureExtractorInceptionV3):
        def load_state_dict(self, state):
            pass

    empty = io.BytesIO()
    torch.save({}, empty)
    empty.seek(0)
    network = Unloaded("inception", ["2048"], feature_extractor_weights_path=empty)
    generator = keyed_generator(0)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu", generator=generator)
    nn.init.normal_(network.fc.weight, std=0.2, generator=generator)
    torch.save(network.state_dict(), path)
