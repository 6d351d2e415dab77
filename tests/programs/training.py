"""One step of training with optax: gradients, clipping, a schedule, AdamW."""

import jax
import numpy as np
import optax

from tests.programs.linen_models import BATCH, LENGTH, VOCAB, Transformer, shapes_of
from tests.programs.program import Program, token_ids


def step(layers: str, num_layers: int, **sizes: int) -> Program:
    """Parameters and the optimizer's state go in, are donated, and come out."""
    model = Transformer(layers=layers, num_layers=num_layers, **sizes)
    schedule = optax.warmup_cosine_decay_schedule(1e-4, 1e-2, 10, 100)
    # The gradient of a key's bias is zero up to rounding; the usual eps of 1e-8 would
    # scale that rounding up to whole steps.
    adamw = optax.adamw(schedule, eps=1e-3, weight_decay=0.01)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), adamw)

    def loss_of(params, tokens):
        logits = model.apply({"params": params}, tokens[:, :-1])
        labels = tokens[:, 1:]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return losses.mean()

    def train_step(params, opt_state, tokens):
        loss, grads = jax.value_and_grad(loss_of)(params, tokens)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    params = shapes_of(model)
    opt_state = jax.tree.map(
        lambda leaf: np.zeros(leaf.shape, leaf.dtype),
        jax.eval_shape(optimizer.init, params),
    )
    args = params, opt_state, token_ids(BATCH, LENGTH + 1, VOCAB)
    return Program(function=train_step, args=args, donated=("params", "opt_state"))
