"""The docs site: `uv run --group docs sphinx-build -W docs site`."""

import re
import sys
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

_ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(_ROOT / "docs"))
from notebooks import TUTORIALS, repository  # noqa: E402

_project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
REPOSITORY = repository()
"""Set it in pyproject.toml: the links of the tutorials to Colab and of pages to source files follow from it."""

project = _project["name"]
author = _project["authors"][0]["name"]
copyright = author
version = release = _project["version"]

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["**.ipynb", "conf.py", "notebooks.py"]
highlight_language = "none"

myst_enable_extensions = ["colon_fence", "dollarmath", "substitution"]
myst_heading_anchors = 4

# The tutorials are scripts, which are run when the site is built and again when they have changed.
nb_custom_formats = {".py": ["jupytext.reads", {"fmt": "py:percent"}]}
nb_execution_mode = "cache"
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_execution_timeout = 600
nb_merge_streams = True
_colab = (
    REPOSITORY.replace("https://github.com", "https://colab.research.google.com/github") + "/blob/main/docs/tutorials"
)
_links = " | ".join(f"[{script.stem}]({_colab}/{script.stem}.ipynb)" for script in sorted(TUTORIALS.glob("*.py")))
_upload = (
    "To open one in [Colab](https://colab.research.google.com), take its notebook and choose File, Upload notebook."
)
myst_substitutions = {"colab": f"Open in Colab: {_links}" if REPOSITORY else _upload}

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_use_type_comments = False
napoleon_use_ivar = True
napoleon_use_rtype = False
napoleon_custom_sections = [("Class attributes", "params_style")]
default_role = "code"  # docstrings write names as `name`

html_theme = "furo"
html_static_path = ["_static"]
html_js_files = ["accessible.js"]
html_css_files = ["dark.css"]
html_title = f"{project} {version}"
html_copy_source = False
html_show_sphinx = False


_OUTSIDE = re.compile(r"\[`?([^`\]]+)`?\]\(((?:\.\./)+[\w/.-]+\.\w+)\)")


def _link_outside(app: Sphinx, page: str, source: list[str]) -> None:
    """Turn links to files outside docs into links to the repository, or into downloads where its address is not set."""

    def link(match: re.Match[str]) -> str:
        text, path = match.groups()
        file = (Path(app.srcdir, page).parent / path).resolve()
        if file.is_relative_to(app.srcdir):
            return match[0]
        if REPOSITORY:
            return f"[`{text}`]({REPOSITORY}/blob/main/{file.relative_to(_ROOT)})"
        return f"{{download}}`{text} <{path}>`"

    source[0] = _OUTSIDE.sub(link, source[0])


def setup(app: Sphinx) -> None:
    """Register what this site adds to Sphinx."""
    app.connect("source-read", _link_outside)
