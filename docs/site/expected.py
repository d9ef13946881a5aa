"""Prints the table of docs/troubleshooting.md of what default runs reach: python docs/site/expected.py FOLDER...

The folders hold finished runs of the default settings, at any depth, such as the sweep

    python train.py -m data=checkerboard,moons method=dsm,bidsm,vages_dsm,cd,pcd,sm,ssm,ed,vnce,bissm seed=0,1,2
"""

import sys

from eblvm_lit.reports.runs import group_runs, read_runs
from eblvm_lit.utils.numbers import significant

METRICS = {"test/log_likelihood": "↑", "test/fisher": "↓", "test/posterior_kl": "↓"}


def cell(values):
    """The median and the range of some numbers."""
    values = values.dropna()
    if values.empty:
        return ""
    low, middle, high = (significant(value).replace("-", "−") for value in values.quantile([0, 0.5, 1]))
    return middle if len(values) == 1 else f"{middle} ({low} to {high})"


def table(groups):
    """One row for each data set and method, the best log-likelihood of a data set first."""
    names = " | ".join(f"`{name}` {arrow}" for name, arrow in METRICS.items())
    yield f"| data, method | n | {names} |"
    yield "|---|---:|" + "---:|" * len(METRICS)
    best = {id(group): group.pooled("test/log_likelihood").median() for group in groups}
    for group in sorted(groups, key=lambda group: (group.data, -best[id(group)])):
        cells = " | ".join(cell(group.pooled(name)) for name in METRICS)
        yield f"| `data={group.data} method={group.label}` | {len(group.runs)} | {cells} |"


if __name__ == "__main__":
    print("\n".join(table(group_runs(read_runs(sys.argv[1:])[0]))))
