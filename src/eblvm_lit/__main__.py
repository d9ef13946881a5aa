"""The commands python -m eblvm_lit train|evaluate|sample|report, which are also installed as eblvm-train and so on."""

import argparse
import sys
from pathlib import Path
from pkgutil import resolve_name

from eblvm_lit import __version__

COMMANDS = {
    "train": "eblvm_lit.cli.commands:train",
    "evaluate": "eblvm_lit.cli.commands:evaluate",
    "sample": "eblvm_lit.cli.sample:main",
    "report": "eblvm_lit.reports.__main__:main",
}


def main() -> None:
    """Run the command that is named by the script or by the first argument, or print the version."""
    version = f"eblvm_lit {__version__}"
    name = Path(sys.argv[0]).stem.removeprefix("eblvm-")
    if name not in COMMANDS:
        parser = argparse.ArgumentParser(
            "python -m eblvm_lit", description="NAME --help lists the command's arguments."
        )
        parser.add_argument("--version", action="version", version=version)
        parser.add_argument("name", choices=COMMANDS)
        name = parser.parse_args(sys.argv[1:2]).name
        sys.argv[:2] = [f"eblvm-{name}"]
    if sys.argv[1:] == ["--version"]:  # handled here, because Hydra would print the version of Hydra
        print(version)
    else:
        resolve_name(COMMANDS[name])()


if __name__ == "__main__":
    main()
