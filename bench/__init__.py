"""What the claims about speed rest on. `python -m bench` runs all, `python -m bench NAME…` some.

Every figure is a ratio of two things measured in one run, in turns, on the same machine.
"""
