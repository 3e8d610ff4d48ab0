"""The role of a run: it enqueues, waits, grades, and starts and ends what it needs.

evaluate    `lightning_core.run`: what a user calls
launch      a run with its server, engine and workers around it
runner      the Run itself, over a server
workforce   its worker processes, started again where one dies
scoring     what becomes of a rollout that has ended
patience    asking a server again that is away
checks      what is refused before anything is started
progress    counts, and `live`, which shows them
"""
