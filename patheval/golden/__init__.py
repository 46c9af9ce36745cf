"""Recorded cases of the original benchmark code, replayed against patheval's tasks."""
