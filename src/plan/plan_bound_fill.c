/* SPDX-License-Identifier: MIT
 *
 * Memory times time: what a stage's microbatches need, and how much of it there
 * is in a time D when memory has to be filled first and emptied at the end.
 */
#include "config.h"
#include "plan/plan_bound.h"

#include <math.h>

/* Memory after t of filling or before t of emptying is at most the line of the
 * part that t is in; parts follow each other, values never fall. */
enum { N_PARTS = 3 };
struct ramp {
    int n;
    struct {
        double from; /* t where it begins */
        double value, slope;
    } part[N_PARTS];
};

static void ramp_add(struct ramp *r, double from, double value, double slope)
{
    if (r->n > 0 && r->part[r->n - 1].from >= from) {
        r->n--;
    }
    r->part[r->n].from = from;
    r->part[r->n].value = value;
    r->part[r->n++].slope = slope;
}

static double rate(double size, double time)
{
    return size <= 0 ? 0 : time > 0 ? size / time : INFINITY;
}

/* Only F's fill; one counts from its start. */
static struct ramp fill(const struct zb_bound_stage *st)
{
    struct ramp r = {0};
    double step = 0, slope = 0;

    for (int c = 0; c < st->n_chunk; c++) {
        const struct zb_bound_chunk *k = &st->chunk[c];

        step = fmax(step, k->f_mem);
        slope = fmax(slope, rate(k->f_mem, k->f));
    }
    ramp_add(&r, 0, step, slope);
    return r;
}

/* What empties memory, and the part of a node under way that its remaining time
 * does not account for. */
struct drain {
    double tail; /* no B ends any more */
    double w_slope, w_step;
    double b_slope, b_step; /* by B's beside W's */
    double slope, step;     /* by B's with their W's */
};

static struct drain drain_of(const struct zb_bound_stage *st)
{
    struct drain d = {.tail = INFINITY};

    for (int c = 0; c < st->n_chunk; c++) {
        const struct zb_bound_chunk *k = &st->chunk[c];

        d.tail = fmin(d.tail, k->after_b);
        d.w_step = fmax(d.w_step, k->w_held);
        d.w_slope = fmax(d.w_slope, rate(k->w_held, k->w));
        d.b_step = fmax(d.b_step, k->f_mem - k->w_held);
        d.b_slope = fmax(d.b_slope, rate(k->f_mem - k->w_held, k->b));
        d.slope = fmax(d.slope, rate(k->f_mem, k->b + k->w));
    }
    d.slope = fmax(d.slope, d.w_slope);
    d.b_slope = fmax(d.b_slope, d.slope);
    d.b_step = fmax(d.b_step, d.w_step);
    d.step = d.w_step;
    for (int c = 0; c < st->n_chunk && isfinite(d.slope); c++) {
        const struct zb_bound_chunk *k = &st->chunk[c];

        d.step = fmax(d.step, k->f_mem - d.slope * k->w);
    }
    return d;
}

/* W's alone while t is below the tail, then the lower of two lines. */
static struct ramp empty(const struct zb_bound_stage *st)
{
    struct drain d = drain_of(st);
    double b_line = d.b_step + d.w_slope * d.tail;
    double line = d.step + d.slope * d.tail;
    struct ramp r = {0};

    ramp_add(&r, 0, d.w_step, d.w_slope);
    if (!isfinite(d.slope)) {
        /* Memory may go in no time where that line is not known. */
        ramp_add(&r, isfinite(d.w_slope) ? d.tail : 0, INFINITY, 0);
        return r;
    }
    if (b_line < line && isfinite(d.b_slope)) {
        ramp_add(&r, d.tail, b_line, d.b_slope);
        if (d.b_slope > d.slope) {
            double t = (line - b_line) / (d.b_slope - d.slope);

            ramp_add(&r, d.tail + t, line + d.slope * t, d.slope);
        }
    } else {
        ramp_add(&r, d.tail, line, d.slope);
    }
    return r;
}

/* When a ramp reaches `level`, and how much memory times time is missing until
 * then. */
static double ramp_until(const struct ramp *r, double level, double *missing)
{
    *missing = 0;
    for (int i = 0;; i++) {
        double t = r->part[i].from, low = r->part[i].value;
        double slope = r->part[i].slope, reached, part;

        if (low >= level) {
            return t;
        }
        reached = slope > 0 ? t + (level - low) / slope : INFINITY;
        part =
            (i + 1 < r->n ? fmin(reached, r->part[i + 1].from) : reached) - t;
        if (!isfinite(part)) {
            *missing = INFINITY;
            return INFINITY;
        }
        if (part > 0) {
            *missing += part * (level - low - slope * part / 2);
        }
        if (i + 1 == r->n || reached <= r->part[i + 1].from) {
            return reached;
        }
    }
}

/* Memory times time while memory is filled to `level` and emptied at once. */
static double up_and_down(const struct ramp *up, const struct ramp *down,
                          double level, double *t)
{
    double missing_up, missing_down;

    *t = ramp_until(up, level, &missing_up) +
         ramp_until(down, level, &missing_down);
    return level * *t - missing_up - missing_down;
}

/* M from F's start to B's end, H for as long as W takes. */
static double needed(const struct zb_bound_stage *st)
{
    double sum = 0;

    for (int c = 0; c < st->n_chunk; c++) {
        const struct zb_bound_chunk *k = &st->chunk[c];

        sum += k->f_mem * (k->to_b - k->to_f + k->b) + k->w_held * k->w;
    }
    return st->m * sum;
}

double zb_bound_memory(const struct zb_bound_stage *st)
{
    struct ramp up = fill(st), down = empty(st);
    double need = needed(st), level = 0, low = 0, t, area;

    for (int c = 0; c < st->n_chunk; c++) {
        level += st->m * st->chunk[c].f_mem;
    }
    level = fmin(level, st->limit);
    if (!(level > 0)) {
        return 0;
    }
    area = up_and_down(&up, &down, level, &t);
    if (area <= need) {
        return t + (need - area) / level;
    }
    /* Memory is never full: the lowest level that is enough. */
    for (int i = 0; i < 50; i++) {
        double middle = (low + level) / 2;

        if (up_and_down(&up, &down, middle, &t) < need) {
            low = middle;
        } else {
            level = middle;
        }
    }
    up_and_down(&up, &down, low, &t);
    return t;
}
