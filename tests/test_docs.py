"""The docs and the README: every code block is run, or resolved as far as it can be without a cluster or a download."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from glob import glob
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
import yaml
from typer.testing import CliRunner

from rayfed_ssl import Config
from rayfed_ssl.config.recipes import parse_setting, set_value
from rayfed_ssl.config.schema import takes_text
from rayfed_ssl.evaluation.registry import PROTOCOLS
from rayfed_ssl.records.run_record import RunRecord
from tests.data.pictures import png, write_folder
from tune.cli.app import app
from tune.studies.definition.files import load_study
from tune.studies.definition.layers import Inheritance
from tune.studies.definition.schema import StudyFile

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TUTORIALS = sorted(DOCS.glob("tutorials/*.py"))

HISTORY = {DOCS / "LOG.md", *(DOCS / "decisions").glob("*.md")}
"""What was run and decided then; commands may have changed since."""

PAGES = sorted(
    {ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md"), *ROOT.glob("benchmarks/**/*.md")} - HISTORY
)

PLACEHOLDERS = {
    "RECIPE": "digits",
    "HOST:PORT": "127.0.0.1:6379",
    "s3://BUCKET": "s3://bucket",
    "LR": "0.01",
}

OTHER_PROGRAMS = {
    *(
        "bash",
        "chmod",
        "docker",
        "export",
        "helm",
        "kubectl",
        "mkdir",
        "nvidia-cuda-mps-control",
        "pip",
        "ray",
        "sbatch",
    ),
    *("sphinx-build", "uv"),
}
"""What a block may call beside this project's own program and modules; its syntax alone is checked."""

EXECUTED = ("first-run", "own-photographs", "own-method", "own-encoder", "own-parts", "report", "ledger", "bits")
"""Pages whose blocks are run one after the other, in the slow tier; tests/export runs those of export.md."""

SMALL = ("rounds=1", "training={epochs: 1, batch: 32}", "data.train_limit=800", "evaluation.linear.epochs=2")

PUBLIC = (
    *("actors", "rayfed_ssl", "rayfed_ssl.method", "rayfed_ssl.methods", "rayfed_ssl.objectives", "rayfed_ssl.models"),
    *("rayfed_ssl.data.partitions", "rayfed_ssl.reports.html", "rayfed_ssl.testing"),
)
"""Modules all of whose names the API reference has."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    language: str
    text: str

    @property
    def file(self) -> str | None:
        """The file whose content the block is, which its first line names in a comment."""
        match = re.match(r"# ([\w-]+\.(?:py|yaml))\n", self.text)
        return match[1] if match else None


def blocks(page: Path) -> Iterator[Block]:
    for language, text in re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(), flags=re.DOTALL | re.MULTILINE):
        yield Block(page, language, text)


def commands(block: Block) -> Iterator[list[str]]:
    """List a shell block's commands as words, with placeholders filled in."""
    text = block.text.replace("\\\n", " ")
    for placeholder, value in PLACEHOLDERS.items():
        text = re.sub(rf"(?<![\w/]){re.escape(placeholder)}(?!\w)", value, text)
    for line in text.splitlines():
        for command in re.split(r" && ", line):
            words = shlex.split(command, comments=True)
            while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):  # settings of the environment
                del words[0]
            if words[:2] == ["uv", "run"]:
                del words[: 4 if words[2] == "--group" else 2]
            if words:
                yield [words[0].removeprefix(".venv/bin/"), *words[1:]]


ALL = [block for page in PAGES for block in blocks(page)]
SHELL = [(block, words) for block in ALL if block.language == "sh" for words in commands(block)]


def name_of(entry: tuple[Block, list[str]]) -> str:
    return f"{entry[0].page.relative_to(ROOT)}: {' '.join(entry[1])[:60]}"


def test_every_block_says_its_language():
    for page in PAGES:
        opened = page.read_text().split("\n```")[1::2]
        assert all(re.match(r"\w|\{", block) for block in opened), page
        assert not re.search(r"^(?![-*\d ]).*\n\n {4}\S", page.read_text(), flags=re.M), f"{page} has an indented block"
    assert {block.language for block in ALL} <= {"sh", "python", "yaml", "text"}


@pytest.mark.parametrize(
    "block", [block for block in ALL if block.language == "yaml"], ids=lambda block: block.page.stem
)
def test_a_file_in_the_docs_is_valid(block: Block):
    tree = yaml.safe_load(block.text)
    if "begin" not in tree:
        StudyFile.model_validate(tree)
    else:
        Inheritance.model_validate(tree["begin"])


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_to_files_lead_somewhere(page: str):
    """Sphinx checks those of docs."""
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / page).read_text())
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("entry", SHELL, ids=name_of)
def test_a_command_can_be_run(entry: tuple[Block, list[str]]):
    program, *arguments = entry[1]
    if program == "rayfed-ssl":
        resolve(arguments)
    elif program == "python" and arguments[0] == "-m":
        assert find_spec(arguments[1])
    elif program in ("python", "pytest"):
        assert all((ROOT / word).is_file() for word in arguments[:1])
    else:
        assert program in OTHER_PROGRAMS or (ROOT / program).is_file()


