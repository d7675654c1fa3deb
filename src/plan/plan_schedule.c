/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "plan/plan_format.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zb/mem.h"

const char *zb_node_type_str(enum zb_node_type t)
{
    static const char *const names[] = {
#define ZB_X(name) #name,
        ZB_NODE_TYPE_MAP(ZB_X)
#undef ZB_X
    };

    return (unsigned)t < ZB_N_NODE_TYPES ? names[t] : "?";
}

int zb_node_is_compute(enum zb_node_type t)
{
    return t <= ZB_NODE_BW;
}

const char *zb_placement_str(enum zb_placement placement)
{
    static const char *const names[] = {[ZB_PLACE_V] = "v",
                                        [ZB_PLACE_LOOP] = "loop",
                                        [ZB_PLACE_LINEAR] = "linear"};

    return (unsigned)placement < ZB_COUNT_OF(names) ? names[placement] : "?";
}

const char *zb_plan_objective_str(enum zb_plan_objective objective)
{
    static const char *const names[] = {[ZB_PLAN_STEP] = "step",
                                        [ZB_PLAN_STEADY] = "steady"};

    return (unsigned)objective < ZB_COUNT_OF(names) ? names[objective] : "?";
}

int zb_plan_find_type(const char *name, size_t len, enum zb_node_type *type_out)
{
    for (int t = 0; t < ZB_N_NODE_TYPES; t++) {
        const char *text = zb_node_type_str((enum zb_node_type)t);

        if (strlen(text) == len && memcmp(text, name, len) == 0) {
            *type_out = (enum zb_node_type)t;
            return 1;
        }
    }
    return 0;
}

int zb_virtual_stage(enum zb_placement placement, int n_stage, int stage,
                     int chunk)
{
    return zb_plan_to_virtual(placement, n_stage, stage, chunk);
}

void zb_virtual_to_local(enum zb_placement placement, int n_stage, int virt,
                         int *stage_out, int *chunk_out)
{
    zb_plan_to_local(placement, n_stage, virt, stage_out, chunk_out);
}

int zb_plan_find_peer(const struct zb_schedule *s, int stage,
                      enum zb_node_type type, int chunk,
                      struct zb_plan_peer *peer_out)
{
    static const struct {
        int step;
        enum zb_node_type other;
    } ends[ZB_N_NODE_TYPES] = {
        [ZB_NODE_SEND_FORWARD] = {1, ZB_NODE_RECV_FORWARD},
        [ZB_NODE_RECV_FORWARD] = {-1, ZB_NODE_SEND_FORWARD},
        [ZB_NODE_SEND_BACKWARD] = {-1, ZB_NODE_RECV_BACKWARD},
        [ZB_NODE_RECV_BACKWARD] = {1, ZB_NODE_SEND_BACKWARD},
    };
    int other = zb_plan_virtual(s, stage, chunk) + ends[type].step;

    if (ends[type].step == 0 || other < 0 || other >= s->n_stage * s->n_chunk) {
        return 0;
    }
    zb_plan_local(s, other, &peer_out->stage, &peer_out->chunk);
    peer_out->type = ends[type].other;
    return peer_out->stage != stage;
}

void zb_plan_node_text(const struct zb_schedule *s, int stage, size_t i,
                       char *buf, size_t n)
{
    const struct zb_node *node = &s->stages[stage].node[i];

    snprintf(buf, n, "stage %d, node %zu (%s chunk %d mb %d)", stage, i,
             zb_node_type_str(node->type), node->chunk, node->mb);
}

int zb_plan_has_comm(const struct zb_schedule *s)
{
    for (int i = 0; i < s->n_stage; i++) {
        for (size_t j = 0; j < s->stages[i].n; j++) {
            enum zb_node_type t = s->stages[i].node[j].type;

            if (t >= ZB_NODE_SEND_FORWARD && t <= ZB_NODE_RECV_BACKWARD) {
                return 1;
            }
        }
    }
    return 0;
}

