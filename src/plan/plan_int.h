/* SPDX-License-Identifier: MIT
 *
 * What the files of src/plan share.
 *
 * A planner fills a schedule's compute nodes in stream order; times and
 * messages are added by zb_schedule_simulate() and zb_schedule_add_comm().
 * Threads: any, no shared state.
 */
#ifndef PLAN_INT_H
#define PLAN_INT_H

#include "zb/plan.h"

/* Limits on what is planned or read: they keep every product of sizes within
 * an int and every allocation within reason. */
#define ZB_PLAN_MAX_STAGES (1 << 16)
#define ZB_PLAN_MAX_CELLS (1 << 24) /* virtual stages times microbatches */
#define ZB_PLAN_MAX_NODES ((size_t)1 << 26)
#define ZB_PLAN_MAX_BYTES ((size_t)1 << 30)

/* ZB_EINVAL with the reason unless these sizes can be planned: all >= 1, within
 * the limits above, and n_chunk what the placement has. */
enum zb_status zb_plan_sizes_check(int n_stage, int n_micro,
                                   enum zb_placement placement,
                                   int n_chunk) ZB_CHECKED;

/* ZB_EINVAL naming the entry unless costs are finite and >= 0 and memory obeys
 * the signs and the zero sum of struct zb_plan_input. */
enum zb_status zb_plan_input_check(const struct zb_plan_input *in) ZB_CHECKED;

/* ZB_EINVAL unless `s` has the sizes and the placement of `in`. */
enum zb_status zb_plan_input_fits(const struct zb_plan_input *in,
                                  const struct zb_schedule *s) ZB_CHECKED;

/* An empty schedule: no nodes yet, peak memory and lower bound not known. */
enum zb_status zb_plan_schedule_new(const char *planner, int n_stage,
                                    int n_micro, enum zb_placement placement,
                                    int n_chunk,
                                    struct zb_schedule **s_out) ZB_CHECKED;

/* Give a stage an array of n zeroed nodes (instead of the one it has). */
enum zb_status zb_plan_stage_alloc(struct zb_schedule *s, int stage,
                                   size_t n) ZB_CHECKED;

/* The other end of a message, as the node that stands there. */
struct zb_plan_peer {
    int stage;
    int chunk;
    enum zb_node_type type;
};

/* The other end of a SEND_ or RECV_ FORWARD or BACKWARD node; 0 when there is
 * none, because the boundary is inside a stage or at an end of the model. */
int zb_plan_find_peer(const struct zb_schedule *s, int stage,
                      enum zb_node_type type, int chunk,
                      struct zb_plan_peer *peer_out);

/* "stage 1, node 7 (F chunk 0 mb 3)" */
void zb_plan_node_text(const struct zb_schedule *s, int stage, size_t i,
                       char *buf, size_t n);

/* zb_virtual_stage() and zb_virtual_to_local() for loops over all nodes. */
static inline int zb_plan_to_virtual(enum zb_placement placement, int n_stage,
                                     int stage, int chunk)
{
    return placement == ZB_PLACE_V && chunk == 1 ? 2 * n_stage - 1 - stage
                                                 : chunk * n_stage + stage;
}

static inline void zb_plan_to_local(enum zb_placement placement, int n_stage,
                                    int virt, int *stage_out, int *chunk_out)
{
    int chunk = 0;

    if (virt >= n_stage) { /* a division costs more than the rest */
        chunk = virt < 2 * n_stage ? 1 : virt / n_stage;
    }
    virt -= chunk * n_stage;
    *chunk_out = chunk;
    *stage_out =
        placement == ZB_PLACE_V && chunk == 1 ? n_stage - 1 - virt : virt;
}

static inline int zb_plan_virtual(const struct zb_schedule *s, int stage,
                                  int chunk)
{
    return zb_plan_to_virtual(s->placement, s->n_stage, stage, chunk);
}

static inline void zb_plan_local(const struct zb_schedule *s, int virt,
                                 int *stage_out, int *chunk_out)
{
    zb_plan_to_local(s->placement, s->n_stage, virt, stage_out, chunk_out);
}

