"""What is kept of runs, measurements and verdicts: small files without weights."""
