"""A real service under random load is killed again and again, and what it has told is compared with a model.

requests.py   the collection, and random requests
fleet.py      the service through its lives, and how to reach it
history.py    what was sent and told, and what was found on the disk
callers.py    clients that send every update until it is answered
operator.py   snapshots, growth, freezing, activations, a full disk, and kills
model.py      one in-process engine that applies the log's entries in the order of their versions
verdict.py    compares the two
run.py        all of it together

`python -m torture --help` says how to start it.
"""
