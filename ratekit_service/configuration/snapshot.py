"""The configuration that checks read: dictionaries by id, changed between two checks and never during one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ratekit_service.configuration.records import Key, Plan, Rule, Tenant
from ratekit_service.policies.resources import ResourceIndex, ResourcePolicy, counted_as

NO_POLICIES = ResourceIndex(())


@dataclass(slots=True)
class Changes:
    """What a database says has changed after a version; `is_whole`: everything there is."""

    version: int
    is_whole: bool
    has_every_rule: bool = False
    tenants: list[Tenant] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    keys: list[Key] = field(default_factory=list)
    policies: list[ResourcePolicy] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)
    deleted: list[tuple[str, str]] = field(default_factory=list)  # kind and id
    refused: list[str] = field(default_factory=list)  # rows that make no sense, each in a sentence


class Configuration:
    """Tenants, plans, keys, policies and rules. Belongs to one event loop."""

    def __init__(self) -> None:
        self.version = 0  # 0: nothing was loaded yet
        self.tenants: dict[str, Tenant] = {}
        self.plans: dict[str, Plan] = {}
        self.keys: dict[str, Key] = {}
        self.policies: dict[str, ResourceIndex] = {}  # by tenant
        self._policies: dict[str, ResourcePolicy] = {}
        self._rules: dict[tuple[str, str, str], Rule] = {}  # by tenant, client key and endpoint
        self._rule_places: dict[str, tuple[str, str, str]] = {}

    def changed(self, changes: Changes) -> Configuration:
        """Return the configuration with some changes: this one, or a new one if the changes are everything there is."""
        configuration = Configuration() if changes.is_whole else self
        configuration.apply(changes)
        return configuration

    def rule(self, tenant_id: str, client_key: str, endpoint: str) -> Rule | None:
        """Return the rule for a client key on an endpoint: the exact one first, then those with a "*"."""
        for client in (client_key, "*"):
            for where in (counted_as(endpoint), "*"):
                found = self._rules.get((tenant_id, client, where))
                if found is not None and found.plan is not None:
                    return found
        return None

    @property
    def rules(self) -> int:
        """How many rules are in force."""
        return len(self._rules)

    def plans_of(self, tenant_id: str) -> list[Plan]:
        """Return all that can count for a tenant: its plans, and its rules."""
        rules = [rule.plan for rule in self._rules.values() if rule.tenant_id == tenant_id and rule.plan is not None]
        return [plan for plan in self.plans.values() if plan.tenant_id == tenant_id] + rules

    def apply(self, changes: Changes) -> None:
        """Change what has changed."""
        for kind, object_id in changes.deleted:
            self._delete(kind, object_id)
        if changes.has_every_rule:
            self._rules, self._rule_places = {}, {}
        self.tenants |= {tenant.id: tenant for tenant in changes.tenants}
        self.plans |= {plan.id: plan for plan in changes.plans}
        self.keys |= {key.id: key for key in changes.keys}
        self._policies |= {policy.id: policy for policy in changes.policies}
        for rule in changes.rules:
            self._forget_rule(rule.id)
            self._rule_places[rule.id] = place = (rule.tenant_id, rule.client_key, counted_as(rule.endpoint))
            self._rules[place] = rule
        self._index({policy.tenant_id for policy in changes.policies})
        self.version = changes.version

    def _delete(self, kind: str, object_id: str) -> None:
        if kind == "tenant":
            self._delete_tenant(object_id)
        elif kind == "policy":
            policy = self._policies.pop(object_id, None)
            self._index({policy.tenant_id} if policy else ())
        elif kind == "rule":
            self._forget_rule(object_id)
        elif kind == "plan":
            self.plans.pop(object_id, None)
        elif kind == "key":
            self.keys.pop(object_id, None)

    def _delete_tenant(self, tenant_id: str) -> None:
        self.tenants.pop(tenant_id, None)
        self.plans = {plan.id: plan for plan in self.plans.values() if plan.tenant_id != tenant_id}
        self.keys = {key.id: key for key in self.keys.values() if key.tenant_id != tenant_id}
        self._policies = {one.id: one for one in self._policies.values() if one.tenant_id != tenant_id}
        self.policies.pop(tenant_id, None)
        for rule in [rule for rule in self._rules.values() if rule.tenant_id == tenant_id]:
            self._forget_rule(rule.id)

    def _forget_rule(self, rule_id: str) -> None:
        place = self._rule_places.pop(rule_id, None)
        if place is not None and place in self._rules and self._rules[place].id == rule_id:
            del self._rules[place]

    def _index(self, tenant_ids: Iterable[str]) -> None:
        for tenant_id in tenant_ids:
            mine = [policy for policy in self._policies.values() if policy.tenant_id == tenant_id]
            self.policies[tenant_id] = ResourceIndex(mine)
