"""Schemas that pydantic makes, one for each of its kinds of types."""

import datetime
import decimal
import enum
import ipaddress
import pathlib
import re
import uuid
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, NamedTuple, Optional, TypeVar, Union

import annotated_types
import pydantic
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, create_model
from typing_extensions import TypedDict


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, Field(ge=0, le=9)] = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    good: bool


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: bool


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: bool


class Typed(BaseModel):
    """An object with a type for its other properties."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, int] = Field(init=False)
    a: bool


class Tree(BaseModel):
    value: Annotated[int, Field(ge=0, le=9)]
    children: Annotated[list["Tree"], Field(max_length=2)] = []


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Size:
    width: int
    height: int = 1


class Movie(TypedDict, total=False):
    title: str
    year: int


Item = TypeVar("Item")


class Page(BaseModel, Generic[Item]):
    items: Annotated[list[Item], Field(max_length=3)]
    next: Optional[str] = None


class Aliased(BaseModel):
    first_name: Annotated[str, Field(alias="firstName", max_length=9)]
    size: Annotated[int, Field(serialization_alias="SIZE", validation_alias="Size", ge=0, le=5)]


TYPES = {
    "str": str,
    "str with lengths": Annotated[str, Field(min_length=2, max_length=5)],
    "str with a pattern": Annotated[str, Field(pattern=r"^[A-Z]{2}-\d{3}$")],
    "StringConstraints": Annotated[str, pydantic.StringConstraints(to_lower=True, max_length=9)],
    "int": int,
    "int in a range": Annotated[int, Field(ge=1, lt=10)],
    "int multiple": Annotated[int, Field(multiple_of=5, ge=0, le=100)],
    "float": float,
    "float in a range": Annotated[float, Field(gt=0, le=1)],
    "finite float": pydantic.FiniteFloat,
    "bool": bool,
    "None": None,
    "Any": Any,
    "Decimal": decimal.Decimal,
    "Decimal with digits": Annotated[decimal.Decimal, Field(max_digits=5, decimal_places=2)],
    "bytes": bytes,
    "date": datetime.date,
    "datetime": datetime.datetime,
    "aware datetime": pydantic.AwareDatetime,
    "time": datetime.time,
    "timedelta": datetime.timedelta,
    "UUID": uuid.UUID,
    "UUID4": pydantic.UUID4,
    "Path": pathlib.Path,
    "file path": pydantic.FilePath,
    "regular expression": re.Pattern,
    "SecretStr": pydantic.SecretStr,
    "Base64Str": pydantic.Base64Str,
    "Json": pydantic.Json[list[int]],
    "ByteSize": pydantic.ByteSize,
    "AnyUrl": pydantic.AnyUrl,
    "HttpUrl": pydantic.HttpUrl,
    "PostgresDsn": pydantic.PostgresDsn,
    "IPv4Address": ipaddress.IPv4Address,
    "IPv6Address": ipaddress.IPv6Address,
    "IPv4Network": ipaddress.IPv4Network,
    "IPvAnyAddress": pydantic.IPvAnyAddress,
    "Literal": Literal["a", 1, True, None],
    "Enum": Colour,
    "IntEnum": Level,
    "Optional": Optional[Annotated[str, Field(max_length=9)]],
    "list": list[Colour],
    "list with lengths": Annotated[list[int], Field(min_length=1, max_length=3)],
    "set": set[Colour],
    "frozenset with lengths": Annotated[frozenset[Colour], Field(min_length=1, max_length=2)],
    "deque": deque[bool],
    "tuple": tuple[int, Literal["a"]],
    "tuple of any length": tuple[bool, ...],
    "NamedTuple": Point,
    "dataclass": Size,
    "TypedDict": Movie,
    "dict": dict[str, bool],
    "dict with int keys": dict[int, bool],
    "dict with enum keys": dict[Colour, int],
    "dict with a key pattern": dict[Annotated[str, Field(pattern=r"^k\d+$")], int],
    "dict with lengths": Annotated[dict[str, bool], annotated_types.Len(1, 2)],
    "OrderedDict": OrderedDict[str, int],
    "Union": Union[Annotated[int, Field(ge=0, le=9)], Colour],
    "Union of models": Union[Cat, Dog],
    "discriminated union": Annotated[Union[Cat, Dog], Field(discriminator="kind")],
    "callable discriminator": Annotated[
        Union[Annotated[Cat, Tag("cat")], Annotated[Dog, Tag("dog")]], Discriminator(lambda value: value["kind"])
    ],
    "forbidden extras": Strict,
    "allowed extras": Open,
    "typed extras": Typed,
    "recursive model": Tree,
    "generic model": Page[Level],
    "aliases": Aliased,
    "examples and deprecation": Annotated[bool, Field(examples=[True], deprecated=True, description="A flag.")],
    "JSON schema extra": Annotated[Colour, Field(json_schema_extra={"x-order": 1, "readOnly": True})],
}


def schemas():
    """The schemas by name."""
    return {name: create_model("Answer", value=(kind, ...)).model_json_schema() for name, kind in TYPES.items()}
