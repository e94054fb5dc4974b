"""Tests against a real kernel, runtime, kubelet, scheduler and API server."""
