"""Hostile changes to files: of bytes, of trees of JSON and YAML, of Parquet tables and of safetensors headers."""

import copy
import json
from collections.abc import Iterator
from io import BytesIO
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SCALARS = (
    *(None, True, -1, 0, 1.5, 2**31, -(2**63), 2**64, float("nan"), float("inf"), 1e308),
    *("", "a\0b", "\ud800", "\x1b[2J\n\u202e", "x" * 50_000, "../../outside", "/dev/zero", "outside", "..", "~"),
    *("evil_module:Thing", "os:system", "s3://nowhere/x", "<script>", "fedprox", "resnet8", "torchvision:resnet18"),
)
TREES = (10**400, [], {}, [[]], [None], {"": None}, [0] * 3000, {str(n): n for n in range(3000)}, {"value": 1})


class Twin(str):
    """A key that is there twice."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


def mutate_tree(tree: Any, rng: Random) -> Any:
    """Change one to three places of plain data."""
    tree = {"": copy.deepcopy(tree)}
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = list(_places(tree))
        node, key = rng.choice(places)
        value, change = (
            node[key],
            rng.choice(("scalar",) * 5 + ("tree", "other", "delete", "twin", "deep", "near", "near")),
        )
        node[key] = copy.deepcopy(rng.choice(TREES if change == "tree" else SCALARS))
        if change == "delete" and node is not tree:
            del node[key]
        elif change == "twin" and isinstance(node, dict) and node is not tree:
            node[Twin(key)] = value
        elif change == "deep":
            node[key] = value
            for _ in range(rng.choice((1, 30, 190, 250))):
                node[key] = rng.choice(([node[key]], {str(key): node[key]}))
        elif change == "other":
            node[key] = copy.deepcopy(rng.choice([other[each] for other, each in places]))
        elif change == "near" and isinstance(value, int | float):
            node[key] = rng.choice((value + 1, -value, value * 1000, float(value)))
        elif change == "near" and isinstance(value, str):
            at = rng.randrange(len(value) + 1)
            node[key] = value[:at] + rng.choice(("\0", "/../", "\ud800", "é", ":", "\n", "0")) + value[at + 1 :]
    return tree[""]


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(node) if isinstance(node, dict) else range(len(node)):
        yield node, key
        if isinstance(node[key], dict | list):
            yield from _places(node[key])


def mutate_bytes(content: bytes, rng: Random) -> bytes:
    """Cut, repeat, insert, remove, flip, or write a huge number at the beginning or the end."""
    at, length = rng.randrange(len(content) + 1), rng.choice((1, 4, 64, 4000))
    number = rng.choice((2**64 - 1, 2**63 - 1, 2**31 - 1, 100_000_000)).to_bytes(8, "little")
    flipped = bytearray(content)
    for _ in range(length):
        flipped[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return rng.choice(
        (
            content[:at],
            content[:at] + content[at : at + length] * 50 + content[at:],
            content[:at] + rng.randbytes(length) + content[at:],
            content[:at] + content[at + length :],
            number + content[8:],
            content[:-8] + number[:4] + content[-4:],
            bytes(flipped),
            bytes(flipped),
            rng.choice((b"", b"\0", b"{}", b"[]", b"null", b"PAR1", b"&a [*a, *a]")),
        )
    )


def mutate_json(content: bytes, rng: Random) -> bytes:
    return json.dumps(mutate_tree(json.loads(content), rng)).encode()


def mutate_parquet(content: bytes, rng: Random) -> bytes:
    """Change columns: two of a name, none, empty or hostile cells, or a few kB that are gigabytes when they are read."""
    table = pq.read_table(BytesIO(content))
    column, change = rng.randrange(table.num_columns), rng.randrange(7)
    name, values = table.column_names[column], table[column].to_pylist()
    if change == 0:
        table = table.append_column(name, table[column])
    elif change == 1:
        table = table.drop_columns([name])
    elif change == 2:
        zeros = pa.array([0] * (2 << 20), pa.int32())
        texts = pa.DictionaryArray.from_arrays(zeros, pa.array(["x" * 2000]))
        table = pa.table({each: rng.choice((texts, zeros)) for each in table.column_names})
    else:
        value = rng.choice(SCALARS)
        values = [value if change == 3 or rng.random() < 0.1 else old for old in values]
        try:
            changed = pa.array(values, table[column].type if change < 6 else None)
        except (pa.ArrowException, OverflowError, UnicodeError):
            changed = pa.nulls(len(values))
        table = table.set_column(column, name, changed)
    buffer = BytesIO()
    pq.write_table(table, buffer, compression=rng.choice(("snappy", "snappy", "none", "gzip")))
    return buffer.getvalue()


def mutate_safetensors(content: bytes, rng: Random) -> bytes:
    """Change the header, its metadata, or the structure there, which is JSON in a string."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    part, change = header["__metadata__"], rng.randrange(3)
    if change == 0:
        header = mutate_tree(header, rng)
    elif change == 1 and "structure" in part:
        part["structure"] = json.dumps(mutate_tree(json.loads(part["structure"]), rng))
    else:
        header["__metadata__"] = mutate_tree(part, rng)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + length :]
