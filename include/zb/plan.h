/* SPDX-License-Identifier: MIT
 *
 * Schedules: what each stage does, in which order, and when.
 *
 * Pure functions over numbers: no threads, no devices, no model. A schedule is
 * data that can be made by a planner, read from a file, checked, simulated,
 * drawn, and run by the workers.
 *
 *     struct zb_plan_input in;
 *     struct zb_schedule *s;
 *     ZB_TRY(zb_plan_input_init(&in, 4, 8, ZB_PLACE_V));   // unit costs
 *     ZB_TRY(zb_plan_make("zbv", &in, NULL, &s));
 *     ZB_TRY(zb_schedule_check(s, &in));
 *     zb_schedule_free(s);
 *     zb_plan_input_release(&in);
 *
 * Words. The model is cut into n_virtual = n_stage * n_chunk chunks, numbered
 * 0..n_virtual-1 along the model ("virtual stages"). A stage is one device of
 * the pipeline; it holds n_chunk of them, and its nodes carry the local number:
 *   v:      2 chunks, local 0 = virtual stage s (left leg), local 1 = virtual
 *           stage 2p-1-s (right leg)
 *   loop:   n_chunk chunks, local c = virtual stage c*p + s
 *   linear: 1 chunk, local 0 = virtual stage s
 * F is the forward pass of one microbatch through one chunk, B computes input
 * gradients, W weight gradients, BW both. SEND_ and RECV_ FORWARD move the
 * output of F, BACKWARD that of B, between different stages; the chunk of a
 * SEND is the sender's, that of a RECV the receiver's.
 *
 * Sources: Qi et al. 2024 (arXiv 2401.10241, zero bubble), Qi et al. 2024
 * (arXiv 2405.15362, controllable memory), Narayanan et al. 2021 (1F1B,
 * interleaved), PyTorch's torch.distributed.pipelining (ZBV, DualPipeV).
 * Threads: any, no shared state.
 */
#ifndef ZB_PLAN_H
#define ZB_PLAN_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "zb/status.h"

#define ZB_NODE_TYPE_MAP(X)                                                    \
    X(F)                                                                       \
    X(B)                                                                       \
    X(W)                                                                       \
    X(BW)                                                                      \
    X(SEND_FORWARD)                                                            \
    X(RECV_FORWARD)                                                            \
    X(SEND_BACKWARD)                                                           \
    X(RECV_BACKWARD)                                                           \
    X(POST_VALIDATION)                                                         \
    X(SEND_POST_VALIDATION)                                                    \
    X(RECV_POST_VALIDATION)

enum zb_node_type {
#define ZB_X(name) ZB_NODE_##name,
    ZB_NODE_TYPE_MAP(ZB_X)
#undef ZB_X
    ZB_N_NODE_TYPES
};

const char *zb_node_type_str(enum zb_node_type t);
/* F, B, W or BW: a node that occupies the device. */
int zb_node_is_compute(enum zb_node_type t);

enum zb_placement { ZB_PLACE_V, ZB_PLACE_LOOP, ZB_PLACE_LINEAR };

/* "v", "loop", "linear" */
const char *zb_placement_str(enum zb_placement placement);

/* One entry of a stage's stream. Times are in the unit of the costs. */
struct zb_node {
    enum zb_node_type type;
    int chunk; /* local to the stage */
    int mb;
    int rollback; /* the reference's mark on first receives (get_v_schedule) */
    double start;
    double end;
};

struct zb_stage_nodes {
    size_t n;
    struct zb_node *node;
};

/* What a planner makes small. */
enum zb_plan_objective {
    ZB_PLAN_STEP,  /* G: a step behind a barrier */
    ZB_PLAN_STEADY /* span: steps that slide into each other */
};

/* "step", "steady" */
const char *zb_plan_objective_str(enum zb_plan_objective objective);

