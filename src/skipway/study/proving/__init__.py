"""`skipway.prove`, its parts: fixes, short trainings, and what they showed."""
