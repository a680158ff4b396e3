"""Comparisons and single runs, read from their folders: the answer, tables, a report. No torch here."""
