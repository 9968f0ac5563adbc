"""Make the notebooks of the tutorials from their scripts: `uv run --group docs python docs/notebooks.py`."""

import tomllib
from pathlib import Path

import jupytext
import nbformat

ROOT = Path(__file__).parents[1]
TUTORIALS = ROOT / "docs" / "tutorials"

INSTALL = """In Colab, install the package first, with the address of this project's repository:

    %pip install git+ADDRESS"""


def repository() -> str:
    """Read the address of the repository, or "" where pyproject.toml has none."""
    urls: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"].get("urls", {})
    return urls.get("Repository", "")


def notebook_of(script: Path) -> str:
    """Write a script as a notebook whose first cell installs the package in Colab; the same script gives the same text."""
    notebook = jupytext.read(script)
    if address := repository():
        install = nbformat.v4.new_code_cell(f"%pip install -q git+{address}")
    else:
        install = nbformat.v4.new_markdown_cell(INSTALL)
    notebook.cells.insert(0, install)
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
    return str(nbformat.writes(notebook)) + "\n"


def main() -> None:
    """Write all notebooks beside their scripts."""
    for script in TUTORIALS.glob("*.py"):
        script.with_suffix(".ipynb").write_text(notebook_of(script))


if __name__ == "__main__":
    main()
