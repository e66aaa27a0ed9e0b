"""The networks that the lessons train, and their text."""

from gpucourse.models import text
from gpucourse.models.training import Training, training
from gpucourse.models.transformer import Transformer

__all__ = ["Training", "Transformer", "text", "training"]
