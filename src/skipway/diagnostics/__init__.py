"""Measurements and rules; `inspect` unites what they need."""
