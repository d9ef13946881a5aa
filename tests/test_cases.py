"""Every public class of a part has a row in cases.py."""

import importlib
import inspect
import pkgutil

import pytest

import cases

PACKAGES = {
    "energies": [*cases.ENERGIES, *cases.VISIBLE_ENERGIES],
    "posteriors": cases.POSTERIORS,
    "divergences": cases.DIVERGENCES,
    "noise_distributions": cases.NOISE_DISTRIBUTIONS,
    "objectives": [*cases.OBJECTIVES, *cases.LEVEL_OBJECTIVES, *cases.PAIRED_OBJECTIVES],
    "scores": cases.SCORES,
    "hypergradients": [*cases.HYPERGRADIENTS, *cases.OTHER_HYPERGRADIENTS],
    "methods.log_density": [*cases.LOG_DENSITIES, *cases.DENSITY_LOSSES],
    "optimizers": [*cases.OPTIMIZERS, *cases.SCHEDULES],
}

LISTED = ("scores", "log_density")  # folders whose rows list the classes that they test


def public_classes(package):
    """Return the public classes of a folder that need a row.

    They are the subclasses of the folder's abstract classes. If it has no abstract class, or is in LISTED, they are all
    its public classes that are not abstract.
    """
    package = importlib.import_module(f"eblvm_lit.{package}")
    names = [info.name for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    modules = [importlib.import_module(name) for name in names]
    named = {getattr(module, name) for module in modules for name in module.__all__}
    classes = {cls for cls in named if inspect.isclass(cls)}
    abstract = tuple(cls for cls in classes if inspect.isabstract(cls))
    # the classes of folders in LISTED have several base classes, so that all of them are taken
    every = not abstract or package.__name__.endswith(LISTED)
    return {cls for cls in classes - {*abstract} if issubclass(cls, abstract) or every}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_class_has_a_row(package):
    def built(case):
        if package == "hypergradients":
            return {type(case.make(0.1))}
        return {*case.classes} if package.endswith(LISTED) else {type(case.make())}

    covered = set().union(*(built(case) for case in PACKAGES[package]))
    found = public_classes(package)
    assert found, f"no class found in eblvm_lit.{package}"
    assert found == covered, f"cases.py lacks {found - covered}, or lists the unknown {covered - found}"


@pytest.mark.parametrize("rows", PACKAGES.values(), ids=PACKAGES)
def test_names_of_rows_are_unique(rows):
    assert len({case.name for case in rows}) == len(rows)
