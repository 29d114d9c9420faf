"""Scripted agents with real tools: something to look at when no real agent is at hand.

The agents' "thoughts" are pauses; everything else is real: the processes, their memory, their waits, their exit codes.
:mod:`.conductor` starts each agent under ``tidegate run``; :mod:`.agent` is the program of one agent, :mod:`.scripts`
what the three kinds of agents do, :mod:`.workshop` the files that their tools work on. Standard library only.
"""
