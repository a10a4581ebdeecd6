"""Other forms of documents, accepted as they are: one service's configuration, and rows of rules and overrides.

- {"_id": "sentiment", "last_updated": …, "general_rate_limit": {"rps": 20}, "custom_rate_limits": {"user:1": {"rps": 5}}}
- {"rate_limit_rules": [{"rule_id": 1, "client_key": "user:1", …}], "rate_limit_overrides": [{"rule_id": 1, …}]}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema

from ratekit.core.errors import ConfigurationError, DocumentError
from ratekit.core.limits import MOST_REQUESTS
from ratekit.database.rows import limit_of_rule
from ratekit.rules.fields import Moment, NonEmpty
from ratekit.rules.limits import Limits, LimitsField
from ratekit.rules.problems import Place, problems_of

ANY = "*"  # the endpoint, or the client key, of a row that is for all
_SERVICE_KEYS = {"general_rate_limit", "custom_rate_limits"}
_ROW_KEYS = {"rate_limit_rules", "rate_limit_overrides"}


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ServiceForm(_Form):
    """The configuration of one service: limits for all keys, and limits by exact key."""

    id_: Annotated[Any, Field(validation_alias=AliasChoices("_id"), serialization_alias="_id")] = None
    last_updated: Moment | None = None
    general_rate_limit: LimitsField | None = None
    custom_rate_limits: dict[NonEmpty, LimitsField] = {}


def _as_switch(value: Any) -> Any:
    return bool(value) if value in (0, 1) and isinstance(value, int) else value


_Switch = Annotated[bool, BeforeValidator(_as_switch), WithJsonSchema({"anyOf": [{"type": "boolean"}, {"enum": [0, 1]}]})]
_Key = Annotated[str, Field(min_length=1, max_length=256)]


class RuleRow(_Form):
    """A row of rate_limit_rules."""

    rule_id: int
    client_key: _Key
    endpoint: _Key = ANY
    algorithm: Literal["token_bucket", "sliding_window_log", "sliding_window_counter", "fixed_window"]
    max_requests: int = Field(ge=0, le=MOST_REQUESTS)
    window_secs: int = Field(ge=1, le=315_576_000)
    burst_size: int = Field(0, ge=0, le=MOST_REQUESTS)
    enabled: _Switch = True
    created_at: Moment | None = None
    updated_at: Moment | None = None

    def limits(self, max_requests: int | None = None) -> Limits:
        """Return the limit of the row, or the same with another maximum."""
        most = self.max_requests if max_requests is None else max_requests
        return Limits((limit_of_rule(self.algorithm, most, self.window_secs, self.burst_size),))


class OverrideRow(_Form):
    """A row of rate_limit_overrides."""

    override_id: int | None = None
    client_key: _Key
    rule_id: int
    max_requests: int = Field(ge=0, le=MOST_REQUESTS)
    valid_until: Moment


class RowsForm(_Form):
    """Rows of rules and of overrides."""

    rate_limit_rules: list[RuleRow] = []
    rate_limit_overrides: list[OverrideRow] = []


_FIELDS: dict[Place, list[str]] = {
    (): [*_SERVICE_KEYS, "_id", "last_updated"],
    ("rate_limit_rules",): list(RuleRow.model_fields),
    ("rate_limit_overrides",): list(OverrideRow.model_fields),
}


def is_other_form(values: Mapping[str, Any]) -> bool:
    """Whether values are those of a document that is not of ratekit's own form."""
    return bool(values.keys() & (_SERVICE_KEYS | _ROW_KEYS)) and "rules" not in values


def as_document_values(values: Mapping[str, Any], pace: Callable[[], None]) -> Mapping[str, Any]:
    """Return the values of a document of any form as those of ratekit's own."""
    if values.keys() & _SERVICE_KEYS and "rules" not in values:
        return _of_service(_valid(ServiceForm, values))
    if values.keys() & _ROW_KEYS and "rules" not in values:
        return _of_rows(values, pace)
    if "_id" in values:  # a document of ratekit's own form in MongoDB
        own = {key: value for key, value in values.items() if key != "_id"}
        return {"service": str(values["_id"])} | own
    return values


