"""Pseudonyms: the same for one key everywhere, and another for another key."""

from __future__ import annotations

import pytest

from ratekit import ConfigurationError
from ratekit.core.pseudonyms import KEY_VARIABLE, pseudonym, pseudonyms


def test_pseudonym_depends_on_the_key(monkeypatch):
    plain = pseudonym("user:42")
    assert len(plain) == 16
    monkeypatch.setenv(KEY_VARIABLE, "a secret")
    assert pseudonym("user:42") != plain
    assert pseudonym("user:42") == pseudonym("user:42", "a secret") != pseudonym("user:42", "another")
    assert pseudonym("user:42", "") == plain


def test_pseudonym_has_as_many_digits_as_are_asked_for():
    assert [len(pseudonym("user:42", digits=digits)) for digits in (2, 16, 32, 128)] == [2, 16, 32, 128]
    assert pseudonyms("key", digits=32)("user:42") == pseudonym("user:42", "key", digits=32)


@pytest.mark.parametrize("digits", [0, 1, 15, 130, "16", 16.0, True])
def test_number_of_digits_that_no_hash_has_is_refused(digits):
    with pytest.raises(ConfigurationError, match=f"digits {digits!r}"):
        pseudonym("user:42", digits=digits)
