"""The guarded connector over a transport that fails on purpose, for ``faults.py``.

The request id says what goes wrong with its fetch (`fault-flipped@1`: on rank 1 only; `fault-flipped-group2`: in
that group of KV caches; `fault-table`: its block table names a neighbour's block in mid-answer). ``unwritten`` and ``foreign`` change what is asked of NIXL, so a real transfer leaves a
block out or brings another request's; ``flipped`` and ``late`` change memory after NIXL has reported success, before the guard hears of it."""

from __future__ import annotations

import re
from typing import Any

from cofferdam_guard.vllm import patch
from cofferdam_guard.vllm.connector import GuardedNixlConnector

FAULTS = ("unwritten", "foreign", "flipped", "late")


class FaultyNixlConnector(GuardedNixlConnector):
    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        super().bind_connector_metadata(connector_metadata)
        self._faults = getattr(self, "_faults", {})
        for name, meta in connector_metadata.reqs_to_recv.items():
            fault = next((fault for fault in FAULTS if f"fault-{fault}" in name), None)
            rank = re.search(r"fault-\w+@(\d)", name)
            if fault is not None and rank and int(rank[1]) != self._worker_guard.rank:
                continue
            if fault is None:
                self._remote_of_another = [list(g) for g in meta.remote.block_ids]
                continue
            group = re.search(r"fault-\w+-group(\d)", name)
            self._group = int(group[1]) if group else 0
            self._faults[name] = (fault, list(meta.local_block_ids[self._group]))

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        super().register_kv_caches(kv_caches)
        look, swapped = self._worker_guard.look, {}

        def look_at_a_wrong_table(handover: Any, batch: Any, scheduled: Any) -> None:
            # From the fourth step on, a request called so reads the first block of its neighbour's table.
            names = list(batch.req_ids[: batch.num_reqs])
            for at, name in enumerate(names):
                if "fault-table" in name and len(names) > 1:
                    swapped[name] = swapped.get(name, 0) + 1
                    if swapped[name] > 3:
                        for table in batch.block_table.block_tables:
                            rows, last = table.block_table.np, table.num_blocks_per_row[at] - 1
                            rows[at, last] = rows[at - 1, 0]
            look(handover, batch, scheduled)

        patch.attach(look_at_a_wrong_table)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        wrapper = self.connector_worker.nixl_wrapper
        if not hasattr(self, "_make"):
            self._make = wrapper.make_prepped_xfer
            wrapper.make_prepped_xfer = self._make_prepped_xfer
        read = self.connector_worker._read_blocks_for_req

        def read_with_fault(name: str, meta: Any) -> None:
            self._now = self._faults.get(name)
            try:
                read(name, meta)
            finally:
                self._now = None

        self.connector_worker._read_blocks_for_req = read_with_fault
        try:
            super().start_load_kv(forward_context, **kwargs)
        finally:
            self.connector_worker._read_blocks_for_req = read

    def _make_prepped_xfer(self, op: str, local: Any, local_ids: Any, remote: Any, remote_ids: Any, **kw: Any):
        fault, blocks = self._now or (None, [])
        if fault == "unwritten":
            # The last block of every region stays as its previous owner left it.
            keep = [at for at in range(len(local_ids)) if at % len(blocks) != len(blocks) - 1]
            local_ids, remote_ids = local_ids[keep], remote_ids[keep]
        elif fault == "foreign":
            # The first block of every region comes from another request's block.
            theirs = self._remote_of_another[0][0]
            mine = remote_ids[0]  # not the smallest: blocks come in the order of the prompt
            remote_ids = remote_ids.copy()
            first = [at for at in range(len(remote_ids)) if at % len(blocks) == 0]
            remote_ids[first] += theirs - mine
        return self._make(op, local, local_ids, remote, remote_ids, **kw)

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        inner = self.connector_worker.get_transfer_results

        def with_faults() -> Any:
            results = inner()
            for name in results.finished_recving - results.failed_recving:
                fault, blocks = self._faults.pop(name, (None, []))
                if fault == "flipped":
                    self._worker_guard._flip_one_byte(blocks[-1], self._group)
                elif fault == "late":
                    # A write of an earlier owner lands: a whole block of one layer.
                    self._worker_guard.sums[0].layers[0][blocks[-1]].fill_(1.5)
            return results

        self.connector_worker.get_transfer_results = with_faults
        try:
            return super().get_transfer_results(finished_req_ids)
        finally:
            del self.connector_worker.get_transfer_results
