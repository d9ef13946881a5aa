"""What lasts of an iteration of BiDVL, and what of it has changed."""

import torch


def flat(state):
    """All that lasts beside the optimizers, by name."""
    params = {f"{network}.{name}": p for network, own in state.params.items() for name, p in own.items()}
    return {**params, **state.buffers}


def changed(before, after):
    before, after = flat(before), flat(after)
    return {name for name, value in before.items() if not torch.equal(value, after[name])}
