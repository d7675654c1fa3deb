# SPDX-License-Identifier: MIT
"""Write torch_orders.txt: the orders of PyTorch's pipeline schedules.

    python3 make_torch_orders.py >torch_orders.txt

Made with torch 2.15.0. Each case is a line `PLANNER stages microbatches
chunks`, then one line of PyTorch's actions per rank: the number of the chunk in
the model, F, I (B here), W or B (BW here), the microbatch. A pair that PyTorch
may overlap (F of one chunk, B of another) is written as it is run, one after
the other.
"""

from torch.distributed.pipelining import schedules as S

OURS = {
    "interleaved": S.ScheduleInterleaved1F1B,
    "pytorch-zbv": S.ScheduleZBVZeroBubble,
    "dualpipev": S.ScheduleDualPipeV,
}


def rank_actions(name, p, m, n_chunk, rank):
    schedule = OURS[name].__new__(OURS[name])
    schedule.pp_group_size = p
    schedule.rank = rank
    schedule.num_stages = schedule._num_stages = p * n_chunk
    schedule.n_local_stages = n_chunk
    schedule._n_microbatches = m
    schedule.number_of_rounds = max(1, m // p)
    schedule.microbatches_per_round = m // schedule.number_of_rounds
    for action in schedule._calculate_single_rank_operations(rank):
        if action is not None:
            yield from action.sub_actions or (action,)


def write(name, p, m, n_chunk=2):
    print(name, p, m, n_chunk)
    for rank in range(p):
        print(",".join(map(str, rank_actions(name, p, m, n_chunk, rank))))


def main():
    print("# SPDX-License-Identifier: MIT")
    print("# Made by make_torch_orders.py with torch 2.15.0.")
    for p in (1, 2, 3, 4, 7):
        for m in (1, 2, 3, 7, 13):
            write("pytorch-zbv", p, m)
        for m in (2 * p, 2 * p + 1, 3 * p + 2):
            write("dualpipev", p, m)
        for n_chunk in (2, 3):
            for m in (1, p, p + 1, 2 * p, 3 * p):
                if m % max(1, m // p) == 0:
                    write("interleaved", p, m, n_chunk)


main()
