"""A method that is nothing but its parts: metrics, figures and samplers are tested with it."""

from pytorch_lightning import LightningModule

from eblvm_lit.methods.parts import MethodParts


class StandIn(LightningModule):
    """Parts may be given or set later; those that are not there are None."""

    def __init__(self, *, seed=0, **parts):
        super().__init__()
        self.seed = seed
        for name, part in parts.items():
            setattr(self, name, part)

    @property
    def parts(self):
        return MethodParts(**{name: getattr(self, name, None) for name in MethodParts._fields})


def loaded(data):
    """The same data, set up."""
    data.setup()
    return data
