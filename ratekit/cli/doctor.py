"""doctor: whether a store is fit for limits."""

from __future__ import annotations

from dataclasses import asdict

import click

from ratekit.cli.session import Session, coloured, with_store
from ratekit.doctor import Finding, Grade, acl_rule, examine
from ratekit.explanations import shown

_STORE_PROBLEM = 3


@click.command(short_help="Look whether the store is fit for limits.")
@click.option("--acl", is_flag=True, help="Only print the rights that a user of the server needs.")
@click.option("--admin", is_flag=True, help="With --acl: the rights for overrides, mode and this program too.")
@with_store
def doctor(session: Session, acl: bool, admin: bool) -> int:
    """Look whether the store can be reached and is fit for limits.

    Server version, script, rights, role, clock, eviction, cluster slots; several workers on memory://. The exit code is 3
    if there is a problem; warnings alone leave it 0.

    \b
    Examples:
      ratekit doctor --store redis://localhost:6379
      ratekit doctor --acl | xargs redis-cli ACL SETUSER limiter on '>secret'
    """
    if acl:
        rights = acl_rule(session.limiter.prefix, administration=admin, cluster="+cluster:" in session.url)
        session.tell({"acl": rights}, [rights])
        return 0
    findings = []
    for finding in examine(session.limiter):
        findings.append(finding)
        if not session.as_json:
            click.echo(_line(finding))
    if session.as_json:
        session.tell([asdict(finding) for finding in findings], [])
    return _STORE_PROBLEM if any(finding.grade is Grade.PROBLEM for finding in findings) else 0


def _line(finding: Finding) -> str:
    word = coloured(str(finding.grade)) + " " * (len(Grade.PROBLEM) - len(finding.grade))
    where = f"{finding.where}: " if finding.where else ""
    return f"{word}  {finding.what:<8}  {where}{shown(finding.message)}"
