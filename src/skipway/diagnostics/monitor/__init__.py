"""The signal along the stream in anybody's training loop."""

from skipway.diagnostics.monitor.monitor import Monitor as Monitor
from skipway.diagnostics.monitor.record import Reading as Reading
from skipway.diagnostics.monitor.record import Record as Record

__all__ = ["Monitor", "Reading", "Record"]
