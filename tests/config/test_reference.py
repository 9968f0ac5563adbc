"""The page that explains the configuration."""

from pathlib import Path

from rayfed_ssl.config.reference import all_keys, page

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_tells_what_the_code_has() -> None:
    text = PAGE.read_text()
    assert text == page(text), "run: uv run python -m rayfed_ssl.config.reference docs/configuration.md"


def test_every_key_is_explained() -> None:
    keys = {key.name for key in all_keys()}
    assert {"seed", "public", "training.optimizer.lr", "evaluation.linear.lr", "method.queue_size"} <= keys
    assert {"method.mu", "objective.form"} <= keys
    assert all(len(key.meaning) > 1 for key in all_keys())
