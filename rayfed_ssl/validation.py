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


def for_plain_data(schema: Any) -> Any:
    """Let lists stand for tuples, strings for paths and mappings for dataclasses, under `STRICT` too.

    Of a list no more than its first mistake is looked at: a hostile file would have millions, of a kB each.
    """
    if isinstance(schema, list):
        return [for_plain_data(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {key: for_plain_data(part) for key, part in schema.items()}
    fail_fast = {"fail_fast": True} if parts.get("type") in ("list", "tuple") else {}
    lax = {"strict": False} if parts.get("type") in ("tuple", "lax-or-strict", "dataclass") else {}
    return parts | fail_fast | lax


class Validated:
    """Base of dataclasses of settings, of pydantic's or plain ones; where one is abstract, a field takes an instance."""

    __pydantic_config__: ClassVar = STRICT

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Validate plain data into an instance."""
        schema: CoreSchema = (
            core_schema.is_instance_schema(cls) if inspect.isabstract(cls) else for_plain_data(handler(source))
        )
        return schema
