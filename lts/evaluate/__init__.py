"""Evaluators, one per tier, behind one protocol."""
