"""The fault table: what is broken, what has to hold then, and the bounds of each figure that is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Figures = Mapping[str, float]

ANY = (0.0, float("inf"))
NONE = (0.0, 0.0)
SERVER = "slowest PING ms"  # of another process on the same server: late is a server that did not get a processor
SPOILT_MS = 25  # half of the deadline: a pause as long as this may be an outage to who waits


@dataclass(frozen=True, slots=True)
class Row:
    """One fault: in words, and the least and the most that each figure may be."""

    fault: str
    promise: str
    bounds: Mapping[str, tuple[float, float]]

    def missed(self, figures: Figures) -> list[str]:
        """Return the names of the figures that are out of bounds."""
        assert set(figures) == set(self.bounds), f"measured {sorted(figures)}, not {sorted(self.bounds)}"
        return [name for name, (least, most) in self.bounds.items() if not least <= figures[name] <= most]

    def verify(self, figures: Figures) -> None:
        """Raise AssertionError with every figure that is out of bounds."""
        wrong = [f"{name} is {figures[name]:g}, not {_span(*self.bounds[name])}" for name in self.missed(figures)]
        assert not wrong, "; ".join(wrong)


def _span(least: float, most: float) -> str:
    return f"{least:g}" if least == most else f"{least:g} to {most:g}"


def is_time(name: str) -> bool:
    """Whether a figure is a time, which a machine that pauses spoils."""
    return name.endswith((" ms", " s"))


_EXACT = {
    "runs": (20, 20),
    "least": (1000, 1000),
    "most": (1000, 1000),
    "degraded": NONE,
    "exceptions": NONE,
    "spoilt runs": ANY,  # which were run again, as the server itself got no processor
}

ROWS = {
    "killed": Row(
        "Redis killed under 50 checks a second",
        "no exception, p99 at most 5 ms while it is down, used again within 1.5 s",
        {"exceptions": NONE, "p99 ms": (0, 5), "back s": (0, 1.5), "degraded after": NONE},
    ),
    "killed, local": Row(
        "Redis killed, limit 10, 40 requests, `local`",
        "exactly 10 admitted, the others 429",
        {"status 200": (10, 10), "status 429": (30, 30), "status 503": NONE, "others": NONE},
    ),
    "killed, open": Row(
        "Redis killed, limit 10, 40 requests, `open`",
        "all 40 admitted",
        {"status 200": (40, 40), "status 429": NONE, "status 503": NONE, "others": NONE},
    ),
    "killed, closed": Row(
        "Redis killed, limit 10, 40 requests, `closed`",
        "none admitted: 503, never 429",
        {"status 200": NONE, "status 429": NONE, "status 503": (40, 40), "others": NONE},
    ),
    "share": Row(
        "Redis down, 8 processes, a share of 1/8 each, limit 1000",
        "900 to 1000 admitted",
        {"admitted": (900, 1000), "exceptions": NONE},
    ),
    "frozen": Row(
        "Redis frozen (SIGSTOP): one check; 100 in a row",
        "at most 60 ms; at most 0.5 s in all; other tasks stalled at most 25 ms",
        {"exceptions": NONE, "first ms": (0, 60), "hundred s": (0, 0.5), "stall ms": (0, 25)},
    ),
    "slow": Row(
        "every reply 200 ms late, 20 checks at once",
        "no exception, other tasks stalled at most 25 ms",
        {"exceptions": NONE, "stall ms": (0, 25)},
    ),
    "flush": Row(
        "SCRIPT FLUSH 25 times under 40 checks at once",
        "of 1000 checks none raises and none is degraded",
        {"checks": (1000, 1000), "exceptions": NONE, "degraded": NONE, SERVER: ANY},
    ),
    "restart": Row(
        "Redis restarted: the first check, 10 times",
        "no exception, the median at most 10 ms",
        {"exceptions": NONE, "median ms": (0, 10), "decided": ANY},
    ),
    "memory": Row(
        "memory full, `noeviction`",
        "exhausted subjects stay refused, others follow `on_outage`, no exception",
        {"exceptions": NONE, "exhausted admitted": NONE, "others off": NONE},
    ),
    "replies": Row(
        "LOADING, READONLY, CLUSTERDOWN, MOVED, ASK, TRYAGAIN, MASTERDOWN, MISCONF, BUSY, OOM, NOAUTH, NOPERM, WRONGTYPE, "
        "max clients, garbage, half a reply, a reset",
        "no exception, each check at most 60 ms, a reason for each in the result and in the metric; faults of configuration "
        "(NOAUTH, NOPERM, WRONGTYPE) logged as errors; used again within 1.5 s",
        {
            "exceptions": NONE,
            "wrong reasons": NONE,
            "slowest ms": (0, 60),
            "not in the metric": NONE,
            "silent faults": NONE,
            "back s": (0, 1.5),
        },
    ),
    "exact": Row(
        "none: 8 processes x 50 tasks, limit 1000, 20 runs",
        "exactly 1000 each time, none degraded",
        _EXACT,
    ),
    "hogs": Row(
        "the same while every processor is kept busy by others",
        "exactly 1000 each time, none degraded",
        _EXACT,
    ),
    "blocked": Row(
        "the event loop blocked 100 of every 130 ms",
        "no false outage in 300 checks",
        {"checks": (300, 300), "degraded": NONE, "exceptions": NONE, SERVER: ANY},
    ),
    "client clock": Row(
        "clients' clocks off by 1 h either way",
        "none admitted too many, none degraded",
        {"over": NONE, "under": NONE, "degraded": NONE},
    ),
    "server clock": Row(
        "the server's clock set back 1 h",
        "none admitted too many; refill goes on",
        {"over": NONE, "locked out": NONE, "degraded": NONE},
    ),
    "cancelled": Row(
        "2250 of 3000 checks cancelled at random",
        "no wrong answer, no error for the others, at most 0.05 new connections for each",
        {"wrong answers": NONE, "exceptions": NONE, "degraded": NONE, "connections each": (0, 0.05), SERVER: ANY},
    ),
    "client kill": Row(
        "CLIENT KILL every 30 ms; then replies lost after the script ran",
        "none charged twice, no key without TTL",
        {"charged twice": NONE, "keys without TTL": NONE, "exceptions": NONE},
    ),
    "max clients": Row(
        "400 checks at once from 8 processes, `maxclients 60`",
        "no error, none degraded",
        {"exceptions": NONE, "degraded": NONE, SERVER: ANY},
    ),
    "promotion": Row(
        "Cluster: a primary killed",
        "back within the cluster's own failover time + 1.5 s; admitted too many: at most what the promotion lost",
        {"exceptions": NONE, "failover s": ANY, "back after it s": (0, 1.5), "lost": ANY, "over beyond lost": NONE},
    ),
    "migration": Row(
        "Cluster: a slot migrated under load",
        "no exception, none admitted too many",
        {"exceptions": NONE, "over": NONE, "not decided": ANY},
    ),
    "sentinel": Row(
        "Sentinel: the primary killed",
        "back within the sentinels' own failover time + 1.5 s; admitted too many: at most what the promotion lost",
        {"exceptions": NONE, "failover s": ANY, "back after it s": (0, 1.5), "lost": ANY, "over beyond lost": NONE},
    ),
    "flood": Row(
        "10^6 identities while Redis is down, `local`",
        "at most 100 MB, which do not grow with their number; an exhausted subject gains at most one window",
        {"exceptions": NONE, "MB": (0, 100), "bytes each beyond 300 000": (0, 50), "gained windows": (0, 1)},
    ),
}
