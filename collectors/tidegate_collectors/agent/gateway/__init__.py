"""``tidegate gateway``: between an agent and its inference engine, passing everything through and telling of each turn.

``main`` is the command; ``portfile`` is how ``tidegate run`` finds a running one, and loads little.
"""
