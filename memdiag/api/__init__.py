"""Use cases: functions that take paths and options and return a record. They print nothing."""
