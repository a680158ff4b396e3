"""Runs in parallel: what is asked for, what is refused, who runs them, and where they stand."""
