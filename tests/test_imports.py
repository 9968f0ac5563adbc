"""What imports what, and when: layers without circles, nothing heavy early, no Ray in rayfed_ssl."""

import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

import rayfed_ssl
from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import Federation
from tests.conftest import tiny_tree

ALL_OF_IT = """
import importlib, pkgutil, sys
import rayfed_ssl
names = [module.name for module in pkgutil.walk_packages(rayfed_ssl.__path__, "rayfed_ssl.")]
assert len(names) > 30, names
for name in names:
    importlib.import_module(name)
"""

TINY = tiny_tree("fedavg") | {"rounds": 1, "objective": {"name": "byol", "hidden": 32}}

A_CLIENT = f"""
import torch
from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import Federation

torch.set_num_threads(1)
federation = Federation.open(Config.load({TINY}))
federation.task.blank("resnet18")
server = federation.init_server()
trained = federation.update_client(1, 0, federation.method.download(server, 0), None)
server = federation.update_server(1, server, {{0: trained.upload}}).state
for name, encoder in federation.method.encoders(server, {{}}).items():
    assert "linear" in str(federation.evaluate(encoder, name, 1, True).metrics)
"""

A_TABLE = """
import tempfile
from pathlib import Path
import rayfed_ssl.runs
from rayfed_ssl.records.metric_rows import METRICS
from rayfed_ssl.storage.tables import GrowingTable

with tempfile.TemporaryDirectory() as directory:
    table = GrowingTable(Path(directory) / "metrics.parquet", METRICS)
    table.create()
    assert table.rows == []
    rows = [{"round": 1, "participant": "server", "name": "loss", "value": 0.5}]
    table.append(rows)
    table.merge()
    assert table.rows == rows
"""


def loaded_after(program: str, *modules: str) -> list[str]:
    """Run a program in a fresh interpreter; returns which of the modules it has loaded."""
    check = f"\nimport sys\nprint(*[name for name in {modules!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program + check], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    """All imports of the project, those inside functions too."""
    return grimp.build_graph("rayfed_ssl", "actors", "tune", cache_dir=None)


def test_imports_form_no_circle_even_those_inside_functions(graph: grimp.ImportGraph):
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imports).prepare()  # raises CycleError with the modules of a circle


def test_the_contract_orders_every_package(graph: grimp.ImportGraph):
    settings = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    (contract,) = (c for c in settings["tool"]["importlinter"]["contracts"] if c["type"] == "layers")
    listed = {name for layer in contract["layers"] for name in layer.split(" | ")}
    packages = {
        package for root in ("rayfed_ssl", "actors", "tune", "tune.studies") for package in graph.find_children(root)
    }
    assert listed == packages - {"tune.studies"}


@pytest.mark.slow
def test_all_of_rayfed_ssl_runs_without_ray_optuna_and_a_window_system():
    assert loaded_after(ALL_OF_IT, "ray", "optuna", "actors", "tune", "matplotlib.pyplot", "torch") == ["torch"]


def test_the_bare_package_loads_nothing_heavy():
    heavy = ("torch", "numpy", "pyarrow", "pydantic", "sklearn", "matplotlib", "ray")
    assert loaded_after("import rayfed_ssl; rayfed_ssl.__version__", *heavy) == []


def test_a_run_loads_neither_figures_nor_scikit_learn():
    heavy = ("matplotlib", "sklearn", "torchvision", "pandas", "tensorboard", "wandb", "mlflow")
    assert loaded_after(A_TABLE, *heavy) == []


@pytest.mark.slow
def test_training_and_scoring_load_nothing_of_what_torch_optim_and_torchvision_would():
    Federation.open(Config.load(TINY))  # decodes the digits, for which scikit-learn is loaded
    heavy = ("torch._dynamo", "torch._inductor", "torch.onnx", "sympy", "torchvision", "sklearn", "scipy", "pandas")
    others = ("matplotlib", "rich.console", "jinja2", "typer", "ray", "optuna")
    assert loaded_after(A_CLIENT, *heavy, *others, "torch") == ["torch"]


def test_what_the_package_exports_is_there():
    functions = "load_encoder replay resume run set_up_portable_cpu"
    names = f"CheckpointError ClientError Config ConfigError Observer Result {functions}"
    assert rayfed_ssl.__all__ == names.split()
    assert all(
        getattr(rayfed_ssl, name).__module__ == rayfed_ssl._EXPORTS[name] for name in ("Config", "run", "Result")
    )
    assert all(hasattr(rayfed_ssl, name) for name in names.split())


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'rayfed_ssl' has no attribute 'nothing'"):
        _ = rayfed_ssl.nothing
