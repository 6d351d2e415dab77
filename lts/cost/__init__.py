"""What a plan costs: seconds, bytes, and the serving metrics that follow from them.

`collective.py` prices one collective and says which ones a change of layout needs,
`roofline.py` prices a node, `memory.py` counts bytes per GPU, `tables.py` gathers all
of it into tables over choices, and `serving.py` is the arithmetic from step times to
TTFT, TPOT and tokens per second.
"""
