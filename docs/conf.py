"""Sphinx's settings: `tox -e docs` builds docs/_build/html."""

from narwhal import __version__

project = "narwhal-trio"
author = "The narwhal-trio developers"
project_copyright = author
release = version = __version__

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"narwhal-trio {version}"

# Headings can be linked to, as they can on the pages that code hosts render.
myst_heading_anchors = 3
