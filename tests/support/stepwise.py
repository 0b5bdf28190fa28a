"""Steps of MCLMC and of SG-MCMC from one state to the next, for tests that change a state."""

from ribbit._arrays import checks
from ribbit.chains import Start
from ribbit.sample import start_positions

__all__ = ["started", "stepped"]


def started(sampler, position, *, seed=0, chains=None, warmup=0):
    """Return the state of chains that begin at a position."""
    name = _name(sampler, "init")
    q = start_positions(sampler._density, name, position)
    ids = checks.chain_ids(name, q.shape[0] if chains is None else chains)
    return sampler._init(name, Start(q, seed, ids, warmup), None)


def _name(sampler, function):
    """Return the prefix of errors."""
    return f"{type(sampler).__name__}.{function}"


def stepped(sampler, state, *, num_steps=1):
    """Return the state after some steps, and the statistics of the last one."""
    return sampler._advance(sampler._adopt(_name(sampler, "step"), state, None), num_steps, None)
