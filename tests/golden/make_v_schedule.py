#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Make v_schedule.txt from the reference generator.

    make_v_schedule.py PATH/TO/v_schedule.py COMMIT > v_schedule.txt

The reference is colossalai/pipeline/schedule/v_schedule.py of the repository
hpcaitech/ColossalAI, imported from wherever it lies; nothing of it is kept.
Each case becomes one line with a digest of all nodes in the text form that
`zbplan -f nodes` prints, and the small ones come in full behind it.
"""
import importlib.util
import sys

COSTS = [
    (1, 1, 1, 0),
    (1, 1, 1, 1),
    (10, 10, 10, 1),
    (12, 14, 9, 1),
    (18, 22, 15, 2),
    (100, 130, 80, 10),
]
FRACTIONS = [(1.25, 1.75, 0.625, 0.1), (0.3, 0.41, 0.2, 0.03)]
MEM = (303104, -172032, -131072)
FULL = [(1, 2, 0, "1"), (2, 2, 3, "1"), (3, 2, 1, "1"), (3, 5, 4, "1.5")]


def load(path):
    spec = importlib.util.spec_from_file_location("reference", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["reference"] = module
    spec.loader.exec_module(module)
    return module


def number(x):
    return str(int(x)) if x == int(x) else repr(x)


def nodes_text(reference, p, m, cost, mem):
    limit = None if mem == "1" else float(mem) * 2 * p * MEM[0]
    graph = reference.PipelineGraph(p, m, *cost, *MEM, max_mem=limit)
    lines = []
    for stage, nodes in enumerate(graph.get_v_schedule()):
        for n in nodes:
            lines.append(
                f"{stage} {n.type} {n.chunk} {n.minibatch} "
                f"{number(n.start_time)} {number(n.completion_time)} "
                f"{int(n.rollback)}\n"
            )
    return lines


def digest(lines):
    h = 0xCBF29CE484222325
    for byte in "".join(lines).encode():
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return f"{h:016x}"


def grid():
    for p in (2, 3, 4, 8, 16):
        for m in (p, 2 * p, 4 * p, 8 * p):
            for cost in COSTS:
                for mem in ("1", "1.5"):
                    yield p, m, cost, mem
    # Fewer microbatches than stages, one stage, sizes that divide nothing.
    for p, m in ((1, 1), (1, 5), (4, 1), (5, 3), (7, 2), (6, 13), (9, 17)):
        for cost in COSTS + FRACTIONS:
            yield p, m, cost, "1"


def main():
    reference = load(sys.argv[1])
    print("# SPDX-License-Identifier: MIT")
    print("# Results of the reference generator, made by make_v_schedule.py")
    print("# from hpcaitech/ColossalAI, v_schedule.py at commit")
    print("#", sys.argv[2])
    print("# Memory of F, B, W:", *MEM, "- limit: mem x 2p x F.")
    print("# p m f b w c mem nodes fnv1a64(nodes text)")
    for p, m, cost, mem in grid():
        lines = nodes_text(reference, p, m, cost, mem)
        print(p, m, *cost, mem, len(lines), digest(lines))
    for p, m, which, mem in FULL:
        cost = COSTS[which]
        lines = nodes_text(reference, p, m, cost, mem)
        print("full", p, m, *cost, mem, len(lines))
        print("".join(lines), end="")


main()