/* Whether a schedule has any message between stages. */
int zb_plan_has_comm(const struct zb_schedule *s);

/* The rules that can be seen in each stage's stream alone: sizes, numbers in
 * range, everything once and in microbatch order, inputs before use. With
 * `with_comm` messages count as inputs; without, they are only looked at for
 * their numbers. ZB_ECONFIG naming the node. */
enum zb_status zb_plan_check_streams(const struct zb_schedule *s,
                                     int with_comm) ZB_CHECKED;

/* By how much a node changes its stage's memory; 0 for messages. */
double zb_plan_node_mem(const struct zb_schedule *s,
                        const struct zb_plan_input *in, int stage,
                        const struct zb_node *node);

/* What a node needs beyond what its stage holds before it. */
double zb_plan_node_need(const struct zb_schedule *s,
                         const struct zb_plan_input *in, int stage,
                         const struct zb_node *node);

/* makespan, span and bubble rate from the nodes' times. */
void zb_plan_measure(struct zb_schedule *s);

/* peak_mem from the nodes' order and the memory of `in`. */
void zb_plan_measure_memory(struct zb_schedule *s,
                            const struct zb_plan_input *in);

/* Add message nodes after the nodes' own times, which must be such that a
 * node starts when its inputs have ended and F and B take time. With pv_time
 * (one per stage; NULL for none) the POST_VALIDATION nodes and rollback marks
 * of get_v_schedule too. */
enum zb_status zb_plan_layout(struct zb_schedule *s,
                              const double *pv_time) ZB_CHECKED;

/* zb_schedule_simulate() with all costs equal; peak memory stays not known. */
enum zb_status zb_plan_simulate_unit(struct zb_schedule *s) ZB_CHECKED;

/* Whether the nodes' own times are, but for rounding, such that
 * zb_plan_layout() may use them. */
enum zb_status zb_plan_times_ok(const struct zb_schedule *s,
                                int *is_ok_out) ZB_CHECKED;

/* Whether every stage has room for one microbatch in all its chunks. A V
 * schedule needs no more, and none does with less. ZB_EINFEASIBLE naming the
 * stage and what it needs. */
enum zb_status zb_plan_check_room(const struct zb_plan_input *in) ZB_CHECKED;

/* The planners: fill the empty schedule `s` with all nodes and times. */
enum zb_status zb_plan_zbv(const struct zb_plan_input *in,
                           const struct zb_plan_opts *opts,
                           struct zb_schedule *s) ZB_CHECKED;
enum zb_status zb_plan_get_v_schedule(const struct zb_plan_input *in,
                                      const struct zb_plan_opts *opts,
                                      struct zb_schedule *s) ZB_CHECKED;
enum zb_status zb_plan_1f1b(const struct zb_plan_input *in,
                            const struct zb_plan_opts *opts,
                            struct zb_schedule *s) ZB_CHECKED;
enum zb_status zb_plan_gpipe(const struct zb_plan_input *in,
                             const struct zb_plan_opts *opts,
                             struct zb_schedule *s) ZB_CHECKED;
enum zb_status zb_plan_interleaved(const struct zb_plan_input *in,
                                   const struct zb_plan_opts *opts,
                                   struct zb_schedule *s) ZB_CHECKED;
enum zb_status zb_plan_zb_h1(const struct zb_plan_input *in,
                             const struct zb_plan_opts *opts,
                             struct zb_schedule *s) ZB_CHECKED;
enum zb_status zb_plan_zb_h2(const struct zb_plan_input *in,
                             const struct zb_plan_opts *opts,
                             struct zb_schedule *s) ZB_CHECKED;
enum zb_status zb_plan_v_half(const struct zb_plan_input *in,
                              const struct zb_plan_opts *opts,
                              struct zb_schedule *s) ZB_CHECKED;
enum zb_status zb_plan_v_min(const struct zb_plan_input *in,
                             const struct zb_plan_opts *opts,
                             struct zb_schedule *s) ZB_CHECKED;
