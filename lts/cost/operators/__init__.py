"""Calibrated models of single operators: seconds on one chip, from sizes.

One file per operator. Each has a function of named sizes (vectorised over host arrays),
and an `Operator` record by which its parameters are fitted and its estimates checked.
"""
