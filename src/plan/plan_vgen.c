/* SPDX-License-Identifier: MIT
 *
 * The greedy generator behind get_v_schedule: zero-bubble V (Qi et al. 2024,
 * arXiv 2405.15362) for equal costs on all stages.
 *
 * It keeps one timeline per stage and appends passes to them: first the warm-up
 * in forward passes, then 2m rounds in which every stage gets one B and, while
 * there are any, one F. A W waits in its stage's queue until it fits into a
 * gap, until memory is needed, or until the stage would otherwise fall
 * further behind than the stage with the largest bubble. A finished attempt
 * is repeated with its bubbles allowed from the start, as long as that helps,
 * and all of it under four rules for filling gaps; the smallest bubble wins.
 *
 * "Leg" here is the order in which a pass visits the stage: F leg 0 runs down
 * the V and leg 1 up; B leg 0 runs down (the right leg of the model) and leg 1
 * up. So a backward leg is 1 - chunk.
 */
#include "config.h"
#include "plan/plan_int.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "plan/plan_v.h"
#include "zb/mem.h"

enum pass { PASS_F, PASS_B, PASS_W };

/* Where a W may delay a pass: the rules for filling gaps are the sets of the
 * first two. */
enum { FILL_F = 1, FILL_B = 2, FILL_ALWAYS = 4, N_RULES = 4 };

struct lane {
    double clock, mem, bubble;
    int count[3][2]; /* [pass][leg] placed so far */
    int n_placed;
    uint8_t *placed; /* [6m] pass * 2 + leg, in order */
    uint8_t *w_leg;  /* [2m] legs of the Bs, in order: the queue of Ws */
    int w_head, w_tail;
};

struct attempt {
    double *end;       /* [pass F, B][leg][stage][row], -1 until placed */
    double last_w;     /* end of the very last W, -1 until placed */
    struct lane *lane; /* [p] */
    uint8_t *bytes;    /* storage of the lanes' arrays */
    double worst;      /* the largest bubble of all lanes */
};

struct vgen {
    const struct zb_plan_vgen_input *in;
    int p, m;
    size_t row; /* from stage to stage in `end` */
    int is_stuck;
    unsigned fill;   /* the rule */
    unsigned used;   /* which ones there was an occasion for */
    double *allowed; /* [p] bubbles of the attempt before, -1 at first */
    double max_allowed;
    struct attempt *now;
};

static size_t slot(const struct vgen *g, enum pass pass, int leg, int stage,
                   int mb)
{
    size_t row = ((size_t)pass * 2 + (size_t)leg) * (size_t)g->p;

    return (row + (size_t)stage) * g->row + (size_t)mb;
}

/* The pass that hands its result to this one from another stage: its end, -1
 * when it is not placed yet. *exists_out tells whether there is one. */
static double input_end(const struct vgen *g, enum pass pass, int leg,
                        int stage, int mb, int *exists_out)
{
    int from = leg == 0 ? stage - 1 : stage + 1;

    *exists_out = from >= 0 && from < g->p && pass != PASS_W;
    return *exists_out ? g->now->end[slot(g, pass, leg, from, mb)] : -1;
}

/* Whether what the pass needs from its own stage is placed. */
static int has_local_input(const struct vgen *g, enum pass pass, int leg,
                           int stage, int mb)
{
    const double *end = g->now->end;

    if (pass == PASS_W) {
        return 1; /* it comes from the queue */
    }
    if (leg == 1) {
        return end[slot(g, pass, 0, stage, mb)] >= 0;
    }
    return pass == PASS_F || end[slot(g, PASS_F, 1, stage, mb)] >= 0;
}

/* Append the next microbatch of a pass to a stage. */
static void place(struct vgen *g, enum pass pass, int leg, int stage)
{
    struct lane *l = &g->now->lane[stage];
    int mb = l->count[pass][leg], has_from;
    double cost = g->in->cost[pass], soon = l->clock + cost, done = soon;
    double from;

    if (g->is_stuck || mb >= g->m ||
        l->mem + g->in->mem[pass] > g->in->max_mem ||
        !has_local_input(g, pass, leg, stage, mb)) {
        g->is_stuck = 1;
        return;
    }
    from = input_end(g, pass, leg, stage, mb, &has_from);
    if (has_from) {
        if (from < 0) {
            g->is_stuck = 1;
            return;
        }
        done = fmax(soon, from + g->in->c_cost + cost);
    }
    if (l->count[PASS_F][0] > 0) {
        l->bubble += done - soon;
        g->now->worst = fmax(g->now->worst, l->bubble);
    }
    if (pass != PASS_W) {
        g->now->end[slot(g, pass, leg, stage, mb)] = done;
    } else if (leg == 1 && stage == g->p - 1 && mb == g->m - 1) {
        g->now->last_w = done;
    }
    l->clock = done;
    l->mem += g->in->mem[pass];
    l->placed[l->n_placed++] = (uint8_t)(pass * 2 + leg);
    l->count[pass][leg]++;
    if (pass == PASS_B) {
        l->w_leg[l->w_tail++] = (uint8_t)leg;
    }
}

