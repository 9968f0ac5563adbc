"""What is imported when: the bare package nothing heavy, all of it neither Ray nor Optuna."""

import subprocess
import sys

import pytest

import rayfed_ssl

ALL_OF_IT = """
import importlib, pkgutil, sys
import rayfed_ssl
names = [module.name for module in pkgutil.walk_packages(rayfed_ssl.__path__, "rayfed_ssl.")]
assert len(names) > 30, names
for name in names:
    importlib.import_module(name)
"""


def loaded_after(program: str, *modules: str) -> list[str]:
    """Run a program in a fresh interpreter; returns which of the modules it has loaded."""
    check = f"\nimport sys\nprint(*[name for name in {modules!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program + check], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_all_of_rayfed_ssl_runs_without_ray_and_optuna():
    assert loaded_after(ALL_OF_IT, "ray", "optuna", "actors", "tune", "torch") == ["torch"]


def test_the_bare_package_loads_nothing_heavy():
    heavy = ("torch", "numpy", "pyarrow", "pydantic", "sklearn", "matplotlib", "ray")
    assert loaded_after("import rayfed_ssl; rayfed_ssl.__version__", *heavy) == []


@pytest.mark.parametrize("module", ["rayfed_ssl.config", "rayfed_ssl.runs"])
def test_a_run_loads_neither_figures_nor_scikit_learn(module: str):
    assert loaded_after(f"import {module}", "matplotlib", "sklearn", "torchvision", "pandas") == []


def test_what_the_package_exports_is_there():
    names = "Config ConfigError CheckpointError ClientError Observer Result load_encoder replay resume run"
    assert loaded_after(f"from rayfed_ssl import {', '.join(names.split())}") == []


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'rayfed_ssl' has no attribute 'nothing'"):
        _ = rayfed_ssl.nothing
