"""Fits operator models to measured timings, and measures the chips at hand."""
