"""Sphinx configuration. `make docs` builds the pages; a dead reference fails the build."""

import os
import sys
from pathlib import Path

import interlace

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "interlace"
author = "The interlace authors"
copyright = "The interlace authors"
release = version = interlace.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "command_line",
    "settings",
]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = "interlace"

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 3
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_numpy_docstring = False

# Only our own names must resolve: the build works without the internet, so it knows no other
# project's index.
nitpick_ignore_regex = [(r"py:.*", r"(?!interlace\b).*"), (r"py:.*", r"interlace\..*\.(P|R|S)$")]

linkcheck_timeout = 20
