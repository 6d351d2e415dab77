"""What people see of a plan: text for a terminal, HTML for Jupyter, tables.

Everything here reads the plain data of plan.json (`Plan.to_dict()`), so that a saved
plan is shown as a fresh one is. Nothing is computed that the data does not hold, apart
from sums, shares and units.
"""
