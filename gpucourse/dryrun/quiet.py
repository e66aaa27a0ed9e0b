"""DTensor finds out shapes by trying operations at global size; here it does so unseen by the ledger of a dry run."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch.utils._python_dispatch import _disable_current_modes


@contextmanager
def quiet_propagation() -> Iterator[None]:
    """While entered, DTensor's trials run outside of every dispatch mode. Private API: this is its one wrapper."""
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    loud = ShardingPropagator._propagate_tensor_meta_non_cached

    def quiet(self, schema):
        with _disable_current_modes():
            return loud(self, schema)

    ShardingPropagator._propagate_tensor_meta_non_cached = quiet
    try:
        yield
    finally:
        ShardingPropagator._propagate_tensor_meta_non_cached = loud
