"""The command doctor: checks whether the store is fit for limits."""

from __future__ import annotations

from dataclasses import asdict
from itertools import chain

import click

from ratekit.admin.doctor import Finding, Severity, acl_rule, examine, examine_rules
from ratekit.admin.explain import printable
from ratekit.cli.session import Session, coloured, with_store

_STORE_PROBLEM = 3


@click.command(short_help="Check whether the store is fit for limits.")
@click.option("--acl", is_flag=True, help="Print the rights that a user of the server needs, and nothing else.")
@click.option("--admin", is_flag=True, help="With --acl: add the rights for overrides, the mode and this program.")
@click.option(
    "--rules", metavar="SOURCE", help="Check the source of the rules, too: a path or a URL. With --acl: its rights."
)
@click.option("--service", metavar="NAME", help="Whose document of rules it is, where a source has several.")
@with_store
def doctor(session: Session, acl: bool, admin: bool, rules: str | None, service: str | None) -> int:
    """Check whether the store can be reached and is fit for limits; with --rules, which rules are in force.

    It checks the script, rights, version, role, clock, eviction, persistence and cluster slots, and warns of memory:// with
    several workers. The exit code is 3 if there is a problem, and 0 if there are only warnings.

    \b
    Examples:
      ratekit doctor --store redis://localhost:6379
      ratekit doctor --rules rules.yaml
      ratekit doctor --acl | xargs redis-cli ACL SETUSER limiter on '>secret'
    """
    if acl:
        is_cluster, has_rules = "+cluster:" in session.url, rules is not None
        rights = acl_rule(session.limiter.prefix, administration=admin, cluster=is_cluster, rules=has_rules)
        session.answer({"acl": rights}, [rights])
        return 0
    findings = []
    for finding in chain(examine(session.limiter), () if rules is None else examine_rules(rules, service)):
        findings.append(finding)
        if not session.as_json:
            click.echo(_line(finding))
    if session.as_json:
        session.answer([asdict(finding) for finding in findings], [])
    return _STORE_PROBLEM if any(finding.severity is Severity.PROBLEM for finding in findings) else 0


def _line(finding: Finding) -> str:
    word = coloured(str(finding.severity)) + " " * (len(Severity.PROBLEM) - len(finding.severity))
    where = f"{finding.where}: " if finding.where else ""
    return f"{word}  {finding.what:<8}  {where}{printable(finding.message)}"
