"""Which limits of an endpoint a subject belongs to, by what it looks like."""

from __future__ import annotations

import pytest

from ratekit import Policy
from ratekit.web.listing import named_by
from ratekit.web.subjects import Fit, fit, fitting
from ratekit.web.table import Rule


@pytest.mark.parametrize(
    ("by", "subject", "expected"),
    [
        ("client_ip", "ip:203.0.113.7", Fit.YES),
        ("ip", "form:username:5e88", Fit.NO),
        ("form:username", "form:username:5e88", Fit.YES),
        ("form:username", "form:user:5e88", Fit.NO),
        ("form:username", "ip:203.0.113.7", Fit.PERHAPS),  # of requests without the field
        ("header:x-key", "header:x-key:5e88", Fit.YES),
        ("user", "user:42", Fit.YES),
        ("user", "1:42", Fit.NO),
        ("project", "1:42", Fit.PERHAPS),
        ("project", "header:x-key:5e88", Fit.NO),
        ("project", "ip:203.0.113.7", Fit.PERHAPS),
        ("endpoint", "*/search", Fit.YES),
        ("everyone", "ip:203.0.113.7", Fit.NO),
        ("tenant_of", "acme", Fit.PERHAPS),
        (None, "acme", Fit.PERHAPS),
        ("first_of(header:x-key, client_ip)", "ip:203.0.113.7", Fit.YES),
        ("first_of(header:x-key, combine(json:a, client_ip))", "json:a:5e88|ip:203.0.113.7", Fit.YES),
        ("combine(header:x-key, client_ip)", "header:x-key:5e88|form:a:5e88", Fit.NO),
        ("combine(header:x-key, client_ip)", "header:x-key:5e88", Fit.NO),
        ("tenant=json:tenant_id + lang=json:language", "tenant:acme:lang:en", Fit.YES),
        ("tenant=json:tenant_id + lang=json:language", "tenant:acme", Fit.NO),
        ("principal", "principal:ann", Fit.YES),
    ],
)
def test_fit_of_a_subject(by, subject, expected):
    assert fit(by, subject) is expected


def rules(*named):
    return [Rule(endpoint="/x", policy=Policy("/x", "1/s"), by=named_by(by)) for by in named]


@pytest.mark.parametrize(
    ("named", "subject", "found", "is_clear"),
    [
        (["form:username", "ip"], "ip:203.0.113.7", ["client_ip"], True),
        (["form:username", "ip"], "form:username:5e88", ["form:username"], True),
        (["ip", "ip", "user"], "ip:203.0.113.7", ["client_ip", "client_ip"], True),
        (["project", "project", "ip"], "1:42", ["project", "project"], True),
        (["form:username", "ip"], "acme", ["form:username", "client_ip"], False),
        (["tenant_of", "user_of", "ip"], "acme", ["tenant_of", "user_of"], False),
        (["user"], "acme", ["user"], True),
        ([], "acme", [], True),
    ],
)
def test_all_rules_that_fit_are_taken_and_none_is_chosen_where_it_cannot_be_told(named, subject, found, is_clear):
    taken, clear = fitting(rules(*named), subject)
    assert ([rule.by.name for rule in taken], clear) == (found, is_clear)
