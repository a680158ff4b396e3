"""Published tables and questions as comparisons that run: one file is one study."""
