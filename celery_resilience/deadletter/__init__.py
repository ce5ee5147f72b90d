"""Dead letters: messages that no attempt follows, kept byte for byte until an operator decides."""

from .letter import DeadLetter, make_letter, read_letter, to_message
from .queue import Batch, DeadLetterQueue

__all__ = ["Batch", "DeadLetter", "DeadLetterQueue", "make_letter", "read_letter", "to_message"]
