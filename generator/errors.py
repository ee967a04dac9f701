"""Every error the generator raises: a sentence with the value and the place, and a hint."""

from __future__ import annotations


class MirageError(Exception):
    """Carry one sentence about what is wrong and a hint about what would work.

    The command line prints both and exits with code 2, without a traceback.
    """

    def __init__(self, sentence: str, hint: str = "") -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.hint = hint

    def __reduce__(self) -> tuple[type[MirageError], tuple[str, str]]:
        return type(self), (self.sentence, self.hint)


class GraphError(MirageError):
    """A graph that no reading could give a meaning to."""


class OneDimError(GraphError):
    """Two dims of a tensor, or a product's rows and columns, that would be one."""


class UndefinedError(GraphError):
    """A computation that has no result on the inputs it was given."""


class RecipeError(MirageError):
    """A recipe that cannot be loaded or traced."""


class UnknownOperatorError(RecipeError, AttributeError):
    """A name that is no operator of the recipe language; Python takes it as a missing attribute."""


class ShapeError(MirageError):
    """A shape that does not parse or does not fit its recipe."""


class TargetError(MirageError):
    """An architecture or dtype the generator has no facts about."""


class SearchError(MirageError):
    """A search that ended without an equivalent muGraph."""


class JobError(MirageError):
    """A search job that no worker could finish."""


class VerifyError(MirageError):
    """A muGraph that is not equal to its recipe."""


class PlanError(MirageError):
    """A muGraph that the planner cannot lower to a tile program."""


class FileError(MirageError):
    """A file or folder that cannot be read or written."""


class ToolchainError(MirageError):
    """A compiler or library that was not found."""