struct zb_schedule {
    char planner[32];
    enum zb_plan_objective objective; /* what the planner was asked for */
    int n_stage;
    int n_micro;
    int n_chunk; /* chunks per stage */
    int is_forward_only; /* made by zb_plan_forward_only(): F and messages */
    enum zb_placement placement;
    struct zb_stage_nodes *stages; /* [n_stage] */
    double makespan;               /* G: end of the last node, start at 0 */
    double span;        /* max over stages of (last end - first start) */
    double bubble_rate; /* 1 - (busiest stage's work) / makespan */
    double lower_bound; /* of the objective: none is better; NAN: not known */
    double plan_ms;     /* time the planner took */
    double *peak_mem;   /* [n_stage], unit of the input; NAN: not known */
};

/* What a planner needs to know. Arrays have n_virtual entries, model order. */
struct zb_plan_input {
    int n_stage;
    int n_micro;
    int n_chunk;
    enum zb_placement placement;
    double *f_cost, *b_cost, *w_cost; /* time of F, B, W */
    double c_cost;                    /* latency of a message between stages */
    /* Change of memory: f_mem >= 0 counted from F's start, b_mem and w_mem <= 0
     * from the end of B and W; f_mem + b_mem + w_mem = 0. BW frees both. b_mem
     * may be > 0 (B makes again what F did not keep): then it counts from B's
     * start, and BW holds it while it runs. */
    double *f_mem, *b_mem, *w_mem;
    double *max_mem; /* [n_stage], hard limit; INFINITY = none */
};

/* Fill `in` with costs (1, 1, 1, 0), the reference's memory (f 303104,
 * b -172032, w -131072) and no limit. ZB_EINVAL for sizes < 1. */
enum zb_status zb_plan_input_init(struct zb_plan_input *in, int n_stage,
                                  int n_micro, enum zb_placement placement,
                                  int n_chunk) ZB_CHECKED;
void zb_plan_input_release(struct zb_plan_input *in);

/* Virtual stage of a local chunk and back. */
int zb_virtual_stage(enum zb_placement placement, int n_stage, int stage,
                     int chunk);
void zb_virtual_to_local(enum zb_placement placement, int n_stage, int virt,
                         int *stage_out, int *chunk_out);

/* The placement and the chunks per stage a planner's schedules have; a planner
 * with placement loop takes any number >= 2 of chunks and this is its default.
 * ZB_ECONFIG with the list of names when `planner` is unknown. */
enum zb_status zb_planner_shape(const char *planner,
                                enum zb_placement *placement_out,
                                int *n_chunk_out) ZB_CHECKED;

/* The planners by number, 0, 1, ...; NULL behind the last. */
const char *zb_planner_name(int i);

/* Whether a planner makes its schedules fit max_mem as far as it can; the
 * others have an order and the memory that it needs. */
int zb_planner_is_elastic(const char *planner);

/* How long a planner that searches may do so. The result depends on the input,
 * the seed and the budget alone, unless the time limit ends the search. */
struct zb_plan_opts {
    enum zb_plan_objective objective;
    uint64_t seed;
    int64_t budget;       /* moves; 0: no search; < 0: about 2 s of one core */
    double time_limit_ms; /* 0: none */
};

/* Objective step, seed 0, the default budget, no time limit. */
void zb_plan_opts_init(struct zb_plan_opts *opts);

/* Make a schedule with all nodes, communication included. `planner` is one of
 * zb_planner_name() or file:PATH; `opts` NULL takes the defaults. The result
 * passes zb_schedule_check(). ZB_EINFEASIBLE when memory does not suffice, with
 * the least limit that would. Free with zb_schedule_free(). */
enum zb_status zb_plan_make(const char *planner, const struct zb_plan_input *in,
                            const struct zb_plan_opts *opts,
                            struct zb_schedule **s_out) ZB_CHECKED;
void zb_schedule_free(struct zb_schedule *s);

/* By which part the schedule is above the lower bound of its objective; NAN
 * where the bound is not known or 0. */
double zb_schedule_gap(const struct zb_schedule *s);

/* A forward-only schedule for `n_micro` microbatches with the placement of
 * `in`: every F once, in pipeline order, with its messages. */
enum zb_status zb_plan_forward_only(const struct zb_plan_input *in,
                                    struct zb_schedule **s_out) ZB_CHECKED;

