"""BYOL and SimSiam in local training: which batches their networks see, and where gradients flow."""

from tests.objectives.local_rounds import Open, digits, first_batch, started
from tests.tensors import seeded


def test_a_loss_moves_no_target_of_byol_but_its_batch_norm_sees_both_views(open_objective: Open):
    federation = open_objective("byol")
    data = digits(federation, 6)
    model, state = started(federation.task, data)
    before = {name: value.clone() for name, value in state.state_dict().items()}
    federation.task.objective.loss(federation.task, model, state, first_batch(data, 6), seeded())
    changed = {name.rpartition(".")[2] for name, value in state.state_dict().items() if not value.equal(before[name])}
    assert changed == {"running_mean", "running_var", "num_batches_tracked"}
    counts = [value for name, value in state.state_dict().items() if name.endswith("num_batches_tracked")]
    assert {int(count) for count in counts} == {2}


def test_gradients_of_simsiam_come_through_the_predictor_only(open_objective: Open):
    federation = open_objective("simsiam")
    data = digits(federation, 6)
    model, state = started(federation.task, data)
    for parameter in model.part("predictor").parameters():
        parameter.data.zero_()
    # A predictor that says 0 whatever it sees lets no gradient through, and there is no other way to the encoder.
    federation.task.objective.loss(federation.task, model, state, first_batch(data, 6), seeded()).loss.backward()
    assert not any(bool(parameter.grad.any()) for parameter in model.encoder.parameters() if parameter.grad is not None)
