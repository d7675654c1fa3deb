/* SPDX-License-Identifier: MIT
 *
 * Parameters that are split over the tp group: shapes of shards, and which
 * rectangles of the whole they are.
 */
#include "config.h"
#include "graph/graph_int.h"

/* Where a part of a split parameter lies, in the split dimension. */
struct run {
    int64_t shard_first, whole_first, n;
};

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* Consecutive ranks that have the same piece of `unit` ones. */
static int64_t copies_of(int64_t unit, int tp)
{
    return unit < tp ? tp / unit : 1;
}

/* Elements of a part that a rank has. */
static int64_t shard_size(const struct zb_parallel *par,
                          const struct zb_split *s, int part)
{
    int64_t size = s->size[part];

    if (s->is_vocab) {
        return par->tp > 1
                   ? round_up(size, par->vocab_multiple * par->tp) / par->tp
                   : size;
    }
    return size * copies_of(s->unit[part], par->tp) / par->tp;
}

static int check_sizes(struct zb_graph *g, const char *name,
                       const struct zb_shape *whole, const struct zb_split *s)
{
    int64_t sum = 0;

    if (s->n_parts < 0 || s->n_parts > ZB_SPLIT_MAX || s->dim < 0 ||
        s->dim >= whole->n_dims || (s->is_vocab && s->n_parts != 1)) {
        zb_graph_mistake(g, NULL,
                         "parameter '%s' %s can not be split into %d parts of "
                         "dimension %d",
                         name, zb_shape_text(whole).s, s->n_parts, s->dim);
        return -1;
    }
    for (int p = 0; p < s->n_parts; p++) {
        sum += s->size[p];
        if (s->size[p] < 1 || s->size[p] > whole->dim[s->dim] ||
            (!s->is_vocab &&
             (s->unit[p] < 1 || s->size[p] % s->unit[p] != 0))) {
            zb_graph_mistake(g, NULL,
                             "parameter '%s' %s: part %d of %lld does not "
                             "consist of %lld equal ones",
                             name, zb_shape_text(whole).s, p,
                             (long long)s->size[p], (long long)s->unit[p]);
            return -1;
        }
    }
    if (sum != whole->dim[s->dim]) {
        zb_graph_mistake(g, NULL,
                         "parameter '%s' %s: its parts make %lld of "
                         "dimension %d",
                         name, zb_shape_text(whole).s, (long long)sum, s->dim);
        return -1;
    }
    return 0;
}

/* Every rank gets whole units, or a whole number of ranks the same one. */
static int check_units(struct zb_graph *g, const char *name,
                       const struct zb_shape *whole, const struct zb_split *s)
{
    int tp = g->par.tp;

    for (int p = 0; p < s->n_parts && !s->is_vocab; p++) {
        int64_t unit = s->unit[p];

        if (unit < tp ? tp % unit != 0 : unit % tp != 0) {
            zb_graph_mistake(g, NULL,
                             "parameter '%s' %s: %lld parts of dimension %d "
                             "do not divide evenly over tp = %d",
                             name, zb_shape_text(whole).s, (long long)unit,
                             s->dim, tp);
            return -1;
        }
        if (s->dim > 0 && copies_of(unit, tp) != copies_of(s->unit[0], tp)) {
            zb_graph_mistake(g, NULL,
                             "parameter '%s' %s packs parts of which only "
                             "some are repeated over tp = %d: its rows may, "
                             "but not its columns",
                             name, zb_shape_text(whole).s, tp);
            return -1;
        }
    }
    return 0;
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    return b == 0 ? a : common_divisor(b, a % b);
}

/* Consecutive ranks that have the same of every part. */
static int copies_of_all(const struct zb_parallel *par,
                         const struct zb_split *s)
{
    int64_t n = 0;

    for (int p = 0; p < s->n_parts; p++) {
        n = common_divisor(s->is_vocab ? 1 : copies_of(s->unit[p], par->tp), n);
    }
    return (int)n;
}

