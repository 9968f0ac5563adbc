"""Local training: the objective's protocol, batches, optimizers, EMA, feature queue, clustering, state parts."""
