"""Drawings of a machine and its claims, as text and as SVG, from plain values."""
