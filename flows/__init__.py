"""The flows, each reading top to bottom like its list of stages, and the command line."""

import os

# Without a server Prefect starts one of its own, which on a busy machine takes longer than the 20 s it is given.
os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "120")

# Up to some four minutes of trying, where its default is one: a server that is started anew is no failure.
os.environ.setdefault("PREFECT_CLIENT_MAX_RETRIES", "7")

# Its telemetry would be the first thing to lock the database of a server that has just been made.
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