static int has_w(const struct lane *l)
{
    return l->w_head < l->w_tail;
}

static void place_w(struct vgen *g, int stage)
{
    struct lane *l = &g->now->lane[stage];

    if (!has_w(l)) {
        g->is_stuck = 1;
        return;
    }
    place(g, PASS_W, l->w_leg[l->w_head++], stage);
}

/* Free memory with waiting Ws until a pass fits. */
static void make_room(struct vgen *g, enum pass pass, int stage)
{
    const struct lane *l = &g->now->lane[stage];

    while (!g->is_stuck && l->mem + g->in->mem[pass] > g->in->max_mem) {
        place_w(g, stage);
    }
}

/* Use the time before a pass's input arrives for Ws that are waiting; one that
 * does not fit may go too (if the rule has `where`) where the stage can afford
 * the delay. */
static void fill_gap(struct vgen *g, enum pass pass, int leg, int stage,
                     unsigned where)
{
    const struct lane *l = &g->now->lane[stage];
    double allowed = g->allowed[stage], c = g->in->c_cost, from, slack;
    int has_from;

    from = input_end(g, pass, leg, stage, l->count[pass][leg], &has_from);
    while (!g->is_stuck && has_w(l) && has_from &&
           from + c >= l->clock + g->in->cost[PASS_W]) {
        place_w(g, stage);
    }
    if (!has_from) {
        /* The original looks at the last element of its table then: the end
         * of the very last W, which matters once that is placed. */
        from = g->now->last_w;
    }
    slack = fmax(g->now->worst, g->max_allowed - allowed) - l->bubble;
    if (!g->is_stuck && has_w(l) && from + c - l->clock > slack) {
        g->used |= where;
        if (g->fill & where) {
            place_w(g, stage);
        }
    }
}

/* The first microbatch goes through; on its way back up, the stages above use
 * the waiting time for more forward passes of the left leg. */
static void warm_up_first(struct vgen *g)
{
    double f = g->in->cost[PASS_F], f_mem = g->in->mem[PASS_F];

    for (int i = 0; i < g->p; i++) {
        place(g, PASS_F, 0, i);
    }
    place(g, PASS_F, 1, g->p - 1);
    for (int i = g->p - 2; i >= 0 && !g->is_stuck; i--) {
        const struct lane *l = &g->now->lane[i];
        double due = g->now->end[slot(g, PASS_F, 1, i + 1, 0)] + g->in->c_cost;

        while (!g->is_stuck && l->mem + f_mem * (2 + i * 2) <= g->in->max_mem &&
               l->clock + f <= due && l->count[PASS_F][0] < g->m) {
            for (int j = 0; j <= i; j++) {
                place(g, PASS_F, 0, j);
            }
        }
        place(g, PASS_F, 1, i);
    }
}

/* Every stage does at least as many forward passes as the one before it. */
static void warm_up_level(struct vgen *g)
{
    int leg = 0;

    for (int i = 1; i < g->p; i++) {
        const int *mine = g->now->lane[i].count[PASS_F];
        const int *left = g->now->lane[i - 1].count[PASS_F];

        while (!g->is_stuck && (mine[0] + mine[1] < left[0] + left[1] ||
                                (mine[1] <= left[1] && left[1] < g->m))) {
            for (int j = g->p - 1; j >= i; j--) {
                if (g->now->lane[j].count[PASS_F][leg] < g->m) {
                    place(g, PASS_F, leg, j);
                }
            }
            leg = 1 - leg;
        }
    }
}

static int next_b_leg(const struct vgen *g, int stage)
{
    const int *count = g->now->lane[stage].count[PASS_B];

    if (count[1] >= count[0]) {
        return 0;
    }
    return stage == g->p - 1 || count[0] >= g->m ||
           g->now->end[slot(g, PASS_B, 1, stage + 1, count[1])] >= 0;
}

