/* SPDX-License-Identifier: MIT
 *
 * Which layers go into which chunk, decided together with the schedule: cuts
 * are compared by the step that the planner makes of them. */
#include "config.h"
#include "run/run_int.h"

#include <math.h>
#include <string.h>

#include "zb/mem.h"
#include "zb/thread.h"

/* ---- value of a cut ------------------------------------------------------ */

struct score {
    int is_possible;
    double step; /* where possible */
    double need; /* else: the memory that would do */
};

/* Steps that differ by rounding are the same. */
static int is_better(const struct score *a, const struct score *b)
{
    if (a->is_possible != b->is_possible) {
        return a->is_possible;
    }
    return a->is_possible ? a->step < b->step * (1 - 1e-9) : a->need < b->need;
}

/* All layers of a stage, by the table of costs; a rank updates its shard. */
static struct zb_layer_cost stage_ns(const struct zb_run_plan *p, int stage)
{
    struct zb_layer_cost sum = {0, 0, 0, 0};

    for (int k = 0; k < p->n_chunk; k++) {
        int v = zb_virt_of(p, stage, k);
        struct zb_layer_cost c = zb_costs_sum(p->costs, p->first_layer[v],
                                              p->first_layer[v + 1]);

        sum.f_ns += c.f_ns;
        sum.b_ns += c.b_ns;
        sum.w_ns += c.w_ns;
        sum.update_ns +=
            p->o.zero_stage > 0 ? c.update_ns / p->n_shards : c.update_ns;
    }
    return sum;
}

/* In units of the planner's costs, where these have a known length. */
static double longest_update(const struct zb_run_plan *p)
{
    double most = 0;

    for (int s = 0; s < p->n_stages && p->unit_ns > 0; s++) {
        most = fmax(most, stage_ns(p, s).update_ns / p->unit_ns);
    }
    return most;
}

/* All stages wait for the gradients' norm before they update, so the slowest
 * update comes on top of the schedule. */
double zb_run_step_cost(const struct zb_run_plan *p)
{
    return p->update + (p->search.objective == ZB_PLAN_STEADY
                            ? p->sched->span
                            : p->sched->makespan);
}

static double stage_work(const struct zb_run_plan *p, int stage)
{
    double sum = 0;

    for (int k = 0; k < p->n_chunk; k++) {
        int v = zb_virt_of(p, stage, k);

        sum += p->in.f_cost[v] + p->in.b_cost[v] + p->in.w_cost[v];
    }
    return sum * p->o.n_micro;
}

/* A stage begins when a microbatch has come to it, then has its work to do. */
static double quick_bound(const struct zb_run_plan *p)
{
    double most = 0;

    for (int s = 0; s < p->n_stages; s++) {
        double before = 0;

        for (int v = 0; v < zb_virt_of(p, s, 0) &&
                        p->search.objective == ZB_PLAN_STEP;
             v++) {
            before += p->in.f_cost[v];
        }
        most = fmax(most, before + stage_work(p, s));
    }
    return most;
}

/* ---- chunks of the cuts that are tried ----------------------------------- */

struct piece {
    int first, end;
    struct zb_chunk *chunk;
};

struct cutter {
    struct zb_run_plan *p;
    int n_layers;
    struct piece *piece; /* [n_pieces] made so far */
    size_t n_pieces, cap_pieces;
    int *kind;      /* [n_layers] the same for layers with the same work */
    int *now;       /* [n_virtual + 1] the cut being tried */
    int *best;      /* [n_virtual + 1] */
    struct score score; /* of the best */
    int n_tries, n_looks; /* left */
};

static int is_same_work(struct zb_flops a, struct zb_flops b)
{
    return a.f == b.f && a.b == b.b && a.w == b.w;
}

static void find_kinds(struct cutter *c)
{
    const struct zb_run_plan *p = c->p;

    for (int i = 0; i < c->n_layers; i++) {
        struct zb_flops work = zb_graph_flops(p->g, i, i + 1, &p->max);
        int k = i > 0 ? i - 1 : 0;

        c->kind[i] = i;
        if (i > 0 && is_same_work(work,
                                  zb_graph_flops(p->g, k, k + 1, &p->max))) {
            c->kind[i] = c->kind[k];
        }
    }
}

/* Whether two ranges of layers are alike: sizes of one are those of the other.
 * For comparing cuts only; what is run has chunks of its own. */
