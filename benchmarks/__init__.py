"""Benchmarks: they print, and assert nothing about time."""
