"""The errors of flowengine.

    FlowError                      everything below
    +-- GraphError (ValueError)    the description is wrong; raised before anything starts
    +-- CheckpointError            a checkpoint is missing, damaged, or another graph's
    +-- PlanError (ValueError)     devices, a profile or a plan that cannot be planned with
    +-- SampleError                a sample cannot be trained on: broken, too long, without target
    +-- RunError                   a run ended early
        +-- StageError             an operator raised; names stage, replica and samples
        +-- RefusedSampleError     a stage raised SampleError, and the run is to go on without it
        +-- WorkerLostError        a worker process died; names stage, replica and samples
        +-- StallError             nothing can progress; names who waits for what
        +-- OutOfBudgetError       disk, memory or file descriptors ran out; names which
        +-- InterruptedRunError    asked to end, by a signal; ended at a step's end
        +-- LeaseError             a tensor of the pool was used after its lease was released

A message says where, what was found, what was expected and what to do about it.
"""


class FlowError(Exception):
    """Base of all errors that flowengine raises on purpose.

    samples: ids of the samples it is about, as far as they are known.
    """

    samples: tuple[int, ...] = ()


class GraphError(FlowError, ValueError):
    """The graph's description is wrong. Nothing was started."""


class CheckpointError(FlowError):
    """A checkpoint is missing, damaged, or of another graph."""


class PlanError(FlowError, ValueError):
    """What to plan for is unknown, does not fit, or is another graph's. Nothing was started."""


class SampleError(FlowError):
    """This sample cannot be given or processed; the message names it. The data are wrong, not a
    program. What becomes of the sample, `graph.add(bad_samples=)` says."""


class RunError(FlowError):
    """A run ended before its last step."""


class StageError(RunError):
    """An operator raised, or returned what it must not."""


class WorkerLostError(RunError):
    """A worker process died without saying why.

    worker: its label. samples: those it worked on, or, unless at_work, had worked on last.
    """

    def __init__(
        self,
        text: str,
        *,
        worker: str = "",
        samples: tuple[int, ...] = (),
        at_work: bool = True,
    ) -> None:
        super().__init__(text)
        self.worker = worker
        self.samples = samples
        self.at_work = at_work


class RefusedSampleError(RunError):
    """A stage raised SampleError, and its graph wants such samples left out.

    stage: its name. samples: ids of those it had in hand. reason: what it said. spares: how many
    it may leave out in all.
    """

    def __init__(
        self, text: str, *, stage: str, samples: tuple[int, ...], reason: str, spares: float
    ) -> None:
        super().__init__(text)
        self.stage = stage
        self.samples = samples
        self.reason = reason
        self.spares = spares


class StallError(RunError):
    """No stage can progress, and the run has not ended."""


class OutOfBudgetError(RunError):
    """Something that the machine has only so much of ran out: disk, memory, file descriptors."""


class InterruptedRunError(RunError):
    """A signal asked the run to end; it ended at a step's end, with a checkpoint."""


class LeaseError(RunError):
    """A tensor of the pool was used after its lease had been released."""