/* The forward-only schedule `round` over and over, until there are n_micro
 * microbatches: a stage that goes through it holds at no time more messages
 * than in `round`. ZB_EINVAL for sizes that can not be planned. */
enum zb_status zb_plan_repeat(const struct zb_schedule *round, int n_micro,
                              struct zb_schedule **s_out) ZB_CHECKED;

/* Recompute every start and end, makespan, span, bubble rate and peak memory
 * from the order of the compute nodes and the costs of `in`: each node as early
 * as its stage and its inputs allow. ZB_ECONFIG when the order can not finish,
 * naming a stage, node and microbatch that waits for ever. */
enum zb_status zb_schedule_simulate(struct zb_schedule *s,
                                    const struct zb_plan_input *in) ZB_CHECKED;

/* Add SEND and RECV nodes to a schedule that has none, in an order that needs
 * no buffering, and simulate it. `in` may be NULL: the nodes' own times decide
 * the order then if they are possible ones, else times with all costs equal,
 * which the nodes get. ZB_EINVAL when there are messages already. */
enum zb_status zb_schedule_add_comm(struct zb_schedule *s,
                                    const struct zb_plan_input *in) ZB_CHECKED;

/* Prove that workers can run it: every F, B, W (or BW) exactly once; F, B, W
 * and each type of message of a chunk in microbatch order; inputs before use;
 * every SEND after the node that makes its data and matched by one RECV, in one
 * order per pair of stages and direction; no deadlock when channels hold
 * nothing (sender and receiver meet; POST_VALIDATION messages alone may wait in
 * a slot of one); peak memory within max_mem (`in` may be NULL: memory is not
 * checked). A schedule with is_forward_only has F and its messages, no others.
 * ZB_ECONFIG with stage, node and microbatch otherwise. */
enum zb_status zb_schedule_check(const struct zb_schedule *s,
                                 const struct zb_plan_input *in) ZB_CHECKED;

/* Text and svg are drawings for people, trace opens in Perfetto; json has the
 * compute nodes, nodes all of them, torch (the CSV of PyTorch's pipelining) the
 * order of the compute nodes. json and nodes read back exactly, torch without
 * times, drawings not at all. */
enum zb_plan_format {
    ZB_PLAN_TEXT,
    ZB_PLAN_JSON,
    ZB_PLAN_NODES,
    ZB_PLAN_TORCH,
    ZB_PLAN_SVG,
    ZB_PLAN_TRACE,
    ZB_N_PLAN_FORMATS
};

/* The name of a format, and the format of a name (ZB_EINVAL with the list of
 * names when there is none). */
const char *zb_plan_format_str(enum zb_plan_format format);
enum zb_status zb_plan_format_find(const char *name,
                                   enum zb_plan_format *format_out) ZB_CHECKED;

/* How drawings are made; all zero is right for a file. */
struct zb_plan_style {
    int n_columns;    /* text: fit rows into so many; 0: as many as it takes */
    int has_color;    /* text: with the colours of a terminal */
    int has_messages; /* svg: with a line for each message */
    const struct zb_plan_input *in; /* svg: memory over time; NULL: without */
};

/* Write a schedule, zb_schedule_draw() in a style that may be NULL. The same
 * schedule and style give the same bytes. ZB_EIO when `f` fails. */
enum zb_status zb_schedule_write(const struct zb_schedule *s,
                                 enum zb_plan_format format,
                                 FILE *f) ZB_CHECKED;
enum zb_status zb_schedule_draw(const struct zb_schedule *s,
                                enum zb_plan_format format,
                                const struct zb_plan_style *style,
                                FILE *f) ZB_CHECKED;

/* Read a schedule file, json, nodes or torch, recognised by its content;
 * messages are added when the file has none, times with all costs equal when it
 * is torch's. Errors name path, line (or JSON position) and what is wrong. The
 * input is untrusted: at most 1 GiB and 2^26 nodes. */
enum zb_status zb_schedule_read(const char *path,
                                struct zb_schedule **s_out) ZB_CHECKED;

#endif
