"""Rules: one file each. A rule looks at the evidence of an inspection and convicts, or stays silent."""

from skipway.diagnostics.rules._rule import RULES, Evidence, Rule, run_rules

__all__ = ["RULES", "Evidence", "Rule", "run_rules"]
