"""The table of all methods in small: what its rows are, without any run."""

from dataclasses import replace
from pathlib import Path

from benchmarks.methods import TABLES, Cell
from rayfed_ssl.config.schema import Config
from rayfed_ssl.methods import METHODS


def test_every_method_has_a_row_of_its_own_settings() -> None:
    configs = {}
    for table, (rows, splits) in TABLES.items():
        for row in rows:
            recipe, *settings = Cell(table, row, next(iter(splits)), 0).words
            configs[table, row] = Config.load(recipe, *settings)
    compared = {config.method_name for (table, _), config in configs.items() if table == "all"}
    assert compared == {name for name, info in METHODS.items() if info.rounds is None}
    every = [config.dump() for (table, _), config in configs.items() if table == "all"]
    assert all(every.count(settings) == 1 for settings in every)


def test_changed_settings_hold_over_a_rows_own_and_name_the_run() -> None:
    plain = Cell("mixed", "FedMD", "ResNet-18, VGG-9, AlexNet, ResNet-34", 0)
    longer = replace(plain, changes=("rounds=24", "training.batch=256"))
    recipe, *settings = longer.words
    config = Config.load(recipe, *settings)
    assert (config.rounds, config.training.batch) == (24, 256)
    assert longer.directory(Path()) != plain.directory(Path())
