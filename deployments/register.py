"""Register at the Prefect server what the deployments need beside themselves; `make up` runs this first.

python deployments/register.py

The work pool `grpo`, the concurrency limit `gpu`, and the automations of automations.yaml. What is there stays as it
is, except for the automations, which are made to be those of the file.
"""

import asyncio
from pathlib import Path

import yaml
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate, WorkPoolCreate
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectNotFound

AUTOMATIONS = Path(__file__).with_name("automations.yaml")


async def register() -> None:
    async with get_client() as client:
        await _pool(client)
        await _limit(client)
        await _automations(client)


async def _pool(client: PrefectClient) -> None:
    try:
        await client.read_work_pool("grpo")
    except ObjectNotFound:
        await client.create_work_pool(WorkPoolCreate(name="grpo", type="process"))


async def _limit(client: PrefectClient) -> None:
    """One slot, for one GPU; `prefect gcl update gpu --limit 2` where two machines have one each."""
    try:
        await client.read_global_concurrency_limit_by_name("gpu")
    except ObjectNotFound:
        await client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name="gpu", limit=1))


async def _automations(client: PrefectClient) -> None:
    known = {one.name: one for one in await client.read_automations()}
    for values in yaml.safe_load(AUTOMATIONS.read_text(encoding="utf-8"))["automations"]:
        automation = AutomationCore.model_validate(values)
        there = known.get(automation.name)
        if there is None:
            await client.create_automation(automation)
        # One that is updated forgets what it has seen, and with that the runs that are silent already.
        elif AutomationCore.model_validate(there.model_dump(include=set(AutomationCore.model_fields))) != automation:
            await client.update_automation(there.id, automation)


if __name__ == "__main__":
    asyncio.run(register())
