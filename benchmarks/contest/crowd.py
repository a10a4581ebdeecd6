"""Many subjects in a server without checking each: what one subject has left there is copied under the names of others."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from benchmarks.contest.loads import Load, name_of
from benchmarks.contest.process import Lost, Worker

_AT_ONCE = 10_000
_COPY = """
local value, life = redis.call("DUMP", KEYS[1]), math.max(redis.call("PTTL", KEYS[1]), 0)
for number = tonumber(ARGV[3]), tonumber(ARGV[4]) do
  redis.call("RESTORE", ARGV[1] .. string.format("subject-%07d", number) .. ARGV[2], life, value, "REPLACE")
end
"""


def fill(client: Any, worker: Worker, load: Load) -> None:
    """Let a contestant check the first subject, and copy its keys for the others.

    Where a key does not show the subject (one contestant hashes it), the copies are a crowd of the right size only.
    """
    with suppress(Lost):  # it will be lost again, when it is measured, and told then
        worker.run(load, 0, most=1)
    copy = client.register_script(_COPY)
    for key in client.keys("*"):
        before, name, after = key.partition(name_of(0).encode())
        around = (before, after) if name else (key + b":", b"")
        for first in range(1, load.subjects, _AT_ONCE):
            copy(keys=[key], args=[*around, first, min(first + _AT_ONCE, load.subjects) - 1])
