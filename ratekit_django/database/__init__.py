"""ratekit's tables as models of Django, with pages in its admin: overrides, rules, violations, the report.

An application of its own, for INSTALLED_APPS: "ratekit_django.database". It needs the extra `sql`.
"""
