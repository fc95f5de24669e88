"""The gRPC front end of embershard, and the process around it."""
