"""A policy as the script gets it: made once, and not again for every call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from ratekit import keys
from ratekit.errors import ConfigurationError
from ratekit.limits import Algorithm, Limit, Policy

VERSION = b"1"  # of the script's protocol
_MORE, _BRINGS_OVERRIDE, _HAS_OVERRIDE, _NOT_PLAIN, _ALIGNED, _SHADOW, _ALGORITHM, _BURST, _SOFT = (2**n for n in range(9))


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """A policy as the script gets it: made once for a policy, with and without overrides. Compared by identity."""

    policy: str  # its name
    limits: tuple[Limit, ...]
    items: tuple[bytes, ...]  # of ARGV, one limit after the other
    check: tuple[bytes, ...]  # ARGV of a plain check by the server's clock, but for the cost
    suffixes: tuple[str, ...]  # of the key of each limit
    brings: tuple[bool, ...]  # which limits have an override key before the key of their state
    is_soft: bool
    has_slots: bool

    @property
    def overrides(self) -> bool:
        """Whether overrides are read."""
        return any(self.brings)


def as_policy(value: Policy | Limit) -> Policy:
    """Return a policy as it is, and a single limit as a policy of one."""
    if isinstance(value, Policy):
        return value
    if not isinstance(value, Limit):
        raise ConfigurationError(f"policy {value!r} is neither a Policy nor a Limit")
    policy = value._policy
    if policy is None:
        policy = Policy(value.name, [value])
        object.__setattr__(value, "_policy", policy)
    return policy  # type: ignore[no-any-return]


def compiled(policy: Policy | Limit, overrides: bool) -> Compiled:
    """Return a policy as the script gets it, made on first use."""
    policy = as_policy(policy)
    both: tuple[Compiled, Compiled] | None = policy._compiled
    if both is None:
        both = (_compile(policy, overrides=False), _compile(policy, overrides=True))
        object.__setattr__(policy, "_compiled", both)
    return both[1 if overrides else 0]


@lru_cache(maxsize=1024)
def plan_of(policy: str, limits: tuple[Limit, ...]) -> Compiled:
    """Return limits as the script gets them, without overrides."""
    return _compiled_of(policy, limits, [0] * len(limits))


@lru_cache(maxsize=1024)
def merged(plans: tuple[Compiled, ...]) -> Compiled:
    """Return several policies as one, decided together."""
    limits = tuple(limit for plan in plans for limit in plan.limits)
    overrides = [flag for plan in plans for flag in _override_flags(len(plan.limits), overrides=plan.overrides)]
    name = "+".join(dict.fromkeys(plan.policy for plan in plans))
    return _compiled_of(name, limits, overrides)


def _compile(policy: Policy, *, overrides: bool) -> Compiled:
    return _compiled_of(policy.name, policy.limits, _override_flags(len(policy.limits), overrides=overrides))


def _override_flags(count: int, *, overrides: bool) -> list[int]:
    """Return the flags of as many limits of one policy that say where their override is: the first one brings it."""
    return [_BRINGS_OVERRIDE] + [_HAS_OVERRIDE] * (count - 1) if overrides else [0] * count


def _compiled_of(policy: str, limits: tuple[Limit, ...], overrides: Sequence[int]) -> Compiled:
    suffixes = tuple(keys.limit_suffix(limit) for limit in limits)
    common = 0 if all(map(_is_plain, limits)) and len(set(suffixes)) == len(suffixes) else _NOT_PLAIN
    more = [_MORE] * (len(limits) - 1) + [0]
    flags = [common + override + another for override, another in zip(overrides, more, strict=True)]
    items = tuple(item for limit, flag in zip(limits, flags, strict=True) for item in _limit_items(limit, flag))
    return Compiled(
        policy=policy,
        limits=limits,
        items=items,
        check=(VERSION, b"check", *items),
        suffixes=suffixes,
        brings=tuple(override == _BRINGS_OVERRIDE for override in overrides),
        is_soft=any(limit.soft is not None for limit in limits),
        has_slots=any(limit.algorithm is Algorithm.CONCURRENCY for limit in limits),
    )


def _is_plain(limit: Limit) -> bool:
    return limit.algorithm is Algorithm.FIXED_WINDOW and not limit.shadow and limit.soft is None


def _limit_items(limit: Limit, flags: int) -> list[bytes]:
    """Return a limit's items of ARGV; the flags are those that others of its policy decide."""
    optional: list[str | float] = []
    if limit.algorithm is not Algorithm.FIXED_WINDOW:
        flags += _ALGORITHM
        optional.append(limit.algorithm)
    if limit.burst is not None:
        flags += _BURST
        optional.append(limit.burst)
    if limit.soft is not None:
        flags += _SOFT
        optional.append(limit.soft)
    flags += _ALIGNED * limit.aligned + _SHADOW * limit.shadow
    return [str(item).encode() for item in (flags, limit.max_requests, limit.window_us, *optional)]
