import pytest

from rayfed_ssl.data.datasets import open_dataset


@pytest.fixture
def opened(tmp_path):
    """Opens a dataset with stores of its own."""
    return lambda name, **options: open_dataset(name, cache=tmp_path / "stores", **options)
