"""A stand-in for methods that only has their parts, for tests of metrics, figures and samplers."""

from pytorch_lightning import LightningModule

from eblvm_lit.methods.parts import MethodParts


class StandIn(LightningModule):
    """A method whose parts are given at construction or set later; missing parts are None."""

    def __init__(self, *, seed=0, **parts):
        super().__init__()
        self.seed = seed
        for name, part in parts.items():
            setattr(self, name, part)

    @property
    def parts(self):
        return MethodParts(**{name: getattr(self, name, None) for name in MethodParts._fields})


def loaded(data):
    """Set up a data module with its arrays loaded, and return it."""
    data.setup()
    return data
