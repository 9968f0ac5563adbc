"""Settings that pydantic validates: their types say their ranges, and values come as YAML, JSON and Python hold them."""

import inspect
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

UnitInterval = Annotated[float, Field(ge=0, le=1)]
"""A number in [0, 1]."""

BelowOne = Annotated[float, Field(ge=0, lt=1)]
"""A number in [0, 1)."""

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
"""No value is converted, every unknown key is an error, and numbers are finite."""

NOT_PLAIN = ("tuple", "set", "frozenset", "enum", "lax-or-strict", "dataclass")
"""Types whose values plain data writes in another way; a path is "lax-or-strict"."""


def for_plain_data(schema: Any, handler: GetCoreSchemaHandler) -> Any:
    """Let lists stand for tuples and sets, strings for paths, and mappings for dataclasses, under `STRICT` too.

    Of a list no more than its first mistake is looked at: a hostile file would have millions, of a kB each.
    """
    if isinstance(schema, list):
        return [for_plain_data(part, handler) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "definition-ref":
        target = handler.resolve_ref_schema(schema)
        schema = (
            {key: part for key, part in target.items() if key != "ref"} if target["type"] == "dataclass" else schema
        )
    parts = {key: for_plain_data(part, handler) for key, part in schema.items()}
    fail_fast = {"fail_fast": True} if parts.get("type") in ("list", "tuple") else {}
    return parts | fail_fast | ({"strict": False} if parts.get("type") in NOT_PLAIN else {})


class Validated:
    """Base of dataclasses of settings, of pydantic's or plain ones; where one is abstract, a field takes an instance."""

    __pydantic_config__: ClassVar = STRICT

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Validate plain data into an instance."""
        schema: CoreSchema = (
            core_schema.is_instance_schema(cls) if inspect.isabstract(cls) else for_plain_data(handler(source), handler)
        )
        return schema
