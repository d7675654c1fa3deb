#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""PyTorch's pipelining CSV, as PyTorch itself writes and reads it.

    torch_csv.py make DIR        write torch_*.csv: schedules of PyTorch, with
                                 and without communication
    torch_csv.py check ZBPLAN    hold zbplan against PyTorch: PyTorch's loader,
                                 validator and simulator take what zbplan
                                 writes, zbplan takes what PyTorch writes

Exit status 77 when there is no PyTorch. The files of this folder were made with
PyTorch 2.15; no GPU is needed and no process group is opened.
"""
import os
import subprocess
import sys
import tempfile

try:
    import torch.distributed.pipelining.schedules as sch
    from torch.distributed.pipelining.stage import _PipelineStageBase
except ImportError:
    print("PyTorch is not installed")
    sys.exit(77)


class Stage(_PipelineStageBase):
    """As much of a stage as the schedules look at before they run."""

    def __init__(self, index, n_stage, rank, n_rank):
        self.stage_index = index
        self.num_stages = n_stage
        self.group_rank = rank
        self.group_size = n_rank
        self.submod = None
        self.group = None
        self.p2p_per_edge = False
        self.has_backward = True


Stage.__abstractmethods__ = frozenset()


def make(cls, p, m, per_rank):
    n = p * per_rank
    mine = [Stage(i, n, 0, p) for i in range(per_rank)]
    if issubclass(cls, sch.PipelineScheduleSingle):
        # These write no file and keep no order; their drawing has one. That of
        # 1F1B numbers the forward passes of the last rank from 1.
        one = cls.__new__(cls)
        one._num_stages, one._n_microbatches = n, m
        order = one._get_pipeline_order()
        keep = [[a for a in row if a is None or a.is_compute_op]
                for row in order.values()]
        for row in keep:
            first = min(a.microbatch_index for a in row if a and
                        a.computation_type == sch.FORWARD)
            row[:] = [a._replace(microbatch_index=a.microbatch_index - first)
                      if a and a.computation_type == sch.FORWARD else a
                      for a in row]
        runtime = empty_runtime(p, m, n)
        runtime.pipeline_order = dict(enumerate(keep))
        runtime._prepare_schedule_with_comms(runtime.pipeline_order)
        return runtime
    return cls(mine, m, loss_fn=lambda *a: None)


def empty_runtime(p, m, n_stage):
    mine = [Stage(i, n_stage, 0, p) for i in range(n_stage // p)]
    return sch._PipelineScheduleRuntime(mine, m, loss_fn=lambda *a: None)


CASES = [
    ("1f1b", sch.Schedule1F1B, 4, 8, 1),
    ("gpipe", sch.ScheduleGPipe, 3, 5, 1),
    ("interleaved1f1b", sch.ScheduleInterleaved1F1B, 4, 8, 2),
    ("interleaved1f1b_3", sch.ScheduleInterleaved1F1B, 2, 4, 3),
    ("interleavedzb", sch.ScheduleInterleavedZeroBubble, 4, 8, 2),
    # Backward passes in reverse order of the microbatches: zbrun has no such.
    ("loopedbfs", sch.ScheduleLoopedBFS, 2, 4, 2),
    ("zbv", sch.ScheduleZBVZeroBubble, 4, 8, 2),
    ("dualpipev", sch.ScheduleDualPipeV, 2, 8, 2),
]


def dump(schedule, path, form):
    schedule._dump_csv(path, format=form)


def make_files(folder):
    for name, cls, p, m, per_rank in CASES:
        schedule = make(cls, p, m, per_rank)
        dump(schedule, f"{folder}/torch_{name}.csv", "compute_only")
        if name in ("1f1b", "interleaved1f1b", "zbv"):
            dump(schedule, f"{folder}/torch_{name}_comms.csv", "compute_comms")


# ---- check ----

n_bad = 0


def fail(text):
    global n_bad
    n_bad += 1
    print("FAIL:", text)


def run(zbplan, *args):
    done = subprocess.run([zbplan, *args], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def load(path, p, m, per_rank):
    """PyTorch's way from a file to what its runtime would do."""
    runtime = empty_runtime(p, m, p * per_rank)
    runtime._load_csv(path)
    lowered = runtime.pipeline_order_with_comms
    # The simulator knows no FSDP actions.
    plain = {r: [a for a in row if "SHARD" not in str(a)
                 and "REDUCE" not in str(a)] for r, row in lowered.items()}
    return sch._simulate_comms_compute(
        plain, lambda s: runtime.stage_index_to_group_rank[s], p * per_rank)


