"""Makes the data modules accept small data sets.

Python imports this file at startup when a test runs the documentation's commands.
"""

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
from helpers import image_files

image_files.accept_frey(Path(os.environ["EBLVM_DATA"]))