static int is_alike(const struct cutter *c, const struct piece *a, int first,
                    int end)
{
    if (a->end - a->first != end - first || a->first == 0 || first == 0 ||
        a->end == c->n_layers || end == c->n_layers) {
        return 0;
    }
    for (int i = 0; i < end - first; i++) {
        if (c->kind[a->first + i] != c->kind[first + i]) {
            return 0;
        }
    }
    /* An empty chunk passes on what comes in: the next layer's input. */
    return end > first || c->kind[a->first] == c->kind[first];
}

static struct piece *find_piece(struct cutter *c, int first, int end,
                                int is_exact)
{
    for (size_t i = 0; i < c->n_pieces; i++) {
        if (c->piece[i].first == first && c->piece[i].end == end) {
            return &c->piece[i];
        }
    }
    for (size_t i = 0; i < c->n_pieces && !is_exact; i++) {
        if (is_alike(c, &c->piece[i], first, end)) {
            return &c->piece[i];
        }
    }
    return NULL;
}

static enum zb_status get_chunk(struct cutter *c, int first, int end,
                                int is_exact, struct zb_chunk **chunk_out)
{
    struct piece *piece = find_piece(c, first, end, is_exact);

    if (piece == NULL) {
        if (c->n_pieces == c->cap_pieces) {
            size_t cap = 2 * c->cap_pieces;
            struct piece *more = zb_realloc_array(c->piece, c->cap_pieces, cap,
                                                  sizeof(*more));

            if (more == NULL) {
                return ZB_ENOMEM;
            }
            c->piece = more;
            c->cap_pieces = cap;
        }
        piece = &c->piece[c->n_pieces];
        *piece = (struct piece){first, end, NULL};
        ZB_TRY(zb_chunk_new(c->p->g, first, end, &c->p->max,
                            c->p->o.recompute, &piece->chunk));
        c->n_pieces++;
    }
    *chunk_out = piece->chunk;
    return ZB_OK;
}

/* ---- trying -------------------------------------------------------------- */

static enum zb_status set_cut(struct cutter *c, const int *first, int is_exact)
{
    struct zb_run_plan *p = c->p;

    for (int v = 0; v < p->n_virtual; v++) {
        ZB_TRY(get_chunk(c, first[v], first[v + 1], is_exact, &p->chunk[v]));
        p->info[v] = zb_chunk_info(p->chunk[v]);
    }
    memmove(p->first_layer, first,
            ((size_t)p->n_virtual + 1) * sizeof(*first));
    zb_run_fill_costs(p);
    zb_run_fill_memory(p);
    p->update = longest_update(p);
    return ZB_OK;
}

static double largest_microbatch(const struct zb_run_plan *p)
{
    double most = 0;

    for (int s = 0; s < p->n_stages; s++) {
        double sum = 0;

        for (int k = 0; k < p->n_chunk; k++) {
            sum += p->in.f_mem[zb_virt_of(p, s, k)];
        }
        most = fmax(most, sum);
    }
    return most;
}

/* Make the schedule of the cut that is set. */
static enum zb_status measure(struct cutter *c, struct score *score_out)
{
    struct zb_run_plan *p = c->p;
    enum zb_status st = zb_run_make_schedule(p);
    struct score s = {.is_possible = st == ZB_OK};
    size_t bytes = 0;

    if (st == ZB_EINFEASIBLE) {
        s.need = largest_microbatch(p);
    } else {
        ZB_TRY(st);
        s.step = zb_run_step_cost(p);
    }
    if (s.is_possible && p->o.device_mem > 0) {
        ZB_TRY(zb_run_device_bytes(p, &bytes));
        s.is_possible = bytes <= p->o.device_mem;
        s.need = (double)bytes;
    }
    *score_out = s;
    return ZB_OK;
}

/* Device memory is added up from the parameters that a stage has, so that
 * chunks must be the right ones. */
static int needs_exact(const struct zb_run_plan *p)
{
    return p->o.device_mem > 0;
}

static int is_same_cut(const struct cutter *c, const int *a, const int *b)
{
    return memcmp(a, b, ((size_t)c->p->n_virtual + 1) * sizeof(*a)) == 0;
}

/* Try c->now; it becomes the best if it is. */
static enum zb_status try_now(struct cutter *c, int *is_better_out)
{
    struct zb_run_plan *p = c->p;
    struct score score;

