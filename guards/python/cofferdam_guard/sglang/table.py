"""What is run for each function of SGLang's that is hooked (`surface` says which, and what they take)."""

from . import agree, decode, door, prefill, source, step, surface
from .hooks import Hook

# By the last two parts of a target's name; one that takes different things by those, too.
_RUN = {
    "Scheduler.run_batch": step.run_batch,
    "Scheduler.process_batch_result": step.process_batch_result,
    "Scheduler.process_pending_chunked_abort": source.process_pending_chunked_abort,
    "ScheduleBatch.prepare_for_decode": step.prepare_for_decode,
    "prepare_abort": door.prepare_abort,
    "poll_and_all_reduce": agree.poll_and_all_reduce,
    "MetadataBuffers.set_buf": prefill.set_buf,
    "PrefillBootstrapQueue.add": door.prefill_add,
    "PrefillBootstrapQueue.finalize_bootstrap": prefill.finalize_bootstrap,
    "SchedulerDisaggregationPrefillMixin.process_disagg_prefill_inflight_queue": source.tick,
    "SchedulerDisaggregationPrefillMixin._retire_aborted_prefill_result": (
        source.retire_aborted_prefill_result
    ),
    "MooncakeKVSender.send": prefill.send,
    "MooncakeKVSender.poll": source.sender_poll,
    "CommonKVSender.poll": source.sender_poll,
    "CommonKVSender.clear": source.sender_clear,
    "TransferInfo.from_zmq": prefill.from_zmq,
    "MooncakeKVManager.send_kvcache": prefill.send_kvcache,
    "MooncakeKVManager._transfer_data": prefill.transfer_data,
    "MooncakeKVManager.register_buffer_to_engine": prefill.register_buffer_to_engine,
    "MooncakeKVManager._handle_aux_data": door.handle_aux_data,
    "MooncakeKVManager.build_receiver_metadata_message": decode.build_receiver_metadata_message,
    "MooncakeKVReceiver.poll": decode.receiver_poll,
    "CommonKVReceiver.poll": decode.receiver_poll,
    "MooncakeKVReceiver.send_metadata": decode.send_metadata_itself,
    "CommonKVReceiver.send_metadata": decode.send_metadata_by_manager,
    "DecodePreallocQueue.add": door.decode_add,
    "DecodePreallocQueue._create_receiver_and_enqueue": decode.create_receiver,
    "DecodePreallocQueue._pre_alloc": step.pre_alloc,
    "DecodePreallocQueue.resume_retracted_reqs": step.resume_retracted_reqs,
    "DecodeTransferQueue.__init__": decode.transfer_queue_init,
    "DecodeTransferQueue._do_release": decode.do_release,
    "DecodeTransferQueue.resolve_deferred_releases": decode.resolve_deferred_releases,
    "SchedulerDisaggregationDecodeMixin.process_decode_queue": decode.tick,
}
_BY_PARAMETERS = {
    ("CommonKVManager._send_abort_ack", 4): source.send_abort_ack_by_address,
    ("CommonKVManager._send_abort_ack", 3): source.send_abort_ack_by_target,
}
# Whatever parameters it has, `AROUND` hands them on.
_LOOSE = ("DecodeTransferQueue.__init__",)


def table(functions, init_disaggregation) -> list[Hook]:
    """Hooks for these functions; what hooks the scheduler's set-up is the caller's."""

    def run_of(one):
        name = one.target.partition(":")[2]
        if name == "Scheduler.init_disaggregation":
            return init_disaggregation
        return _RUN.get(name) or _BY_PARAMETERS[name, len(one.parameters)]

    def parameters_of(one):
        if one.target.partition(":")[2] in _LOOSE:
            return None
        return surface.AS_IMPORTED.get(one.target, one.parameters)

    return [Hook(one.target, parameters_of(one), run_of(one), one.through) for one in functions]
