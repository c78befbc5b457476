"""The tool, question and helpers that the suites of all packages share."""

import math
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

GREETING = "Say hello."
QUESTION = "Visit the sea for ten minutes."
UNKNOWN_MODEL = "No model 'nobody' is installed"


class Visit(BaseModel):
    """Look at a place."""

    model_config = ConfigDict(extra="forbid")

    place: Literal["sea", "land"]
    minutes: Annotated[int, Field(ge=1, le=60)]


VISIT = {
    "type": "function",
    "function": {"name": "visit", "description": "Look at a place.", "parameters": Visit.model_json_schema()},
}


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)
