"""The two functions of vLLM's that are wrapped so that every step is looked at: where the model runner is
about to use its block tables, and where the scheduler takes what a step has computed. A connector has no
method at either place. Both are asked, before the first request, whether they are what will be called.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorWorkerMetadata

from ..settings import BadSettings
from .handover import FIELD

_MARK = "cofferdam"
OFF = "set COFFERDAM_GUARD_STEP_CHECK=0 to run without the check of each step"


@dataclass
class Convicted(KVConnectorWorkerMetadata):
    """From the workers to the scheduler: requests whose block table was not their own on some rank."""

    names: set[str] = field(default_factory=set)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "Convicted":
        return Convicted(self.names | getattr(other, "names", set()))


def runner() -> None:
    """Into this worker's model runner class, once."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    original = GPUModelRunner._prepare_inputs
    if getattr(original, _MARK, False):
        return

    def _prepare_inputs(self: Any, scheduler_output: Any, num_scheduled_tokens: Any, *more: Any, **words: Any):
        look = getattr(self, "cofferdam_look", None)
        if look is not None:
            said = getattr(scheduler_output, "kv_connector_metadata", None)
            look(getattr(said, FIELD, None), self.input_batch, num_scheduled_tokens)
        return original(self, scheduler_output, num_scheduled_tokens, *more, **words)

    setattr(_prepare_inputs, _MARK, True)
    GPUModelRunner._prepare_inputs = _prepare_inputs


def attach(look: Any) -> None:
    """Finds, from the stack, the runner that registers its KV memory, and gives it what looks. A runner that
    would not call it is refused."""
    frame = sys._getframe()
    while frame is not None:
        one = frame.f_locals.get("self")
        if hasattr(type(one), "execute_model") and hasattr(one, "input_batch"):
            break
        frame = frame.f_back
    if frame is None:
        raise BadSettings(f"cofferdam-guard does not see the model runner whose steps it is to check: {OFF}")
    if not getattr(getattr(type(one), "_prepare_inputs", None), _MARK, False):
        raise BadSettings(
            f"cofferdam-guard cannot check the steps of {type(one).__module__}.{type(one).__qualname__}: it "
            f"prepares its inputs in another way (VLLM_USE_V2_MODEL_RUNNER=0 chooses the one that is known); "
            f"{OFF}"
        )
    one.cofferdam_look = look


def scheduler() -> None:
    """Into this process's scheduler class, once."""
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
    from vllm.v1.request import RequestStatus

    original = Scheduler.update_from_output
    if getattr(original, _MARK, False):
        return

    def update_from_output(self: Any, scheduler_output: Any, model_runner_output: Any) -> Any:
        said = getattr(model_runner_output, "kv_connector_output", None)
        convicted = getattr(getattr(said, "kv_connector_worker_meta", None), "names", ())
        ended = []
        if convicted:
            # First, so that nothing of what this step computed for them is taken.
            ended = self.finish_requests(set(convicted), RequestStatus.FINISHED_ERROR)
        outputs = original(self, scheduler_output, model_runner_output)
        for request in ended:
            told = outputs.setdefault(request.client_index, EngineCoreOutputs())
            told.outputs = [
                *told.outputs,
                EngineCoreOutput(
                    request_id=request.request_id,
                    new_token_ids=[],
                    finish_reason=request.get_finished_reason(),
                    events=request.take_events(),
                    trace_headers=request.trace_headers,
                ),
            ]
        return outputs

    setattr(update_from_output, _MARK, True)
    Scheduler.update_from_output = update_from_output
