"""The JSON Schema of documents, so that editors complete them and check them while they are written."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from ratekit.rules.document import Document
from ratekit.rules.forms import RowsForm, ServiceForm

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a document of any form that `Document.parse` accepts."""
    forms: TypeAdapter[Any] = TypeAdapter(Document | ServiceForm | RowsForm)
    return {"$schema": _DIALECT, "title": "ratekit rules"} | forms.json_schema()
