"""Sphinx's configuration: `make docs` builds the manuals into build/docs.

The pages are Markdown that also reads well on a code host.  The result needs no network: fonts,
scripts and the search index lie beside the pages.
"""

import tomllib
from pathlib import Path

_PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]

project = "qmd"
version = release = _PROJECT["version"]
html_title = f"qmd {version}"

extensions = ["myst_parser", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = ["decisions/README.md"]

# Links to headings are written as a code host makes them: page.md#some-heading.
myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]

html_theme = "furo"
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}

# Without a language, a block is text and not a guess at Python.
highlight_language = "text"
copybutton_prompt_text = r"\$ |# |>>> "
copybutton_prompt_is_regexp = True
