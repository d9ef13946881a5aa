"""Python starts with this where the commands of the documentation run: small sets are accepted there, too."""

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
from helpers import image_files

image_files.accept_frey(Path(os.environ["EBLVM_DATA"]))