int zb_shard_of(struct zb_graph *g, const char *name,
                const struct zb_shape *whole, const struct zb_split *split,
                struct zb_shape *shape_out, int *n_copies_out)
{
    *shape_out = *whole;
    *n_copies_out = g->par.tp;
    if (split->n_parts == 0) {
        return 0;
    }
    if (check_sizes(g, name, whole, split) != 0 ||
        check_units(g, name, whole, split) != 0) {
        return -1;
    }
    *n_copies_out = copies_of_all(&g->par, split);
    shape_out->dim[split->dim] = 0;
    for (int p = 0; p < split->n_parts; p++) {
        shape_out->dim[split->dim] += shard_size(&g->par, split, p);
    }
    return 0;
}

int zb_shard_slice(const struct zb_graph *g, int param, int64_t *first,
                   int64_t *n, int *n_copies_out)
{
    const struct zb_split *s = &g->params[param].opts.split;
    int64_t whole_at = 0, shard_at = 0;

    for (int p = 0; p < s->n_parts; p++) {
        int64_t size = shard_size(&g->par, s, p);

        if (*first == whole_at && *n == s->size[p]) {
            *first = shard_at;
            *n = size;
            *n_copies_out =
                s->is_vocab ? 1 : (int)copies_of(s->unit[p], g->par.tp);
            return 0;
        }
        whole_at += s->size[p];
        shard_at += size;
    }
    return -1;
}

int zb_graph_param_copies(const struct zb_graph *g, int param,
                          struct zb_copies copies[ZB_SPLIT_MAX])
{
    const struct zb_param *p = &g->params[param];
    const struct zb_shape *shard = &g->tensors[p->tensor].shape;
    const struct zb_split *s = &p->opts.split;
    int64_t row = zb_shape_elems(shard) / shard->dim[s->dim], at = 0;
    int n = 0;

    if (s->n_parts == 0 || s->dim > 0 || s->is_vocab) {
        copies[0] = (struct zb_copies){0, zb_shape_elems(shard), p->n_copies};
        return 1;
    }
    for (int i = 0; i < s->n_parts; i++) {
        int64_t size = shard_size(&g->par, s, i) * row;
        int n_copies = (int)copies_of(s->unit[i], g->par.tp);

        if (n > 0 && copies[n - 1].n_copies == n_copies) {
            copies[n - 1].n += size;
        } else {
            copies[n++] = (struct zb_copies){at, size, n_copies};
        }
        at += size;
    }
    return n;
}

/* Part `p` in the shard of a rank; n is 0 where it is all padding. */
static struct run run_of(const struct zb_parallel *par,
                         const struct zb_split *s, int p, int rank)
{
    int64_t size = shard_size(par, s, p), left;
    struct run r = {.n = size};

    for (int i = 0; i < p; i++) {
        r.shard_first += shard_size(par, s, i);
        r.whole_first += s->size[i];
    }
    r.whole_first +=
        size * (s->is_vocab ? rank : rank / copies_of(s->unit[p], par->tp));
    left = s->size[p] - (s->is_vocab ? r.whole_first : 0);
    if (s->is_vocab && left < size) {
        r.n = left < 0 ? 0 : left;
    }
    return r;
}

int zb_graph_param_pieces(const struct zb_graph *g, int param, int tp_rank,
                          struct zb_piece piece[ZB_SPLIT_MAX])
{
    const struct zb_param *p = &g->params[param];
    const struct zb_shape *shard = &g->tensors[p->tensor].shape;
    const struct zb_split *s = &p->opts.split;
    int64_t rows = 1, inner = 1;
    int n = 0;

    if (s->n_parts == 0) {
        inner = zb_shape_elems(shard);
        piece[0] = (struct zb_piece){
            .rows = 1, .cols = inner, .shard_ld = inner, .whole_ld = inner};
        return 1;
    }
    for (int i = 0; i < shard->n_dims; i++) {
        rows *= i < s->dim ? shard->dim[i] : 1;
        inner *= i > s->dim ? shard->dim[i] : 1;
    }
    for (int i = 0; i < s->n_parts; i++) {
        struct run r = run_of(&g->par, s, i, tp_rank);

        if (r.n > 0) {
            piece[n++] = (struct zb_piece){
                .rows = rows,
                .cols = r.n * inner,
                .shard_first = r.shard_first * inner,
                .shard_ld = shard->dim[s->dim] * inner,
                .whole_first = r.whole_first * inner,
                .whole_ld = p->whole.dim[s->dim] * inner,
            };
        }
    }
    return n;
}
