"""The training of the classifiers of MNIST that are part of the package, in src/eblvm_lit/pretrained.

python -m benchmarks.classifiers data.root=data trains one for each size of the images, on one thread. The files are
replaced, so that the version in conf/evaluation/_classifier.yaml must be raised, and all distances be measured again.
"""

from __future__ import annotations

import sys

from safetensors.torch import save_file

from eblvm_lit.cli.compose import composed
from eblvm_lit.runs.instantiate import instantiate
from eblvm_lit.utils.torch_settings import torch_settings

SIZES = (32, 16)


def main(*overrides: str) -> None:
    for size in SIZES:
        cfg = composed(
            ["data=mnist", f"data.size={size}", "evaluation@callbacks.evaluation.metrics=classifier", *overrides]
        )
        data = instantiate(cfg.data, "data")
        data.setup()
        features = instantiate(cfg.callbacks.evaluation.metrics.fd_classifier.features, "features")
        network, accuracy = features.trained(data)
        state = {name: value.contiguous() for name, value in network.state_dict().items()}
        facts = {"data": "MNIST", "size": size, "version": features.asked_version, "accuracy": accuracy}
        save_file(state, features.shipped(data), {name: str(value) for name, value in facts.items()})
        print(facts, features.shipped(data))


if __name__ == "__main__":
    with torch_settings(threads=1):
        main(*sys.argv[1:])
