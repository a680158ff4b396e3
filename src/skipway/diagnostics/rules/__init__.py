"""Rules: one file each. A rule looks at the evidence of an inspection and convicts, or stays silent."""

from skipway.diagnostics.rules._rule import NEEDS, RULES, Evidence, Rule, collect_wants, run_rules

__all__ = ["NEEDS", "RULES", "Evidence", "Rule", "collect_wants", "run_rules"]
