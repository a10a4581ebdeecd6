"""The report for other programs."""

from __future__ import annotations

import csv
import io
import json

import pytest

from ratekit.report.export import as_csv, as_document
from ratekit.report.model import LimitReport, SubjectUse


def use(subject: str, refused: int, peak: int | None) -> SubjectUse:
    return SubjectUse(subject, refused, refused + 1, peak, 1_800_000_000.5, 1_800_000_060.0)


@pytest.fixture
def found() -> LimitReport:
    return LimitReport(
        endpoint="/search",
        limit="60s",
        policy="/search",
        mode="monitor",
        algorithm="fixed_window",
        max_requests=10,
        window=60.0,
        allowed=80,
        denied=0,
        would_deny=20,
        degraded=0,
        first=1_800_000_000.0,
        last=1_800_000_060.0,
        subjects=4,
        refused=(use("a", 15, 25), use("=b", 5, None)),
        highest=(use("a", 15, 25), use("c", 0, 9), use("d", 0, 1)),
        sample=(25, 9, 1),
        is_complete=True,
    )


def test_document_is_json_with_so_many_subjects(found):
    document = json.loads(json.dumps(as_document(found, top=1)))
    assert document["affected"] == {"subjects": 1, "share": 0.25, "is_exact": True}
    assert [entry["subject"] for entry in document["refused"]] == ["a"]
    assert document["refused"][0]["times_over"] == 2.5
    assert document["refused"][0]["first"] == "2027-01-15T08:00:00Z"
    assert [entry["subject"] for entry in document["near"]] == ["c"]
    assert (document["requests"], document["would_deny"]) == (100, 20)


def test_csv_has_a_row_for_each_subject_and_no_formula(found):
    rows = list(csv.DictReader(io.StringIO(as_csv([found, found], top=9))))
    assert [(row["kind"], row["subject"]) for row in rows] == [("refused", "a"), ("refused", "'=b"), ("near", "c")] * 2
    assert rows[0] | {"refused": "15", "refused_at_most": "16", "peak": "25", "mode": "monitor"} == rows[0]
    assert rows[1]["times_over"] == ""


def test_limit_for_a_share_affects_no_more_than_that(found):
    for share in (0.0, 0.2, 0.25, 0.5, 0.75, 1.0):
        limit = found.limit_for(share)
        assert found.affected_by(limit).share <= share
        assert limit == 1 or found.affected_by(limit - 1).share > share
