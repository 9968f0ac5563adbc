"""Settings that pydantic validates: their types say their ranges, and values come as YAML, JSON and Python hold them."""

import inspect
import math
import os
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema


def absolute(path: Path | str) -> Path:
    """Resolve a path, with "~" for the user's directory."""
    return Path(os.path.expanduser(path)).resolve()  # Path.expanduser raises where there is no such user


AbsolutePath = Annotated[Path, AfterValidator(absolute)]
"""A path that means the same in another directory."""

UserPath = Annotated[Path, AfterValidator(lambda path: Path(os.path.expanduser(path)))]
"""A path in which "~" is the user's directory."""

UnitInterval = Annotated[float, Field(ge=0, le=1)]
"""A number in [0, 1]."""

BelowOne = Annotated[float, Field(ge=0, lt=1)]
"""A number in [0, 1)."""

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
"""No value is converted, every unknown key is an error, and numbers are finite."""

NOT_PLAIN = ("tuple", "set", "frozenset", "enum", "lax-or-strict", "dataclass")
"""Types whose values plain data writes in another way; a path is "lax-or-strict"."""


MAX_INTEGER = 2**63
"""Integers of any file are below it, so that no product of some of them overflows a float."""

MAX_WIDTH, MAX_NUMBER = 2**24, 3e38
"""Integers and numbers of methods, objectives, optimizers and protocols are below: float32 holds no larger ones."""


def for_plain_data(
    schema: Any, handler: GetCoreSchemaHandler, integer: int = MAX_INTEGER, number: float = math.inf
) -> Any:
    """Let lists stand for tuples and sets, strings for paths, and mappings for dataclasses, under `STRICT` too.

    Integers lie within `integer` and numbers within `number` where their types name no bound of their own. Of a list no
    more than its first mistake is looked at: a hostile file would have millions, of a kB each.
    """
    if isinstance(schema, list):
        return [for_plain_data(part, handler, integer, number) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "definition-ref":
        target = handler.resolve_ref_schema(schema)
        schema = (
            {key: part for key, part in target.items() if key != "ref"} if target["type"] == "dataclass" else schema
        )
    parts = {key: for_plain_data(part, handler, integer, number) for key, part in schema.items()}
    bound = {"int": integer, "float": number}.get(str(parts.get("type")))
    if bound is not None and bound < math.inf:
        parts |= {} if parts.keys() & {"le", "lt"} else {"lt": bound}
        parts |= {} if parts.keys() & {"ge", "gt"} else {"gt": -bound}
    fail_fast = {"fail_fast": True} if parts.get("type") in ("list", "tuple") else {}
    return parts | fail_fast | ({"strict": False} if parts.get("type") in NOT_PLAIN else {})


class Validated:
    """Base of dataclasses of settings, of pydantic's or plain ones; where one is abstract, a field takes an instance."""

    __pydantic_config__: ClassVar = STRICT

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Validate plain data into an instance."""
        if inspect.isabstract(cls):
            return core_schema.is_instance_schema(cls)
        bounds = () if issubclass(cls, BaseModel) else (MAX_WIDTH, MAX_NUMBER)
        schema: CoreSchema = for_plain_data(handler(source), handler, *bounds)
        return schema
