"""Makes Python accept small data sets; it is loaded at startup where the documentation's commands are run."""

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
from helpers import image_files

image_files.accept_frey(Path(os.environ["EBLVM_DATA"]))
