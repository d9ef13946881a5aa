"""All metrics that need no downloaded weights, configured for a few samples."""

from helpers.short_runs import NARROW, SHORT_CHAINS

PLACE = "callbacks.evaluation.metrics"
FEW = ("n_samples=9", "n_samples_at_validation=8", "reference.n_max=11", "reference.split=train")
CLASSIFIER = (*FEW, "features.n_steps=2", "features.width=4", "features.dim=5")
SHORT_AIS = ("n_chains=4", "n_betas=3", "n_adapting=2", "base=standard")


def settings(metric, *options):
    return [f"{PLACE}.{metric}.{option}" for option in options]


# Overrides that choose data, methods, metrics and small sizes, for vectors of digits, points in the plane, and images.
METRICS = {
    "digits": (
        *("method=bidsm", "data=digits", "model.h_dim=3"),
        f"evaluation@{PLACE}=[classifier,ksd,likelihood,out_of_distribution,probe]",
        f"+criteria@{PLACE}.fd_classifier.criteria=coverage",
        *settings("fd_classifier", *CLASSIFIER),
        *settings("sandwich.ais", *SHORT_AIS),
        *settings("probe", "n_train=50"),
        *("sampler.batch_size=4", *SHORT_CHAINS),
    ),
    "plane": (
        *("method=bidsm", "data=two_blobs", f"evaluation@{PLACE}=[plane,points]"),
        *settings("points", *FEW),
        *settings("quadrature", "n_cells=6", "tolerance=1"),
        "sampler.n_steps=2",
    ),
    "images": (
        *("data=mnist", "data.size=8", "data.val_size=2", "data.batch_size=4", "method=bidvl", *NARROW),
        *(f"evaluation@{PLACE}=generator", *settings("fd_classifier", *CLASSIFIER, "images.batch_size=4")),
    ),
}
