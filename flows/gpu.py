"""One run at a time on a GPU: stages that use it hold a slot of a Prefect concurrency limit."""

from collections.abc import Iterator
from contextlib import contextmanager

from prefect import get_run_logger
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency
from prefect.settings import get_current_settings

from tasks.config import Config
from tasks.errors import UserError

# Seconds after which the server gives the slot of a process that died to the next one; while it lives it renews it.
LEASE = 60.0


@contextmanager
def gpu_slot(config: Config) -> Iterator[None]:
    """Hold a slot of `training.concurrency_limit`, waiting for it as long as it takes.

    A run without a configured server holds none: the one that Prefect starts for it knows no other run. Raises
    UserError if the server has no limit of that name, since Prefect would then let everything pass.
    """
    name = config.concurrency_limit
    server = get_current_settings().api.url
    if name is None or not server:
        yield
        return
    get_run_logger().info("taking a slot of the concurrency limit %s, as soon as there is one", name)
    try:
        # An outage of the server shall not end a training: the lease is then renewed late, or not at all.
        with concurrency(name, lease_duration=LEASE, strict=True, raise_on_lease_renewal_failure=False):
            yield
    except ConcurrencySlotAcquisitionError:
        raise UserError(
            f"the Prefect server {server} has no concurrency limit {name!r}, so two runs would take the same GPU; make "
            f"one with `prefect gcl create {name} --limit 1` (make up does), or set training.concurrency_limit=null"
        ) from None
