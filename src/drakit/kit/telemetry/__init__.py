"""Logs, metrics and the HTTP endpoints for health and metrics."""