enum zb_status zb_plan_sizes_check(int n_stage, int n_micro,
                                   enum zb_placement placement, int n_chunk)
{
    if (n_stage < 1 || n_micro < 1 || n_chunk < 1) {
        return zb_fail(ZB_EINVAL,
                       "%d stages, %d microbatches, %d chunks per stage: each "
                       "must be at least 1",
                       n_stage, n_micro, n_chunk);
    }
    if ((placement == ZB_PLACE_V && n_chunk != 2) ||
        (placement == ZB_PLACE_LINEAR && n_chunk != 1)) {
        return zb_fail(ZB_EINVAL,
                       "placement %s cannot have %d chunks per stage",
                       placement == ZB_PLACE_V ? "v" : "linear", n_chunk);
    }
    if (n_stage > ZB_PLAN_MAX_STAGES ||
        (int64_t)n_stage * n_chunk > ZB_PLAN_MAX_CELLS / n_micro) {
        return zb_fail(ZB_EINVAL,
                       "%d stages x %d chunks x %d microbatches is more than "
                       "this program plans (%d stages, %d in all)",
                       n_stage, n_chunk, n_micro, ZB_PLAN_MAX_STAGES,
                       ZB_PLAN_MAX_CELLS);
    }
    return ZB_OK;
}

static enum zb_status input_alloc(struct zb_plan_input *in, int n_virtual)
{
    double **arrays[] = {&in->f_cost, &in->b_cost, &in->w_cost,
                         &in->f_mem,  &in->b_mem,  &in->w_mem};

    for (size_t i = 0; i < ZB_COUNT_OF(arrays); i++) {
        *arrays[i] = zb_alloc_array((size_t)n_virtual, sizeof(double));
        if (*arrays[i] == NULL) {
            return ZB_ENOMEM;
        }
    }
    in->max_mem = zb_alloc_array((size_t)in->n_stage, sizeof(double));
    return in->max_mem == NULL ? ZB_ENOMEM : ZB_OK;
}

enum zb_status zb_plan_input_init(struct zb_plan_input *in, int n_stage,
                                  int n_micro, enum zb_placement placement,
                                  int n_chunk)
{
    struct zb_plan_input made = {.n_stage = n_stage,
                                 .n_micro = n_micro,
                                 .n_chunk = n_chunk,
                                 .placement = placement};
    int n_virtual;

    ZB_TRY(zb_plan_sizes_check(n_stage, n_micro, placement, n_chunk));
    n_virtual = n_stage * n_chunk;
    if (input_alloc(&made, n_virtual) != ZB_OK) {
        zb_plan_input_release(&made);
        return ZB_ENOMEM;
    }
    for (int v = 0; v < n_virtual; v++) {
        made.f_cost[v] = made.b_cost[v] = made.w_cost[v] = 1;
        /* h = 4096, a = 32, s = 1024: 34 h + 5 a s kept by F, 32 h of it by
         * the weight gradients. */
        made.f_mem[v] = 303104;
        made.b_mem[v] = -172032;
        made.w_mem[v] = -131072;
    }
    for (int i = 0; i < n_stage; i++) {
        made.max_mem[i] = INFINITY;
    }
    *in = made;
    return ZB_OK;
}

void zb_plan_input_release(struct zb_plan_input *in)
{
    zb_free(in->f_cost);
    zb_free(in->b_cost);
    zb_free(in->w_cost);
    zb_free(in->f_mem);
    zb_free(in->b_mem);
    zb_free(in->w_mem);
    zb_free(in->max_mem);
    memset(in, 0, sizeof(*in));
}

/* Sums of so many nodes as there may be are then still numbers. */
#define MOST 1e100

static enum zb_status check_costs(const char *name, const double *cost, int n)
{
    for (int v = 0; v < n; v++) {
        if (!(cost[v] >= 0 && cost[v] <= MOST)) {
            return zb_fail(ZB_EINVAL,
                           "%s cost of virtual stage %d is %g: must be a "
                           "number from 0 to %g",
                           name, v, cost[v], MOST);
        }
    }
    return ZB_OK;
}

static enum zb_status check_memory(const struct zb_plan_input *in, int v)
{
    double f = in->f_mem[v], b = in->b_mem[v], w = in->w_mem[v];

    if (!(f >= 0 && f <= MOST && -w <= MOST && w <= 0 &&
          fabs(f + b + w) <= 1e-9 * fmax(f, -w))) {
        return zb_fail(ZB_EINVAL,
                       "memory of virtual stage %d is F %g, B %g, W %g: F "
                       "must be from 0 to %g, W <= 0, the sum 0",
                       v, f, b, w, MOST);
    }
    return ZB_OK;
}

enum zb_status zb_plan_input_check(const struct zb_plan_input *in)
{
    int n_virtual;

