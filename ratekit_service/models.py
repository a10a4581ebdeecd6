"""What the models of all subjects share: bodies, pages, texts that every database takes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Generic, TypeVar

from pydantic import AfterValidator, AwareDatetime, BaseModel, Field

from ratekit_service.bounds import LONGEST_ID, LONGEST_NAME, MOST_ITEMS
from ratekit_service.checks.models import Body

__all__ = ["After", "Body", "Id", "Items", "Page", "Row", "Text", "Time", "Title", "Word"]
Item = TypeVar("Item")


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("has characters that cannot be printed")
    return text


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("has nothing but blanks")
    return text


def _in_utc(time: datetime) -> datetime:
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise ValueError("is in no year between 1 and 9999 of UTC") from None


_WORD = r"^[A-Za-z0-9_-]+$"
Text = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME), AfterValidator(_printable)]
Title = Annotated[Text, AfterValidator(_not_blank)]  # the name of a tenant, a plan, a key
Word = Annotated[str, Field(min_length=1, max_length=LONGEST_ID, pattern=_WORD)]
Id = Word
Time = Annotated[AwareDatetime, Field(strict=False), AfterValidator(_in_utc)]
After = Annotated[
    str, Field(max_length=LONGEST_ID, pattern=r"^[A-Za-z0-9_-]*$", description="The `next` of the page before.")
]
Items = Annotated[int, Field(ge=1, le=MOST_ITEMS, description="How many a page has at most.")]


class Row(BaseModel):
    """What every row has."""

    created_at: datetime
    updated_at: datetime


class Page(BaseModel, Generic[Item]):
    """A part of a list. `next` asks for the following one; null at the end."""

    items: list[Item]
    next: str | None
