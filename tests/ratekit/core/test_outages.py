"""Which errors of a server are outages, and which are bugs of the script."""

from __future__ import annotations

import pytest

from ratekit.core.outages import is_bug, outage_in


@pytest.mark.parametrize(
    "message",
    [
        "ERR user_script:12: attempt to index a nil value script: 0f, on @user_script:12.",  # Redis 7
        "ERR Error running script (call to f_0f): @user_script:12: user_script:12: attempt to index a nil value",  # 6.2
        "ERR Error compiling script (new function): user_script:1: unexpected symbol near '='",
    ],
)
def test_error_with_a_line_of_the_script_is_a_bug(message):
    assert is_bug(message)


@pytest.mark.parametrize(
    "message",
    [
        "ERR max daily request limit exceeded. Limit: 10000, Usage: 10000.",
        "no upstream host",
        "ERR unknown command 'EVALSHA', with args beginning with: '0f' '1' 'ratelimit:x:{user:42}:60s'",
        "@user_script: 30: Unknown Redis command called from script script: 0f, on @user_script:30.",
        "",
    ],
)
def test_error_of_no_known_kind_is_a_fault_of_configuration(message):
    assert not is_bug(message)
    outage = outage_in(message).outage
    assert (outage.reason, outage.is_fault) == ("error", True)
    assert "user:42" not in outage.message