/* One B on every stage. All legs are chosen before the first is placed; leg 1
 * runs up and leg 0 down, so each meets inputs placed just before. */
static void round_of_b(struct vgen *g, uint8_t *leg)
{
    for (int i = 0; i < g->p; i++) {
        make_room(g, PASS_B, i);
        leg[i] = (uint8_t)next_b_leg(g, i);
    }
    for (int i = g->p - 1; i >= 0; i--) {
        if (leg[i] == 1) {
            fill_gap(g, PASS_B, 1, i, FILL_ALWAYS);
            place(g, PASS_B, 1, i);
        }
    }
    for (int i = 0; i < g->p; i++) {
        if (leg[i] == 0) {
            fill_gap(g, PASS_B, 0, i, FILL_B);
            place(g, PASS_B, 0, i);
        }
    }
}

/* The leg of a stage's next F, -1 when neither can be placed. */
static int next_f_leg(const struct vgen *g, int stage)
{
    const int *count = g->now->lane[stage].count[PASS_F];
    const double *end = g->now->end;

    if (count[1] >= g->m) {
        return -1;
    }
    if (count[1] >= count[0]) {
        return 0;
    }
    if (stage == g->p - 1 ||
        end[slot(g, PASS_F, 1, stage + 1, count[1])] >= 0) {
        return 1;
    }
    if (count[0] < g->m &&
        (stage == 0 || end[slot(g, PASS_F, 0, stage - 1, count[0])] >= 0)) {
        return 0;
    }
    return -1;
}

static void round_of_f(struct vgen *g)
{
    for (int i = 0; i < g->p; i++) {
        int leg = next_f_leg(g, i);

        if (leg >= 0) {
            make_room(g, PASS_F, i);
            fill_gap(g, PASS_F, leg, i, FILL_F);
            place(g, PASS_F, leg, i);
        }
    }
}

static void reset(struct vgen *g)
{
    size_t p = (size_t)g->p, m = (size_t)g->m;

    for (size_t i = 0; i < 4 * p * g->row; i++) {
        g->now->end[i] = -1;
    }
    g->now->last_w = -1;
    memset(g->now->lane, 0, p * sizeof(*g->now->lane));
    for (size_t i = 0; i < p; i++) {
        g->now->lane[i].placed = g->now->bytes + i * 8 * m;
        g->now->lane[i].w_leg = g->now->lane[i].placed + 6 * m;
    }
    g->now->worst = 0;
}

/* One attempt, into g->now. */
static void attempt_run(struct vgen *g, uint8_t *leg)
{
    reset(g);
    warm_up_first(g);
    warm_up_level(g);
    for (int k = 0; k < 2 * g->m && !g->is_stuck; k++) {
        round_of_b(g, leg);
        round_of_f(g);
    }
    for (int i = 0; i < g->p && !g->is_stuck; i++) {
        while (has_w(&g->now->lane[i])) {
            place_w(g, i);
        }
    }
}

static enum zb_status attempt_init(struct attempt *a, const struct vgen *g)
{
    size_t p = (size_t)g->p, m = (size_t)g->m;

    a->end = zb_alloc_array(4 * p * g->row, sizeof(*a->end));
    a->lane = zb_alloc_array(p, sizeof(*a->lane));
    a->bytes = zb_alloc_array(8 * p * m, 1);
    a->worst = INFINITY;
    return a->end == NULL || a->lane == NULL || a->bytes == NULL ? ZB_ENOMEM
                                                                 : ZB_OK;
}

static void attempt_release(struct attempt *a)
{
    zb_free(a->bytes);
    zb_free(a->lane);
    zb_free(a->end);
}

/* Attempts under the current rule: each allows the bubbles of the one before,
 * until the largest bubble stops shrinking. The first of the best stays in
 * *best. Without an occasion for a delay there is none with more allowed
 * either, and the next attempt would be the same. */
