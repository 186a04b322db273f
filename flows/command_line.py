"""The command lines of the flows: `CONFIG [section.key=value …]` and what each adds to it."""

import argparse
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

import httpx
from prefect import State

from flows.stages import reports_failure
from tasks.config import Config, load, parse_override
from tasks.errors import UserError


def grpo_main(arguments: Sequence[str], flow: Any, stages: Sequence[str]) -> int:
    """Run the flow `grpo` in this process; 0 on success, 2 for a mistake in the command, else 1."""
    parser = _parser("python -m flows.grpo", "Train a model with GRPO, evaluate it, and register it.")
    parser.add_argument("--until", choices=stages, default=stages[-1], help="the last stage to run")
    return _run(parser, arguments, flow, "until")


def evaluate_main(arguments: Sequence[str], flow: Any) -> int:
    """Run the flow `evaluate` in this process; exit codes as for `grpo_main`."""
    parser = _parser("python -m flows.evaluate", "Score a model on the test questions of a configuration.")
    parser.add_argument(
        "--model", help="a hub id, a folder, gguf:PACKAGE/FILE, models:/NAME@ALIAS or models:/NAME/VERSION"
    )
    return _run(parser, arguments, flow, "model")


def parse_config(program: str, description: str, arguments: Sequence[str]) -> Config:
    """The configuration that a command line without further options names. Raises UserError."""
    given = _parser(program, description).parse_args(arguments)
    return load(given.config, dict(parse_override(text) for text in given.overrides))


def check_prefect() -> None:
    """Raise UserError if a Prefect server is configured and does not answer."""
    from prefect.settings import get_current_settings

    url = get_current_settings().api.url
    if url is not None and not url.strip():
        raise UserError("PREFECT_API_URL is set but empty; unset it to run without a Prefect server, or name one")
    if url is None:
        return  # Prefect starts a server of its own, in this process's lifetime
    try:
        httpx.get(f"{url.rstrip('/')}/health", timeout=10).raise_for_status()
    except httpx.HTTPError as error:
        raise UserError(
            f"the Prefect server at {url} does not answer ({type(error).__name__}); start it (make up), "
            "or unset PREFECT_API_URL to run without one"
        ) from None


def _without_failure(record: logging.LogRecord) -> bool:
    """Leave out Prefect's report that the flow run has failed: its message is the command's own last word."""
    return not reports_failure(record)


def _parser(program: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument("config", help="a YAML configuration, for example deployments/gsm8k.yaml")
    parser.add_argument("overrides", nargs="*", default=[], metavar="section.key=value", help="settings on top of it")
    return parser


def _run(parser: argparse.ArgumentParser, arguments: Sequence[str], flow: Any, option: str) -> int:
    given = parser.parse_intermixed_args(arguments)
    try:
        overrides = dict(parse_override(text) for text in given.overrides)
        load(given.config, overrides)
        check_prefect()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return run_to_end(
        lambda: flow(config=given.config, overrides=overrides, **{option: getattr(given, option)}, return_state=True)
    )


def run_to_end(flow: Callable[[], State]) -> int:
    """Run a flow in this process and say how it ended; 0 for success, else 1."""
    # Prefect ends the stages on SIGTERM and then lets it kill the process; leave in order instead, so that the server
    # that Prefect may have started for this process ends with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    logging.getLogger("prefect.flow_runs").addFilter(_without_failure)
    try:
        state = flow()
    except KeyboardInterrupt:  # the flow has said what to do next; a traceback would say no more
        return 128 + signal.SIGINT
    code = 0 if state.is_completed() else 1
    print(state.message if code == 0 else f"error: {state.message}", file=sys.stdout if code == 0 else sys.stderr)
    return code
