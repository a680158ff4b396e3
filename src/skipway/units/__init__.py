"""From a recorded run to residual units: find, classify, prove."""