    *is_better_out = 0;
    ZB_TRY(set_cut(c, c->now, needs_exact(p)));
    if (c->score.is_possible && quick_bound(p) + p->update >= c->score.step) {
        return ZB_OK;
    }
    c->n_tries--;
    ZB_TRY(measure(c, &score));
    if (is_better(&score, &c->score)) {
        c->score = score;
        memcpy(c->best, c->now, ((size_t)p->n_virtual + 1) * sizeof(int));
        *is_better_out = 1;
    }
    return ZB_OK;
}

/* ---- moving single layers ------------------------------------------------ */

/* Move a layer from chunk `from` to chunk `to`: those between them pass one on.
 * 0 when `from` is empty, or the last layer would leave the last chunk. */
static int shift(struct cutter *c, int from, int to)
{
    int n = c->p->n_virtual;

    memcpy(c->now, c->best, ((size_t)n + 1) * sizeof(int));
    if (c->now[from] == c->now[from + 1]) {
        return 0;
    }
    for (int v = from + 1; v <= to; v++) {
        c->now[v]--;
    }
    for (int v = to + 1; v <= from; v++) {
        c->now[v]++;
    }
    return c->now[n - 1] < c->n_layers;
}

/* Chunks by the work of their stage, the busiest first. */
static void sort_by_work(const struct zb_run_plan *p, int *order)
{
    for (int v = 0; v < p->n_virtual; v++) {
        double work = stage_work(p, zb_stage_of(p, v));
        int at = v;

        while (at > 0 &&
               stage_work(p, zb_stage_of(p, order[at - 1])) < work) {
            order[at] = order[at - 1];
            at--;
        }
        order[at] = v;
    }
}

/* Take a layer from `from` to wherever it helps, near chunks first. */
static enum zb_status move_from(struct cutter *c, int from, int *is_moved_out)
{
    int n = c->p->n_virtual, is_moved = 0;

    for (int i = 2; i < 2 * n && !is_moved; i++) {
        int to = i % 2 == 0 ? from - i / 2 : from + i / 2;

        if (to < 0 || to >= n || !shift(c, from, to)) {
            continue;
        }
        if (c->n_tries <= 0 || c->n_looks-- <= 0) {
            break;
        }
        ZB_TRY(try_now(c, &is_moved));
    }
    *is_moved_out = is_moved;
    return ZB_OK;
}

static enum zb_status improve(struct cutter *c)
{
    int n = c->p->n_virtual, is_moved = 1;
    int *order = zb_alloc_array((size_t)n, sizeof(*order));
    enum zb_status st = ZB_OK;

    if (order == NULL) {
        return ZB_ENOMEM;
    }
    while (is_moved && st == ZB_OK) {
        is_moved = 0;
        st = set_cut(c, c->best, needs_exact(c->p));
        sort_by_work(c->p, order);
        for (int i = 0; i < n && !is_moved && st == ZB_OK; i++) {
            st = move_from(c, order[i], &is_moved);
        }
    }
    zb_free(order);
    return st;
}

/* ---- where to begin ------------------------------------------------------ */

/* Balance F + B + W over chunks, or over the stages of a V. */
static enum zb_status cut_by_work(struct cutter *c, int is_v)
{
    double *work = zb_alloc_array((size_t)c->n_layers, sizeof(*work));
    enum zb_status st = ZB_OK;

    if (work == NULL) {
        return ZB_ENOMEM;
    }
    for (int i = 0; i < c->n_layers; i++) {
        const struct zb_layer_cost *k = &c->p->costs->layer[i];

        work[i] = k->f_ns + k->b_ns + k->w_ns;
    }
    if (is_v) {
        st = zb_run_cut_v(work, c->n_layers, c->p->n_stages, c->now);
    } else {
        zb_cut_balanced(work, c->n_layers, c->p->n_virtual, c->now);
    }
    zb_free(work);
    return st;
}

static void cut_uniform(const struct zb_run_plan *p, int *first)
{
    int n_before = zb_model_n_before(p->model);
    int n_blocks = zb_model_n_blocks(p->model);
    int n_after = zb_graph_n_layers(p->g) - n_before - n_blocks;

    zb_cut_uniform(n_before, n_blocks, n_after, p->n_virtual, first);
}

/* The cuts to begin with, by number; what is left of them are the same. */
enum { BEGIN_FLOPS, BEGIN_UNIFORM, BEGIN_WORK, BEGIN_V, N_BEGIN };