enum zb_status zb_plan_pytorch_zbv(const struct zb_plan_input *in,
                                   const struct zb_plan_opts *opts,
                                   struct zb_schedule *s) ZB_CHECKED;
enum zb_status zb_plan_dualpipev(const struct zb_plan_input *in,
                                 const struct zb_plan_opts *opts,
                                 struct zb_schedule *s) ZB_CHECKED;

/* The same without messages and times: only the order of the nodes, in time
 * linear in their number (and a little for v_half and v_min, which try several
 * ways with few microbatches: no more than 600,000 nodes). */
enum zb_status zb_plan_order_get_v_schedule(const struct zb_plan_input *in,
                                            struct zb_schedule *s) ZB_CHECKED;
enum zb_status zb_plan_order_pytorch_zbv(const struct zb_plan_input *in,
                                         struct zb_schedule *s) ZB_CHECKED;
enum zb_status zb_plan_order_v_half(const struct zb_plan_input *in,
                                    struct zb_schedule *s) ZB_CHECKED;
enum zb_status zb_plan_order_v_min(const struct zb_plan_input *in,
                                   struct zb_schedule *s) ZB_CHECKED;

/* Writes the stream of one stage with at most two chunks: each put is the next
 * microbatch of its type and chunk, or nothing when all of them had theirs.
 * pen_begin gives the stage room for all nodes and empties it. */
struct zb_plan_pen {
    struct zb_stage_nodes *out;
    int n_micro;
    int n[2][ZB_NODE_BW + 1]; /* puts so far by chunk and type */
};
enum zb_status zb_plan_pen_begin(struct zb_plan_pen *pen, struct zb_schedule *s,
                                 int stage) ZB_CHECKED;
void zb_plan_pen_put(struct zb_plan_pen *pen, enum zb_node_type type,
                     int chunk);

/* get_v_schedule's algorithm on scalar costs. `s` (V, empty) gets compute nodes
 * with times, pv_time_out[n_stage] (unless NULL) the times of the
 * POST_VALIDATION nodes. ZB_EINFEASIBLE when it gets stuck on this input. */
struct zb_plan_vgen_input {
    double cost[3]; /* F, B, W */
    double c_cost;
    double mem[3];
    double max_mem;
};
enum zb_status zb_plan_vgen(const struct zb_plan_vgen_input *in,
                            struct zb_schedule *s,
                            double *pv_time_out) ZB_CHECKED;

/* A greedy list schedule, any placement: of all nodes that may start, the one
 * that starts first, within the memory limits. It finishes whenever each stage
 * has room for one microbatch in all its chunks. */
enum zb_plan_list_flags {
    ZB_PLAN_LIST_FORWARD = 1, /* F only, no memory kept */
    ZB_PLAN_LIST_F_FIRST = 2, /* F of later chunks before B */
    ZB_PLAN_LIST_W_LATE = 4,  /* W only in gaps that are long enough */
};
enum zb_status zb_plan_list(const struct zb_plan_input *in, unsigned flags,
                            struct zb_schedule *s) ZB_CHECKED;

/* No schedule with this placement, these costs and these limits has a lower
 * makespan (ZB_PLAN_STEP) or span (ZB_PLAN_STEADY). `is_fused`: of schedules
 * with BW. doc/schedule.md has the formulas. `in` is one that
 * zb_plan_input_check() accepts. ZB_ENOMEM at most. */
enum zb_status zb_plan_bound(const struct zb_plan_input *in,
                             enum zb_plan_objective objective, int is_fused,
                             double *bound_out) ZB_CHECKED;

/* Set the lower bound of a schedule, by its objective and node types. */
enum zb_status zb_plan_lower_bound(const struct zb_plan_input *in,
                                   struct zb_schedule *s) ZB_CHECKED;

/* Whether all n values are the same. */
int zb_plan_is_uniform(const double *x, int n);

/* The shortest decimal text that reads back as x, whole numbers without a
 * point. */
#define ZB_PLAN_NUMBER_MAX 32
const char *zb_plan_number(double x, char buf[ZB_PLAN_NUMBER_MAX]);

#endif