def _valid(form: Any, values: Any, at: Place = ()) -> Any:
    try:
        return form.model_validate(values)
    except ValidationError as error:
        raise DocumentError(problems_of(error, _FIELDS, at)) from None


def _of_service(form: ServiceForm) -> dict[str, Any]:
    custom = {_literal(key): limits for key, limits in form.custom_rate_limits.items()}
    if form.general_rate_limit is None and not custom:
        return {"service": _service(form), "last_updated": form.last_updated, "rules": []}
    rule = {"limits": form.general_rate_limit, "custom": custom}
    return {"service": _service(form), "last_updated": form.last_updated, "rules": [rule]}


def _service(form: ServiceForm) -> str | None:
    return None if form.id_ is None else str(form.id_)


def _literal(key: str) -> str:
    r"""Return a key in which a star is a star: \* in ratekit's own form."""
    return key.replace("\\", "\\\\").replace("*", "\\*")


def _of_rows(values: Mapping[str, Any], pace: Callable[[], None]) -> dict[str, Any]:
    if unknown := sorted(map(str, set(values) - _ROW_KEYS - {"_id", "last_updated"})):
        raise DocumentError([f"{unknown[0]}: unknown field; it has {', '.join(sorted(_ROW_KEYS))}"])
    rules = list(_rows(RuleRow, "rate_limit_rules", values, pace))
    overrides = list(_rows(OverrideRow, "rate_limit_overrides", values, pace))
    _refuse_bad_rows(rules, overrides)
    return {"rules": rules_of_rows(rules, overrides)}


def _rows(form: Any, name: str, values: Mapping[str, Any], pace: Callable[[], None]) -> Iterator[Any]:
    rows = values.get(name, [])
    if not isinstance(rows, list | tuple):
        raise DocumentError([f"{name}: {rows!r} is not a list of rows"])
    for index, row in enumerate(rows):
        pace()
        yield _valid(form, row, (name, index))


def _refuse_bad_rows(rules: list[RuleRow], overrides: list[OverrideRow]) -> None:
    problems: list[str] = []
    pairs: dict[tuple[str, str], int] = {}
    ids: dict[int, int] = {}
    for index, row in enumerate(rules):
        pair = (row.client_key, row.endpoint)
        if pair in pairs:
            problems.append(f"rate_limit_rules[{index}]: {pair!r} is the client key and endpoint of row [{pairs[pair]}] too")
        if row.rule_id in ids:
            problems.append(f"rate_limit_rules[{index}].rule_id: {row.rule_id} is that of row [{ids[row.rule_id]}] too")
        pairs.setdefault(pair, index)
        ids.setdefault(row.rule_id, index)
        try:
            row.limits()
        except ConfigurationError as error:
            problems.append(f"rate_limit_rules[{index}]: {error}")
    for index, override in enumerate(overrides):
        if override.rule_id not in ids:
            problems.append(f"rate_limit_overrides[{index}].rule_id: {override.rule_id} is no rule_id of rate_limit_rules")
    if problems:
        raise DocumentError(problems)


def rules_of_rows(rows: Iterable[RuleRow], overrides: Iterable[OverrideRow]) -> list[dict[str, Any]]:
    """Return one rule for each endpoint of the rows. The rule for all endpoints is the last: it is for the other keys."""
    enabled = {row.rule_id: row for row in rows if row.enabled}
    made: dict[str, dict[str, Any]] = {}
    for row in enabled.values():
        rule = made.setdefault(row.endpoint, _empty_rule(row.endpoint))
        if row.client_key == ANY:
            rule["limits"] = row.limits()
        else:
            rule["custom"][_literal(row.client_key)] = row.limits()
    for override in overrides:
        if base := enabled.get(override.rule_id):
            value = {"limits": base.limits(override.max_requests), "valid_until": override.valid_until}
            made[base.endpoint]["overrides"][override.client_key] = value
    general = made.pop(ANY, None)
    return [*made.values(), *([general] if general else [])]


def _empty_rule(endpoint: str) -> dict[str, Any]:
    match = {} if endpoint == ANY else {"endpoint": endpoint}
    return {"name": f"rate_limit_rules {endpoint}", "match": match, "custom": {}, "overrides": {}}