static enum zb_status begin_with(struct cutter *c, int which)
{
    struct zb_run_plan *p = c->p;

    switch (which) {
    case BEGIN_FLOPS:
        return zb_cut_auto(p->g, &p->max, p->n_virtual, c->now);
    case BEGIN_UNIFORM:
        cut_uniform(p, c->now);
        return ZB_OK;
    case BEGIN_V:
        return cut_by_work(c, p->in.placement == ZB_PLACE_V);
    default:
        return cut_by_work(c, 0);
    }
}

/* ---- auto ---------------------------------------------------------------- */

static size_t n_nodes(const struct zb_run_plan *p)
{
    return 3 * (size_t)p->n_virtual * (size_t)p->o.n_micro;
}

/* A step of the cut that is set takes at least this long. */
static double step_ns(const struct zb_run_plan *p)
{
    double most = 0;

    for (int s = 0; s < p->n_stages; s++) {
        struct zb_layer_cost c = stage_ns(p, s);

        most = fmax(most, p->o.n_micro * (c.f_ns + c.b_ns + c.w_ns) +
                              c.update_ns);
    }
    return most;
}

static int are_costs_given(const struct zb_run_plan *p)
{
    return p->o.f_cost != NULL && p->o.b_cost != NULL && p->o.w_cost != NULL;
}

static enum zb_status search_cut(struct cutter *c)
{
    struct zb_run_plan *p = c->p;
    int is_found;

    for (int i = 0; i < N_BEGIN; i++) {
        ZB_TRY(begin_with(c, i));
        if (i == 0) {
            ZB_TRY(set_cut(c, c->now, needs_exact(p)));
            c->n_tries = zb_run_cut_tries(step_ns(p), p->share, n_nodes(p));
        }
        if (i == 0 || !is_same_cut(c, c->now, c->best)) {
            ZB_TRY(try_now(c, &is_found));
        }
        if (i == 0 && !is_found) {
            memcpy(c->best, c->now, ((size_t)p->n_virtual + 1) * sizeof(int));
        }
    }
    /* Times that are given for chunks do not change with their layers. */
    if (are_costs_given(p) && c->score.is_possible) {
        return ZB_OK;
    }
    return improve(c);
}

/* The search's effort, when `n` cuts share what it may take. */
static void set_search(struct zb_run_plan *p, int n)
{
    p->search = p->o.plan;
    if (p->search.budget < 0) {
        p->search.budget = zb_run_search_moves(step_ns(p) / n);
    }
}

/* Cuts to begin with that might, with the planner's search, still be better
 * than the best without it. */
static enum zb_status list_rivals(struct cutter *c, int *rival, int *n_out)
{
    struct zb_run_plan *p = c->p;
    int n = 0;

    for (int i = BEGIN_FLOPS; i <= BEGIN_UNIFORM && p->o.plan.budget != 0;
         i++) {
        ZB_TRY(begin_with(c, i));
        if (is_same_cut(c, c->now, c->best) || !c->score.is_possible) {
            continue;
        }
        ZB_TRY(set_cut(c, c->now, 1));
        if (quick_bound(p) + p->update < c->score.step) {
            rival[n++] = i;
        }
    }
    *n_out = n;
    return ZB_OK;
}

static enum zb_status plan_cut(struct cutter *c, const int *first, int n)
{
    ZB_TRY(set_cut(c, first, 1));
    set_search(c->p, n);
    return zb_run_make_schedule(c->p);
}

/* Plan the best cut with the search, and rivals too, so that none of them would
 * have been better. */
static enum zb_status plan_best(struct cutter *c)
{
    int rival[2], n, winner = -1;
    double least = INFINITY;

    ZB_TRY(list_rivals(c, rival, &n));
    for (int i = 0; i < n; i++) {
        struct score score;

        ZB_TRY(begin_with(c, rival[i]));
        ZB_TRY(set_cut(c, c->now, 1));
        set_search(c->p, n + 1);
        ZB_TRY(measure(c, &score));
        if (score.is_possible && score.step < least) {
            least = score.step;
            winner = rival[i];
        }
    }
    ZB_TRY(plan_cut(c, c->best, n + 1));
    if (winner < 0 || least >= zb_run_step_cost(c->p)) {
        return ZB_OK;
    }
    ZB_TRY(begin_with(c, winner));
    return plan_cut(c, c->now, n + 1);
}

