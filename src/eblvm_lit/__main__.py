"""The commands under one name: python -m eblvm_lit train|evaluate|sample|report [ARGUMENTS]."""

import argparse
import sys
from pkgutil import resolve_name

from eblvm_lit import __version__

COMMANDS = {
    "train": "eblvm_lit.cli.commands:train",
    "evaluate": "eblvm_lit.cli.commands:evaluate",
    "sample": "eblvm_lit.cli.sample:main",
    "report": "eblvm_lit.reports.__main__:main",
}


def main() -> None:
    """Run a command as eblvm-NAME runs it, or print the version."""
    parser = argparse.ArgumentParser("python -m eblvm_lit", description="NAME --help lists the arguments of a command.")
    parser.add_argument("--version", action="version", version=f"eblvm_lit {__version__}")
    parser.add_argument("name", choices=COMMANDS)
    name = parser.parse_args(sys.argv[1:2]).name
    sys.argv[:2] = [f"eblvm-{name}"]
    resolve_name(COMMANDS[name])()


if __name__ == "__main__":
    main()