def planners(zbplan):
    _, out, _ = run(zbplan, "-p", "2", "-m", "4", "--budget", "0", "--compare")
    return [line.split()[0] for line in out.splitlines()[2:]]


def check_export(zbplan, folder):
    n_files = 0
    path = f"{folder}/ours.csv"
    for planner in planners(zbplan):
        for p, m in [(1, 1), (1, 4), (2, 4), (2, 5), (3, 6), (4, 4), (4, 8),
                     (4, 16), (8, 16), (8, 32)]:
            status, _, err = run(zbplan, "-p", str(p), "-m", str(m), "--cost",
                                 "10,12,8,1", "--planner", planner, "--budget",
                                 "0", "-f", "torch", "-o", path)
            if status != 0:
                print(f"  {planner} {p} {m}: {err.strip()}")
                continue
            with open(path) as f:
                stages = {a.split("F")[0] for a in
                          f.read().replace("\n", ",").split(",") if "F" in a}
            try:
                load(path, p, m, len(stages) // p)
                n_files += 1
            except Exception as e:
                fail(f"PyTorch refuses {planner} p {p} m {m}: {e}")
    print(f"PyTorch takes {n_files} schedules of zbplan")
    if n_files == 0:
        fail("nothing was exported")


def actions(path):
    with open(path) as f:
        return [[a for a in line.strip().split(",") if a] for line in f]


def flat(rows):
    return [[x for a in row for x in
             (a[1:a.index(")")].split(";") if a[0] == "(" else [a])]
            for row in rows]


def check_import(zbplan, folder):
    n_files = 0
    path, back = f"{folder}/theirs.csv", f"{folder}/back.csv"
    for name, cls, _, _, per_rank in CASES:
        for p, m in [(1, 2), (2, 4), (3, 6), (4, 8), (4, 16), (8, 16)]:
            try:
                schedule = make(cls, p, m, per_rank)
            except Exception as e:
                print(f"  {name} {p} {m}: {e}")
                continue
            dump(schedule, path, "compute_only")
            for form in ("compute_only", "compute_comms"):
                dump(schedule, path, form)
                status, _, err = run(zbplan, "--check", path)
                if name == "loopedbfs":
                    if status != 1 or "out of order" not in err:
                        fail(f"{name} p {p} m {m}: not refused")
                    continue
                if status != 0:
                    fail(f"{name} p {p} m {m} {form}: {err.strip()}")
                    continue
                run(zbplan, "--planner", f"file:{path}", "-f", "torch", "-o",
                    back)
                dump(schedule, path, "compute_only")
                if flat(actions(path)) != actions(back):
                    fail(f"{name} p {p} m {m} {form}: comes back different")
                n_files += 1
    print(f"zbplan takes {n_files} schedules of PyTorch")


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("make", "check"):
        print(__doc__)
        return 2
    if sys.argv[1] == "make":
        make_files(sys.argv[2])
        return 0
    with tempfile.TemporaryDirectory() as folder:
        check_export(os.path.abspath(sys.argv[2]), folder)
        check_import(os.path.abspath(sys.argv[2]), folder)
    return 1 if n_bad else 0


if __name__ == "__main__":
    sys.exit(main())
