"""Caches that make the tests faster: each configuration, file and expression is composed or parsed only once.

Each function is a context manager, which tests/conftest.py enters for the whole session.
"""

import dataclasses
import functools
import os
import pickle
from contextlib import contextmanager
from pathlib import Path

import hydra
import omegaconf
import pytest
from hydra._internal import config_loader_impl
from hydra._internal import defaults_list as hydra_defaults_list
from hydra.core.config_store import ConfigStore
from lightning_fabric.utilities import registry
from omegaconf import OmegaConf, grammar_parser
from omegaconf.base import Box

from helpers.shell import CONF


@contextmanager
def each_file_of_conf_is_parsed_once():
    """Cache the parsed files of conf/, because parsing takes a quarter of the time of a composition.

    A composition reads forty files. The files are kept pickled: loading a pickled configuration is six times faster
    than ``copy.deepcopy``.
    """
    load = OmegaConf.load
    parsed = {}

    def load_once(file):
        path = os.path.abspath(file if isinstance(file, str | Path) else file.name)
        key = path, os.stat(path).st_mtime_ns
        parsed[key] = parsed[key] if key in parsed else pickle.dumps(load(file))
        return pickle.loads(parsed[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OmegaConf, "load", load_once)
        yield


def set_wrong_parents(container):
    """Do the work of OmegaConf's ``Box._re_parent``, which sets each node's parent, only where the parent is wrong.

    OmegaConf merges forty files one after the other, and after each it sets the parents of all nodes of all files. This
    took a third of the time of a composition.
    """
    content = container.__dict__["_content"]
    for node in content.values() if isinstance(content, dict) else content if isinstance(content, list) else ():
        if node is not None and node.__dict__["_parent"] is not container:
            node._set_parent(container)
            if isinstance(node, Box):
                set_wrong_parents(node)


@contextmanager
def the_same_options_of_conf_are_composed_once():
    """Cache two steps of a composition by Hydra, give each test a copy, and skip two that change nothing.

    The results depend on the chosen options of conf/, but not on the values of single keys, which Hydra sets
    afterwards. The tests compose 750 configurations, which took a quarter of the whole time of the tests. A
    configuration that also reads other folders is not cached. Because these steps are private functions of Hydra 1.3,
    nothing is cached with other versions.

    The skipped steps are the copy of Hydra's store of registered configurations, which no composition changes, and the map from
    which interpolations in lists of defaults are resolved, where a list has no interpolation.
    """
    if not hydra.__version__.startswith("1.3."):
        yield
        return
    create = config_loader_impl.create_defaults_list
    merge = config_loader_impl.ConfigLoaderImpl._compose_config_from_defaults_list
    choices = hydra_defaults_list._create_interpolation_map
    lists = {}
    merged = {}

    def files(repo):
        """Return the folders of the configuration, or None if one of them is not conf/ and so may change."""
        paths = tuple(source.path for source in repo.get_sources())
        return paths if {*paths} <= {str(CONF), "hydra.conf", ""} else None

    def create_once(repo, config_name, overrides_list, **options):
        chosen = []
        values = []
        for override in overrides_list:
            of_group = repo.group_exists(override.key_or_group) and not isinstance(override.value(), dict)
            (chosen if override.is_sweep_override() or of_group else values).append(override)
        key = files(repo), config_name, *(override.input_line for override in chosen), *sorted(options.items())
        if key[0] is None:
            return create(repo=repo, config_name=config_name, overrides_list=overrides_list, **options)
        if key not in lists:
            lists[key] = create(repo=repo, config_name=config_name, overrides_list=chosen, **options)
        return dataclasses.replace(lists[key], config_overrides=values)

    def merge_once(self, defaults, repo):
        key = files(repo), *map(repr, defaults)
        if key[0] is None:
            return merge(self, defaults=defaults, repo=repo)
        if key not in merged:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Box, "_re_parent", set_wrong_parents)
                merged[key] = pickle.dumps(merge(self, defaults=defaults, repo=repo))
        return pickle.loads(merged[key])

    def choices_to_interpolate(overrides, defaults, self_added):
        """Return the options that ``${...}`` in a list of defaults may name, or None if no entry contains ``${...}``."""
        interpolated = any(entry.is_interpolation() for entry in defaults)
        return choices(overrides, defaults, self_added) if interpolated else None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConfigStore, "__deepcopy__", lambda self, memo: self, raising=False)
        patch.setattr(hydra_defaults_list, "_create_interpolation_map", choices_to_interpolate)
        patch.setattr(config_loader_impl, "create_defaults_list", create_once)
        patch.setattr(config_loader_impl.ConfigLoaderImpl, "_compose_config_from_defaults_list", merge_once)
        yield


@contextmanager
def installed_packages_are_searched_for_plugins_once():
    """Cache the list of installed plugins of Lightning, which each new Trainer looks for in all installed packages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "entry_points", functools.cache(registry.entry_points))
        yield


@contextmanager
def each_interpolation_is_parsed_once():
    """Cache the parse trees of values such as ``${sizes.h_dim}``, which many configurations contain.

    The trees are only read.
    """
    parse = functools.cache(grammar_parser.parse)
    with pytest.MonkeyPatch.context() as patch:
        for module in (omegaconf.base, omegaconf._utils):
            patch.setattr(module, "parse", parse)
        yield