/* ---- the whole ----------------------------------------------------------- */

static enum zb_status cut_as_told(struct cutter *c)
{
    const struct zb_run_plan *p = c->p;
    int n_before = zb_model_n_before(p->model);
    int n_blocks = zb_model_n_blocks(p->model);

    if (p->o.cut == ZB_CUT_UNIFORM) {
        cut_uniform(p, c->now);
        return ZB_OK;
    }
    if (p->o.n_layers_per_chunk != 0 &&
        p->o.n_layers_per_chunk != p->n_virtual) {
        return zb_fail(ZB_EINVAL, "layers of %d chunks, but there are %d",
                       p->o.n_layers_per_chunk, p->n_virtual);
    }
    return zb_cut_list(n_before, n_blocks, c->n_layers - n_before - n_blocks,
                       p->n_virtual, p->o.layers_per_chunk, c->now);
}

static enum zb_status choose(struct cutter *c)
{
    struct zb_run_plan *p = c->p;

    p->search = p->o.plan;
    if (p->o.cut != ZB_CUT_AUTO) {
        ZB_TRY(cut_as_told(c));
        return plan_cut(c, c->now, 1);
    }
    p->search.budget = 0;
    p->search.time_limit_ms = 0;
    find_kinds(c);
    ZB_TRY(search_cut(c));
    return plan_best(c);
}

/* The plan gets chunks of its own; those of the cut were lent. */
static enum zb_status take_chunks(struct cutter *c)
{
    struct zb_run_plan *p = c->p;

    for (int v = 0; v < p->n_virtual; v++) {
        int first = p->first_layer[v], end = p->first_layer[v + 1];
        struct piece *piece = find_piece(c, first, end, 1);

        if (piece != NULL && piece->chunk != NULL) {
            p->chunk[v] = piece->chunk;
            piece->chunk = NULL; /* empty chunks at one place are several */
        } else {
            ZB_TRY(zb_chunk_new(p->g, first, end, &p->max, p->o.recompute,
                                &p->chunk[v]));
        }
        p->info[v] = zb_chunk_info(p->chunk[v]);
    }
    for (int v = 0; v + 1 < p->n_virtual; v++) {
        ZB_BUG_IF(p->info[v].bytes[ZB_SPACE_OUT] !=
                          p->info[v + 1].bytes[ZB_SPACE_IN] ||
                      p->info[v].bytes[ZB_SPACE_DIN] !=
                          p->info[v + 1].bytes[ZB_SPACE_DOUT],
                  "the two sides of boundary %d differ", v);
    }
    return ZB_OK;
}

static enum zb_status cutter_init(struct cutter *c, struct zb_run_plan *p)
{
    size_t n = (size_t)p->n_virtual + 1;

    *c = (struct cutter){
        .p = p,
        .n_layers = zb_graph_n_layers(p->g),
        .cap_pieces = 2 * n,
        .score = {.need = INFINITY},
        .n_looks = 4000000 / p->n_virtual,
    };
    c->piece = zb_alloc_array(c->cap_pieces, sizeof(*c->piece));
    c->kind = zb_alloc_array((size_t)c->n_layers, sizeof(*c->kind));
    c->now = zb_alloc_array(n, sizeof(*c->now));
    c->best = zb_alloc_array(n, sizeof(*c->best));
    return c->piece == NULL || c->kind == NULL || c->now == NULL ||
                   c->best == NULL
               ? ZB_ENOMEM
               : ZB_OK;
}

static void cutter_release(struct cutter *c)
{
    for (size_t i = 0; i < c->n_pieces; i++) {
        zb_chunk_free(c->piece[i].chunk);
    }
    zb_free(c->best);
    zb_free(c->now);
    zb_free(c->kind);
    zb_free(c->piece);
}

enum zb_status zb_run_choose_cut(struct zb_run_plan *p)
{
    struct cutter c;
    int64_t begin = zb_now_ns();
    enum zb_status st = cutter_init(&c, p);

    if (st == ZB_OK) {
        st = choose(&c);
    }
    memset(p->chunk, 0, (size_t)p->n_virtual * sizeof(struct zb_chunk *));
    if (st == ZB_OK) {
        st = take_chunks(&c);
    }
    cutter_release(&c);
    p->plan_ms = (double)(zb_now_ns() - begin) / 1e6;
    return st;
}
