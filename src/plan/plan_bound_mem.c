/* SPDX-License-Identifier: MIT
 *
 * What the memory of a stage allows: how far it can run ahead, how much it can
 * leave for the end, how long it must hold what it holds.
 */
#include "config.h"
#include "plan/plan_bound.h"

#include <math.h>

/* How many things of this size fit, at most `most`. */
static double fit(double room, double size, double most)
{
    return size > 0 && room < most * size ? fmax(0, floor(room / size)) : most;
}

/* ---- fractions ---- */

/* A microbatch of a chunk may be worth value[0] for size[0], or value[1] for
 * size[1], or nothing. */
struct offer {
    double value[2], size[2];
};

/* The offers of a stage's chunks: what F's are worth at the start, or what is
 * left of B and W at the end. */
struct offers {
    const struct zb_bound_stage *st;
    int is_end;
    int n;        /* chunks 0 to n - 1 offer F (or have B left) */
    double extra; /* worth of chunk n - 1 besides */
};

static struct offer offer_of(const struct offers *o, int c)
{
    const struct zb_bound_chunk *k = &o->st->chunk[c];
    double extra = c == o->n - 1 ? o->extra : 0;
    struct offer f = {{0}, {0}};

    if (c < o->n) {
        f.value[0] = extra + (o->is_end ? k->b + k->w : k->f);
        f.size[0] = k->f_mem;
    }
    if (o->is_end) {
        f.value[1] = k->w;
        f.size[1] = k->w_held;
    }
    return f;
}

/* What all microbatches are worth when a unit of memory costs `price`, plus the
 * price of all memory: no choice within the limit is worth more. */
static double worth_at(const struct offers *o, double price)
{
    double sum = 0;

    for (int c = 0; c < o->st->n_chunk; c++) {
        struct offer f = offer_of(o, c);

        sum += fmax(0, fmax(f.value[0] - price * f.size[0],
                            f.value[1] - price * f.size[1]));
    }
    return o->st->m * sum + (price > 0 ? price * o->st->limit : 0);
}

/* The most worth within memory if microbatches could be cut: the least of
 * worth_at(), which bends only where two choices are equal. */
static double fractional(const struct offers *o)
{
    double best = worth_at(o, 0);

    for (int c = 0; c < o->st->n_chunk && isfinite(o->st->limit); c++) {
        struct offer f = offer_of(o, c);
        double value[3] = {f.value[0], f.value[1], f.value[0] - f.value[1]};
        double size[3] = {f.size[0], f.size[1], f.size[0] - f.size[1]};

        for (int i = 0; i < 3; i++) {
            if (value[i] > 0 && size[i] > 0) {
                best = fmin(best, worth_at(o, value[i] / size[i]));
            }
        }
    }
    return best;
}

/* ---- whole microbatches ---- */

/* sum x_c f_c (+ extra), x_0 >= x_1: a microbatch comes in model order. */
static double run_ahead(const struct offers *o)
{
    const struct zb_bound_stage *st = o->st;
    struct offer f0 = offer_of(o, 0), f1;
    double best = 0, most;

    if (o->n > 2) {
        return INFINITY;
    }
    if (o->n == 1) {
        return fit(st->limit, f0.size[0], st->m) * f0.value[0];
    }
    f1 = offer_of(o, 1);
    most = fit(st->limit, f0.size[0] + f1.size[0], st->m);
    for (double x = 0; x <= most; x++) {
        double room = st->limit - x * f1.size[0];

        best = fmax(best, x * f1.value[0] +
                              fit(room, f0.size[0], st->m) * f0.value[0]);
    }
    return best;
}

/* The sum of the n largest values when each chunk has m. */
struct pile {
    double least_size, most_value, sum, m, n;
};

static void pile_add(struct pile *p, double value, double size)
{
    p->least_size = p->n > 0 ? fmin(p->least_size, size) : size;
    p->most_value = fmax(p->most_value, value);
    p->sum += value;
    p->n += p->m;
}

static double pile_top(const struct pile *p, double n)
{
    double rest = p->n > p->m ? (p->sum - p->most_value) : 0;

    return n <= p->m ? n * p->most_value
                     : p->m * p->most_value + fmin(p->m, n - p->m) * rest;
}

/* x microbatches before B and y before W, all as small as the smallest and the
 * most worth first. */
static double left_over(const struct offers *o)
{
    const struct zb_bound_stage *st = o->st;
    struct pile b = {.m = st->m}, w = {.m = st->m};
    double best = 0, most;

    for (int c = 0; c < st->n_chunk; c++) {
        struct offer f = offer_of(o, c);

        if (c < o->n) {
            pile_add(&b, f.value[0], f.size[0]);
        }
        pile_add(&w, f.value[1], f.size[1]);
    }
    most = fit(st->limit, b.least_size, b.n);
    for (double x = 0; x <= most; x++) {
        double y = fit(st->limit - x * b.least_size, w.least_size, w.n - x);

        best = fmax(best, pile_top(&b, x) + pile_top(&w, y));
    }
    return best;
}

/* ---- windows ---- */

/* Fractions alone when everything fits: the search below would be long. */
static double most_work(const struct offers *o)
{
    double all = worth_at(o, 0), best = fractional(o);

    if (best >= all) {
        return all;
    }
    return fmin(best, o->is_end ? left_over(o) : run_ahead(o));
}

/* What is left of chunk c when a microbatch has its inputs. */
static double whole_cost(const struct zb_bound_chunk *k)
{
    return k->f + k->b + k->w;
}

static double later_chunks(const struct zb_bound_stage *st, int j)
{
    double sum = 0;

    for (int c = j + 1; c < st->n_chunk; c++) {
        sum += whole_cost(&st->chunk[c]);
    }
    return sum;
}

double zb_bound_before_f(const struct zb_bound_stage *st, int j)
{
    struct offers o = {.st = st, .n = j};

    return j == 0 ? 0 : most_work(&o);
}

double zb_bound_before_b(const struct zb_bound_stage *st, int j)
{
    struct offers o = {.st = st, .n = j + 1, .extra = later_chunks(st, j)};

    return most_work(&o);
}

double zb_bound_after_f(const struct zb_bound_stage *st, int j)
{
    struct offers o = {
        .st = st, .is_end = 1, .n = j + 1, .extra = later_chunks(st, j)};

    return most_work(&o);
}

double zb_bound_after_b(const struct zb_bound_stage *st, int j)
{
    struct offers o = {.st = st, .is_end = 1, .n = j};

    return most_work(&o);
}