static void improve(struct vgen *g, struct attempt **best, uint8_t *leg)
{
    for (int i = 0; i < g->p; i++) {
        g->allowed[i] = -1;
    }
    g->max_allowed = -1;
    for (;;) {
        struct attempt *done;

        attempt_run(g, leg);
        done = g->now;
        if (g->is_stuck) {
            return;
        }
        for (int i = 0; i < g->p; i++) {
            g->allowed[i] = done->lane[i].bubble;
        }
        if (done->worst < (*best)->worst) {
            g->now = *best;
            *best = done;
        }
        if (g->used == 0 ||
            (g->max_allowed >= 0 && !(done->worst < g->max_allowed))) {
            return;
        }
        g->max_allowed = fmax(0, done->worst);
    }
}

/* When each stage validates the last step: as late as its own warm-up and
 * that of the stages behind it allow without a wait. */
static void validation_times(const struct vgen *g, const struct attempt *a,
                             double *pv_time_out)
{
    double t = 0;

    for (int i = g->p - 1; i >= 0; i--) {
        int mb = 2 * (g->p - 1 - i);
        double end;

        mb = mb < g->m - 1 ? mb : g->m - 1;
        end = a->end[slot(g, PASS_F, 0, i, mb)];
        t = fmax(t, end - g->in->cost[PASS_F] - g->in->c_cost);
        pv_time_out[i] = t;
    }
}

static enum zb_status write_nodes(const struct vgen *g, const struct attempt *a,
                                  struct zb_schedule *s)
{
    static const enum zb_node_type types[] = {ZB_NODE_F, ZB_NODE_B, ZB_NODE_W};

    for (int i = 0; i < g->p; i++) {
        const struct lane *l = &a->lane[i];
        int count[6] = {0};
        double end = 0;

        ZB_TRY(zb_plan_stage_alloc(s, i, (size_t)l->n_placed));
        for (int j = 0; j < l->n_placed; j++) {
            int what = l->placed[j], leg = what % 2, mb = count[what]++;
            enum pass pass = (enum pass)(what / 2);

            /* A W never waits. */
            end = pass == PASS_W ? end + g->in->cost[PASS_W]
                                 : a->end[slot(g, pass, leg, i, mb)];
            s->stages[i].node[j] = (struct zb_node){
                .type = types[pass],
                .chunk = pass == PASS_F ? leg : 1 - leg,
                .mb = mb,
                .start = end - g->in->cost[pass],
                .end = end,
            };
        }
    }
    return ZB_OK;
}

/* Whether a rule gives what one with more in it gave: what there was no
 * occasion for makes no difference. */
static int is_known(unsigned fill, unsigned *used)
{
    static const unsigned more[] = {FILL_F, FILL_B};

    for (size_t i = 0; i < ZB_COUNT_OF(more); i++) {
        unsigned with = fill | more[i];

        if (with != fill && !(used[with] & more[i])) {
            used[fill] = used[with];
            return 1;
        }
    }
    return 0;
}

static enum zb_status search(struct vgen *g, struct attempt *a, uint8_t *leg,
                             struct zb_schedule *s, double *pv_time_out)
{
    struct attempt *best = &a[0];
    unsigned used[N_RULES];

    g->now = &a[1];
    for (unsigned fill = N_RULES; fill-- > 0 && !g->is_stuck;) {
        if (!is_known(fill, used)) {
            g->fill = fill | FILL_ALWAYS;
            g->used = 0;
            improve(g, &best, leg);
            used[fill] = g->used;
        }
    }
    if (g->is_stuck) {
        return zb_fail(ZB_EINFEASIBLE, "the generator of get_v_schedule cannot "
                                       "place every node on this input");
    }
    if (pv_time_out != NULL) {
        validation_times(g, best, pv_time_out);
    }
    return write_nodes(g, best, s);
}

enum zb_status zb_plan_vgen(const struct zb_plan_vgen_input *in,
                            struct zb_schedule *s, double *pv_time_out)
{
    struct vgen g = {.in = in,
                     .p = s->n_stage,
                     .m = s->n_micro,
                     .row = zb_v_row_length(s->n_micro)};
    struct attempt a[2] = {{0}};
    uint8_t *leg = zb_alloc_array((size_t)g.p, 1);
    enum zb_status st = ZB_ENOMEM;

    g.allowed = zb_alloc_array((size_t)g.p, sizeof(*g.allowed));
    if (leg != NULL && g.allowed != NULL && attempt_init(&a[0], &g) == ZB_OK &&
        attempt_init(&a[1], &g) == ZB_OK) {
        st = search(&g, a, leg, s, pv_time_out);
    }
    attempt_release(&a[1]);
    attempt_release(&a[0]);
    zb_free(g.allowed);
    zb_free(leg);
    return st;
}
