"""What a run's states say of a cancellation that was lost; tests/end_to_end/test_cancel.py has the rest."""

import pytest
from prefect import State
from prefect.client.schemas.objects import StateType
from prefect.types._datetime import now

from flows.cancellation import cancelled_by_a_crash


@pytest.mark.parametrize(
    ("names", "lost"),
    [
        ("SCHEDULED PENDING RUNNING", False),
        ("SCHEDULED PENDING RUNNING CRASHED SCHEDULED PENDING RUNNING", False),
        ("SCHEDULED PENDING CANCELLING CRASHED SCHEDULED PENDING RUNNING", True),
        ("SCHEDULED PENDING RUNNING CANCELLING CRASHED CRASHED SCHEDULED PENDING RUNNING", True),
        ("SCHEDULED PENDING RUNNING CANCELLING CANCELLED SCHEDULED PENDING RUNNING", False),
        # The attempt that ended the lost one as cancelled; a person has asked for the next.
        ("RUNNING CANCELLING CRASHED SCHEDULED PENDING RUNNING CANCELLED SCHEDULED PENDING RUNNING", False),
        ("RUNNING CANCELLING CRASHED SCHEDULED PENDING RUNNING FAILED SCHEDULED PENDING RUNNING", False),
        ("", False),
    ],
)
def test_only_a_crash_out_of_a_cancellation_is_one_that_was_lost(names, lost):
    history = [State(type=StateType[name], timestamp=now()) for name in names.split()]
    assert cancelled_by_a_crash(history[::-1]) is lost
