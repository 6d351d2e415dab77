"""A plan as HTML."""


def plan_html(data):
    return str(data["degrees"])
