"""Doubles of what a driver talks to, for this project's tests and for driver authors."""
