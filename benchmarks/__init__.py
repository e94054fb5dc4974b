"""Benchmarks, which print results and do not assert times."""
