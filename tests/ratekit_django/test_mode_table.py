"""The table of modes, cell by cell, in Django: sync and async views, with ddtrace's real tracer."""

from __future__ import annotations

import pytest

from ratekit_django import rate_limit
from support.mode_table import TABLE, Answer, assert_row, recorded_spans, root_span


@pytest.mark.parametrize("mode", TABLE)
def test_mode_does_what_its_row_says(stack, monkeypatch, ratekit_clock, mode):
    client = stack.limited(rate_limit(1, 60, by="ip", endpoint="/x"))
    monkeypatch.setenv("RATE_LIMIT_MODE", mode)
    answers = []
    with recorded_spans() as spans:
        for _ in range(3):
            with root_span():
                answers.append(Answer.of(client.get("/x/")))
    monkeypatch.setenv("RATE_LIMIT_MODE", "on")  # between two requests, with no restart
    refused = client.get("/x/").status_code == 429
    assert refused is TABLE[mode].counts
    assert_row(mode, "/x", answers, spans, used=int(refused))
