"""Errors that a user can act on.

Every message is one sentence (two at most): what is wrong, the value seen, the exact fix.
"""


class PathEvalError(Exception):
    """Base class; the command line prints these without a traceback and exits with status 2."""


class PrerequisiteError(PathEvalError):
    """The environment lacks something: a package, a version, a data source."""


class CheckpointError(PathEvalError):
    """A checkpoint cannot be read as the model that its config describes."""


class UnsupportedError(PathEvalError):
    """A setting or shape that patheval cannot honour exactly."""


class EngineError(PathEvalError):
    """The process or device that ran the model was lost; running again goes on where it stopped."""


class RequestError(PathEvalError):
    """A request that the model cannot answer as asked, such as a prompt over the length limit."""


class ResultsError(PathEvalError):
    """Results or a board that cannot be read, or that must not be compared."""
