"""JAX: Ribbit's log densities in compiled programs, and JAX log densities as targets of Ribbit.

``import ribbit.jax`` needs JAX (extra ``jax``); ``import ribbit`` does not import it.
"""

from ribbit._arrays.keywords import explain
from ribbit._arrays.packages import needing

with needing("ribbit.jax", "jax"):
    from ribbit.jax.density import JaxDensity, from_jax
    from ribbit.jax.log_density import jax_log_density

__all__ = ["JaxDensity", "from_jax", "jax_log_density"]

explain(globals())
