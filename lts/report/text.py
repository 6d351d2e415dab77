"""A plan as text."""


def plan_text(data):
    return str(data["degrees"])