def resolve(arguments: list[str]) -> None:
    """Parse a call of the program, and load all configurations that it names."""
    group = typer.main.get_command(app)
    context = group.make_context("rayfed-ssl", list(arguments), resilient_parsing=arguments[0].startswith("--"))
    if arguments[0].startswith("--"):
        assert arguments[0] in {name for parameter in group.get_params(context) for name in parameter.opts}
        return
    name, command, rest = group.resolve_command(context, arguments)
    values = command.make_context(name, rest).params
    words = [str(word) for word in values.get("arguments") or values.get("settings") or ()]
    match name:
        case "run" | "partition" | "doctor":
            load(words)
        case "resume":
            Config.load("digits", *words)
        case "evaluate":
            assert set(values["protocol"] or ()) <= set(PROTOCOLS)
            apply_all(words)
        case "sweep" if words and not words[0].endswith(".yaml"):
            load_study(*(words if values["resume"] is None else ["digits", *words]))
        case "benchmark":
            assert set(values["system"] or ()) <= set(load_study(values["name"], kind="benchmark").rows)
            apply_all(words)
        case "reproduce":
            study = load_study(values["name"], kind="reproduction", size=values["size"])
            assert study.only(values["row"], values["column"]).points()
            apply_all(words)


def load(words: list[str]) -> None:
    recipe, *settings = words or ["digits"]
    if "=" in recipe:
        recipe, settings = "digits", words
    if recipe.endswith("config.yaml"):
        recipe = "fedbyol"  # a run's own configuration
    Config.load(recipe, *settings)


def apply_all(words: list[str]) -> None:
    tree: dict[str, object] = {}
    for word in words:
        set_value(tree, *parse_setting(word, takes_text))


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with pictures in DIR, as folder and as Parquet, and the examples."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names = [f"{label}/{number}.png" for label in ("cat", "dog", "owl") for number in range(40)]
    pictures = write_folder(tmp_path / "DIR", names, (20, 24, 3))
    rows = [{"image": {"bytes": png(pixels)}, "label": name.split("/")[0]} for name, pixels in pictures.items()]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "DIR" / "train.parquet")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    return tmp_path


@pytest.mark.timeout(900)  # a page has up to eight runs
@pytest.mark.slow
@pytest.mark.parametrize("name", EXECUTED)
def test_the_blocks_of_a_page_run(name: str, workspace: Path):
    names: dict[str, object] = {}
    for run in set(re.findall(r"runs/[A-Z]+\b", (DOCS / f"{name}.md").read_text())):
        call(["run", "fedsimclr", "--out", run], name)
    for block in blocks(DOCS / f"{name}.md"):
        if block.file:
            (workspace / block.file).write_text(block.text)
        elif block.language == "python":
            exec(compile(block.text, f"{name}.md", "exec"), names)
        elif block.language == "sh":
            for program, *arguments in commands(block):
                if program == "rayfed-ssl" and not arguments[0].startswith("--"):
                    call(arguments, name)
    if name == "bits":
        rounds = [RunRecord.open(run).manifest.rounds for run in Path("runs").iterdir() if run.name != "portable"]
        assert len({committed[-1].state_sha256 for committed in rounds}) == 1 < len(rounds)


@pytest.mark.slow
def test_the_python_of_the_readme_runs(workspace: Path):
    for block in blocks(ROOT / "README.md"):
        if block.language == "python":
            exec(compile(block.text, "README.md", "exec"), {})


def call(arguments: list[str], page: str) -> None:
    """Run the program, federations in small; in this process, but for the page on bits, which kills actors."""
    if arguments[0] == "run":
        arguments = [*arguments, *(SMALL[1:] if page == "bits" else SMALL)]
    arguments = [path for word in arguments for path in (sorted(glob(word)) if "*" in word else [word])]
    if page == "bits":
        command = [sys.executable, "-m", "tune.cli", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
        assert done.returncode == 0, (arguments, done.stdout + done.stderr)
    else:
        local = ["engine.executor=local"] * (arguments[0] == "run")
        result = CliRunner().invoke(app, [*arguments, *local])
        assert result.exit_code == 0, (arguments, result.output)


@pytest.mark.parametrize("module", PUBLIC)
def test_the_reference_has_all_public_names(module: str):
    text = "".join(page.read_text() for page in (DOCS / "api").glob("*.md"))
    found = import_module(module)
    names = getattr(found, "__all__", [name for name, value in vars(found).items() if isinstance(value, type)])
    missing = [name for name in names if not re.search(rf"\b{name}\b", text)]
    assert not missing


@pytest.mark.parametrize("script", TUTORIALS, ids=lambda path: path.stem)
def test_a_notebook_is_that_of_its_script(script: Path):
    from docs.notebooks import notebook_of

    assert script.with_suffix(".ipynb").read_text() == notebook_of(script), "run: uv run python docs/notebooks.py"
