"""One module a claim: ``python -m bench.NAME`` measures it and prints one JSON object as its last line.

Each takes ``--full`` for more runs than the default, which ends within a minute. What is compared with what is said in
each module's first lines and measured in the same run.
"""
