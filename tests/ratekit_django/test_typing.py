"""What a type checker sees: a decorated view keeps its signature, and a wrong argument is found."""

from __future__ import annotations

import sys
from subprocess import run

import pytest

CODE = """
from django.http import HttpRequest, HttpResponse
from ratekit_django import rate_limit

@rate_limit(max_requests=5, expiry=60)
def view(request: HttpRequest, number: int) -> HttpResponse:
    return HttpResponse()

@rate_limit(limits=["5/s"], by="ip")
async def awaited(request: HttpRequest) -> HttpResponse:
    return HttpResponse()

reveal_type(view)
reveal_type(awaited)
rate_limit(5, 60, colour="red")
"""


def test_decorated_view_keeps_its_types(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "views.py").write_text(CODE)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        "--cache-dir",
        str(tmp_path / "cache"),
        "views.py",
    ]
    said = run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    assert 'def (request: django.http.request.HttpRequest, number: int) -> django.http.response.HttpResponse"' in said
    assert "Coroutine[Any, Any, django.http.response.HttpResponse]" in said
    assert 'Unexpected keyword argument "colour"' in said
