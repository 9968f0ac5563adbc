"""Laws about what leaves a client and what reaches it."""

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
from torch import Tensor

from rayfed_ssl.config.schema import Config
from rayfed_ssl.data.public_data import PublicSet
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.ledger import account
from rayfed_ssl.training.state_parts import OBJECTIVE_STATE, part_of, with_rule
from rayfed_ssl.trees import digest, is_node, leaves
from tests.laws.laws import Round, fresh


def check_messages(played: list[Round]) -> None:
    """Downloads and uploads hold tensors, numbers, strings and None; each field says its kind, so bytes are counted."""
    for number, round in enumerate(played, 1):
        for client_id, result in round.results.items():
            for message, direction in ((round.downloads[client_id], "down"), (result.upload, "up")):
                for path, leaf in leaves(message):
                    assert leaf is None or type(leaf) in (Tensor, int, float, str), f"{path} is a {type(leaf).__name__}"
                entries = account(message, number, client_id, direction)
                assert {entry.field for entry in entries} == set(told(message))
                assert all(entry.bytes > 0 for entry in entries)
                assert set(entries) <= set(result.ledger), "the ledger misses what crossed"


def check_rules(config: Config, played: list[Round]) -> None:
    """The parts whose weights are uploaded are those that the method's rules call averaged or mixed."""
    federation = fresh(config)
    rules = federation.method.rules(federation.task)
    for round in played:
        for client_id, result in round.results.items():
            model = federation.task.blank(federation.task.architecture(client_id))
            held = {part_of(name) for name in model.state_dict()} | OBJECTIVE_STATE
            sent = {part_of(path.split("/")[-1]) for path, _ in leaves(result.upload) if "/weights/" in path}
            assert not sent or sent == with_rule(rules, "averaged", "mixed") & held, f"{sent} goes up, told is {rules}"


def told(message: Any, prefix: str = "") -> Iterator[str]:
    """Name the fields that carry something; those of another method's message are looked into."""
    for field in fields(message):
        value = getattr(message, field.name)
        if is_node(value) and "kind" not in field.metadata:
            yield from told(value, f"{prefix}{field.name}.")
        elif value is not None:
            yield prefix + field.name


def check_isolation(config: Config, played: list[Round]) -> None:
    """A client's first step depends on its own shard and the public data, not on anybody else's images."""
    federation, first = fresh(config), played[0]
    for client_id, result in first.results.items():
        alone = blacken_others(federation, client_id)
        again = alone.update_client(1, client_id, first.downloads[client_id], None)
        assert digest(again.upload) == digest(result.upload), f"client {client_id} sees others' images"
        assert digest(again.state) == digest(result.state), f"client {client_id} remembers others' images"


def blacken_others(federation: Federation, client_id: int) -> Federation:
    """The same federation, in which all images are black but this client's and the public ones."""
    train, public = federation.dataset.train, federation.public
    visible = [federation.shards[client_id]] + ([public.rows] if public is not None else [])
    images = np.zeros_like(train.images)
    for rows in visible:
        images[rows] = train.images[rows]
    black = replace(train, images=images, path=None)
    dataset = replace(federation.dataset, train=black)
    seen = None if public is None else PublicSet(black, public.rows)
    return Federation(federation.config, dataset, federation.shards, seen)
