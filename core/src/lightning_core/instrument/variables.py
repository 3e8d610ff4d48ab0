"""The environment variables that we hand to processes, by name. Standard library only."""

from __future__ import annotations

SESSION = "LIGHTNING_CORE_SESSION"
"""Gives a process of an attempt its scope, as JSON."""
TASK = "LIGHTNING_CORE_TASK"
"""Names the file that holds a command's task."""
OUTPUT = "LIGHTNING_CORE_OUTPUT"
"""Names the file to which a command may write its output."""
STRATEGY = "LIGHTNING_CORE_STRATEGY"
"""Names the file with the strategy that a process of an attempt may read by name."""
PROCESS = "LIGHTNING_CORE_PROCESS"
"""Marks what belongs to an attempt, so that it is found again should its supervisor be killed."""
TOKEN = "LIGHTNING_CORE_TOKEN"
"""Holds the token of a worker or of a run; no process of an attempt may have it."""
OF_AN_ATTEMPT = (SESSION, TASK, OUTPUT, STRATEGY)
"""What a process of ours that an attempt starts must not take for its own."""
