"""Circuit breakers shared by the whole fleet: who may call a dependency now."""

from .circuit import CircuitBreaker
from .permit import Permit, Refusal
from .registry import Breakers
from .values import Snapshot, Transition

__all__ = ["Breakers", "CircuitBreaker", "Permit", "Refusal", "Snapshot", "Transition"]
