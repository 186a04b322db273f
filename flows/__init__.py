"""The flows, each reading top to bottom like its list of stages, and the command line."""

import os

# Without a server Prefect starts one of its own, which on a busy machine takes longer than the 20 s it is given.
os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "120")

# Up to some four minutes of trying, where its default is one: a server that is started anew is no failure.
os.environ.setdefault("PREFECT_CLIENT_MAX_RETRIES", "7")

# What runs on this machine (a temporary Prefect server, a vLLM server) is asked directly, whatever proxies there are.
_exempt = (os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or "").split(",")
if "*" not in _exempt:
    _exempt += [host for host in ("127.0.0.1", "localhost", "0.0.0.0") if host not in _exempt]
os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(filter(None, _exempt))

# Its telemetry would be the first thing to lock the database of a server that has just been made.
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")

# It draws over the log; and where a run is to be seen a flow says itself, once.
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
