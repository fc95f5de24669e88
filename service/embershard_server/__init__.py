"""The gRPC front end of embershard, and the process around it."""

import os

# gRPC reads it when it is imported. It tells of each failed handshake in lines that are no log of ours, and whoever can
# connect can have it fill a disk; GRPC_VERBOSITY=INFO brings them back.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
