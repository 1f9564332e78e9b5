"""Recorded workloads, replayed through the real cache core in fast time, with no model."""