    ZB_TRY(zb_plan_sizes_check(in->n_stage, in->n_micro, in->placement,
                               in->n_chunk));
    n_virtual = in->n_stage * in->n_chunk;
    ZB_TRY(check_costs("F", in->f_cost, n_virtual));
    ZB_TRY(check_costs("B", in->b_cost, n_virtual));
    ZB_TRY(check_costs("W", in->w_cost, n_virtual));
    if (!(in->c_cost >= 0 && in->c_cost <= MOST)) {
        return zb_fail(ZB_EINVAL,
                       "communication cost is %g: must be a number from 0 to "
                       "%g",
                       in->c_cost, MOST);
    }
    for (int v = 0; v < n_virtual; v++) {
        ZB_TRY(check_memory(in, v));
    }
    for (int i = 0; i < in->n_stage; i++) {
        if (!(in->max_mem[i] >= 0)) {
            return zb_fail(ZB_EINVAL,
                           "memory limit of stage %d is %g: must be >= 0", i,
                           in->max_mem[i]);
        }
    }
    return ZB_OK;
}

enum zb_status zb_plan_input_fits(const struct zb_plan_input *in,
                                  const struct zb_schedule *s)
{
    if (in->n_stage == s->n_stage && in->n_micro == s->n_micro &&
        in->n_chunk == s->n_chunk && in->placement == s->placement) {
        return ZB_OK;
    }
    return zb_fail(ZB_EINVAL,
                   "the schedule has %d stages, %d microbatches, placement %s "
                   "with %d chunks per stage; asked for are %d, %d, %s with %d",
                   s->n_stage, s->n_micro, zb_placement_str(s->placement),
                   s->n_chunk, in->n_stage, in->n_micro,
                   zb_placement_str(in->placement), in->n_chunk);
}

enum zb_status zb_plan_schedule_new(const char *planner, int n_stage,
                                    int n_micro, enum zb_placement placement,
                                    int n_chunk, struct zb_schedule **s_out)
{
    struct zb_schedule *s;

    ZB_TRY(zb_plan_sizes_check(n_stage, n_micro, placement, n_chunk));
    s = zb_alloc(sizeof(*s));
    if (s == NULL) {
        return ZB_ENOMEM;
    }
    snprintf(s->planner, sizeof(s->planner), "%s", planner);
    s->n_stage = n_stage;
    s->n_micro = n_micro;
    s->n_chunk = n_chunk;
    s->placement = placement;
    s->lower_bound = NAN;
    s->stages = zb_alloc_array((size_t)n_stage, sizeof(*s->stages));
    s->peak_mem = zb_alloc_array((size_t)n_stage, sizeof(*s->peak_mem));
    if (s->stages == NULL || s->peak_mem == NULL) {
        zb_schedule_free(s);
        return ZB_ENOMEM;
    }
    for (int i = 0; i < n_stage; i++) {
        s->peak_mem[i] = NAN;
    }
    *s_out = s;
    return ZB_OK;
}

enum zb_status zb_plan_stage_alloc(struct zb_schedule *s, int stage, size_t n)
{
    struct zb_node *node = zb_alloc_array(n, sizeof(*node));

    if (node == NULL) {
        return ZB_ENOMEM;
    }
    zb_free(s->stages[stage].node);
    s->stages[stage].node = node;
    s->stages[stage].n = n;
    return ZB_OK;
}

void zb_schedule_free(struct zb_schedule *s)
{
    if (s == NULL) {
        return;
    }
    for (int i = 0; s->stages != NULL && i < s->n_stage; i++) {
        zb_free(s->stages[i].node);
    }
    zb_free(s->stages);
    zb_free(s->peak_mem);
    zb_free(s);
}

double zb_schedule_gap(const struct zb_schedule *s)
{
    double value = s->objective == ZB_PLAN_STEADY ? s->span : s->makespan;
    double gap = value / s->lower_bound - 1;

    if (!(s->lower_bound > 0)) {
        return NAN;
    }
    return fabs(gap) < 1e-9 ? 0 : gap; /* rounding is no gap */
}

int zb_plan_is_uniform(const double *x, int n)
{
    for (int i = 1; i < n; i++) {
        if (x[i] != x[0]) {
            return 0;
        }
    }
    return 1;
}

const char *zb_plan_number(double x, char buf[ZB_PLAN_NUMBER_MAX])
{
    if (fabs(x) < 9007199254740992.0 && x == floor(x)) {
        snprintf(buf, ZB_PLAN_NUMBER_MAX, "%.0f", x == 0 ? 0.0 : x);
        return buf;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(buf, ZB_PLAN_NUMBER_MAX, "%.*g", digits, x);
        if (strtod(buf, NULL) == x) {
            break;
        }
    }
    return buf;
}
