"""Ray's exceptions as one line, and whose fault they are."""

from ray.core.generated.common_pb2 import ActorDiedErrorContext
from ray.exceptions import ActorDiedError, ActorUnavailableError, ActorUnschedulableError, NodeDiedError

from actors.errors import death_reason, first_line, is_machine_failure


def test_a_version_mismatch_is_one_line():
    text = "Version mismatch: The cluster was started with:\n  Ray: 2.60.0\n\nThis process runs:\n  Ray: 2.59.0\n"
    expected = "Version mismatch: The cluster was started with: Ray: 2.60.0 This process runs: Ray: 2.59.0"
    assert first_line(RuntimeError(text)) == expected
    assert first_line(RuntimeError("one\ntwo")) == "one"


def test_an_actor_that_fails_to_start_shows_the_last_line_of_its_exception():
    last = "ModuleNotFoundError: No module named 'actors.client_actor'; 'actors' is not a package"
    text = f"The actor died because of an error raised in its creation task, ray::ClientActor.__init__()\n  File x\n{last}\n"
    assert death_reason(RuntimeError(text)) == last


def died(message, pid=7):
    return ActorDiedError(ActorDiedErrorContext(class_name="Echo", actor_id=bytes(16), pid=pid, error_message=message))


def test_deaths_of_machines_are_distinguished_from_deaths_of_processes():
    assert not is_machine_failure(died("The actor is dead because its worker process has died. Worker exit type: 1"))
    for error in (
        died("The actor died because its node has died. Node Id: 1, Reason: health check failed"),
        ActorUnavailableError("rpc error", bytes(16)),
        ActorUnschedulableError("the node is gone"),
        NodeDiedError("the node is gone"),
    ):
        assert is_machine_failure(error), error
