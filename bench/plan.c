/* SPDX-License-Identifier: MIT
 *
 * How good the plans of zbv are, and how long they take.
 *
 *     bench/plan [-b MOVES] [-s SEED] [-n EVERY] [-t TABLE] [-v] [FOLDER]
 *
 * FOLDER has plan_goals.csv, plan_exact.csv and plan_unequal.csv: by default
 * tests/golden of the source tree (which $srcdir names, else the current
 * folder). -n plans every n-th case only, -t one table, -v prints each case.
 * MOVES is the budget of a case, by default the planner's own.
 *
 * Per group of cases: how far the makespan is above the table's lower bound,
 * and above ours; the same of the best known makespan and of get_v_schedule and
 * PyTorch's order, in the cases that they fit; how many cases are at our bound,
 * not worse than the best known, and more than 1 % worse; milliseconds of the
 * processor, which other programs change little.
 *
 * At the end: the first legal schedule, without any search, of large pipelines.
 * Exit status 1 when a plan fails.
 */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "plan_cases.h"
#include "zb/plan.h"

#define ROUNDING 1e-9

struct gap {
    int n;
    double sum, worst;
};

struct group {
    struct gap listed, ours, best, get_v, torch;
    int n_bound, n_best, n_worse;
    double ms, most_ms;
};

enum {
    FULL,
    FULL_SHORT, /* m = p, a part of FULL */
    THREE_QUARTERS,
    HALF,
    EXACT,
    UNEQUAL_FULL,
    UNEQUAL_LESS,
    N_GROUPS
};

static const char *const group_names[] = {
    [FULL] = "alpha 1",
    [FULL_SHORT] = "  of these m = p",
    [THREE_QUARTERS] = "alpha .75",
    [HALF] = "alpha .5",
    [EXACT] = "exact",
    [UNEQUAL_FULL] = "unequal, alpha 1",
    [UNEQUAL_LESS] = "unequal, less",
};

struct args {
    struct zb_plan_opts opts;
    int every, only, is_verbose; /* only: a table, or -1 */
    char folder[4096];
};

static void add(struct gap *g, double makespan, double bound)
{
    double gap = makespan / bound - 1;

    g->n++;
    g->sum += gap;
    g->worst = g->n == 1 ? gap : fmax(g->worst, gap);
}

static double mean_percent(const struct gap *g)
{
    return g->n > 0 ? 100 * g->sum / g->n : NAN;
}

static double cpu_ms(void)
{
    struct timespec t = {0};

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* What another planner needs; NAN where it does not fit. */
static double rival(const char *planner, const struct zb_plan_input *in)
{
    struct zb_schedule *s = NULL;
    double makespan = NAN;

    if (zb_plan_make(planner, in, NULL, &s) == ZB_OK &&
        zb_schedule_check(s, in) == ZB_OK) {
        makespan = s->makespan;
    }
    zb_schedule_free(s);
    return makespan;
}

static void count(struct group *g, const struct plan_case *k,
                  const struct zb_schedule *s, double ms, double get_v,
                  double torch)
{
    add(&g->listed, s->makespan, k->bound);
    add(&g->ours, s->makespan, s->lower_bound);
    add(&g->best, k->best, k->bound);
    if (!isnan(get_v)) {
        add(&g->get_v, get_v, k->bound);
    }
    if (!isnan(torch)) {
        add(&g->torch, torch, k->bound);
    }
    g->n_bound += s->makespan <= s->lower_bound * (1 + ROUNDING);
    g->n_best += s->makespan <= k->best * (1 + ROUNDING);
    g->n_worse += s->makespan > k->best * (1.01 + ROUNDING);
    g->ms += ms;
    g->most_ms = fmax(g->most_ms, ms);
}

static int group_of(enum plan_table table, const struct plan_case *k)
{
    if (table == PLAN_EXACT) {
        return EXACT;
    }
    if (table == PLAN_UNEQUAL) {
        return k->alpha > 0.99 ? UNEQUAL_FULL : UNEQUAL_LESS;
    }
    return k->alpha > 0.99 ? FULL : k->alpha > 0.6 ? THREE_QUARTERS : HALF;
}

static enum zb_status one_case(const struct args *a, enum plan_table table,
                               const struct plan_case *k, struct group *groups)
{
    int group = group_of(table, k);
    double ms = cpu_ms(), get_v, torch;
    struct zb_schedule *s = NULL;

    ZB_TRY(zb_plan_make("zbv", &k->in, &a->opts, &s));
    ms = cpu_ms() - ms;
    get_v = rival("get_v_schedule", &k->in);
    torch = rival("pytorch-zbv", &k->in);
    count(&groups[group], k, s, ms, get_v, torch);
    if (group == FULL && k->in.n_stage == k->in.n_micro) {
        count(&groups[FULL_SHORT], k, s, ms, get_v, torch);
    }
    if (a->is_verbose) {
        printf("%-36s %9g best %9g %+6.2f %% bound %9g (listed %9g) "
               "%5.2f %% %6.0f ms\n",
               k->name, s->makespan, k->best, 100 * (s->makespan / k->best - 1),
               s->lower_bound, k->bound, 100 * (s->makespan / k->bound - 1),
               ms);
        fflush(stdout);
    }
    zb_schedule_free(s);
    return ZB_OK;
}

static enum zb_status each_case(const struct args *a, struct plan_cases *c,
                                struct group *groups)
{
    struct plan_case k;
    int has = 0;

    for (int i = 0;; i++) {
        enum zb_status st = ZB_OK;

        ZB_TRY(plan_cases_next(c, &k, &has));
        if (!has) {
            return ZB_OK;
        }
        if (i % a->every == 0) {
            st = one_case(a, c->table, &k, groups);
        }
        plan_case_release(&k);
        ZB_TRY(st);
    }
}

static enum zb_status each_table(const struct args *a, struct group *groups)
{
    for (int t = 0; t < PLAN_N_TABLES; t++) {
        struct plan_cases c;
        enum zb_status st;

        if (a->only >= 0 && a->only != t) {
            continue;
        }
        ZB_TRY(plan_cases_open(&c, (enum plan_table)t, a->folder));
        st = each_case(a, &c, groups);
        plan_cases_close(&c);
        ZB_TRY(st);
    }
    return ZB_OK;
}

static void print_groups(const struct group *groups)
{
    printf("%-18s %5s %15s %15s %6s %6s %12s %6s %6s %6s %6s %6s\n", "gap in %",
           "cases", "to listed bound", "to our bound", "best", "get_v",
           "pytorch", "bound", "<=best", ">+1 %", "ms", "most");
    for (int i = 0; i < N_GROUPS; i++) {
        const struct group *g = &groups[i];

        if (g->listed.n == 0) {
            continue;
        }
        printf("%-18s %5d %7.3f %7.2f %7.3f %7.2f %6.3f %6.2f %6.2f (%3d) %6d "
               "%6d %6d %6.0f %6.0f\n",
               group_names[i], g->listed.n, mean_percent(&g->listed),
               100 * g->listed.worst, mean_percent(&g->ours),
               100 * g->ours.worst, mean_percent(&g->best),
               mean_percent(&g->get_v), mean_percent(&g->torch), g->torch.n,
               g->n_bound, g->n_best, g->n_worse, g->ms / g->listed.n,
               g->most_ms);
    }
}

/* No search: how soon there is something to run. */
static enum zb_status first_schedule(int p, int m)
{
    const struct zb_plan_opts opts = {.budget = 0};
    struct zb_plan_input in;
    struct zb_schedule *s[2] = {NULL};
    enum zb_status st;

    ZB_TRY(zb_plan_input_init(&in, p, m, ZB_PLACE_V, 2));
    for (int i = 0; i < p; i++) {
        in.max_mem[i] = 2 * p * in.f_mem[0];
    }
    st = zb_plan_make("zbv", &in, &opts, &s[0]);
    if (st == ZB_OK) {
        st = zb_plan_make("get_v_schedule", &in, NULL, &s[1]);
    }
    if (st == ZB_OK) {
        printf("(%d,%d): first schedule %g in %.1f ms; get_v_schedule %g in "
               "%.1f ms\n",
               p, m, s[0]->makespan, s[0]->plan_ms, s[1]->makespan,
               s[1]->plan_ms);
    }
    zb_schedule_free(s[0]);
    zb_schedule_free(s[1]);
    zb_plan_input_release(&in);
    return st;
}

static int table_of(const char *name)
{
    for (int t = 0; t < PLAN_N_TABLES; t++) {
        if (strcmp(name, plan_table_str((enum plan_table)t)) == 0) {
            return t;
        }
    }
    return -1;
}

static int parse(int argc, char **argv, struct args *a)
{
    const char *root = getenv("srcdir");
    int c;

    *a = (struct args){.every = 1, .only = -1};
    zb_plan_opts_init(&a->opts);
    snprintf(a->folder, sizeof(a->folder), "%s/tests/golden",
             root != NULL ? root : ".");
    while ((c = getopt(argc, argv, "b:s:n:t:v")) != -1) {
        switch (c) {
        case 'b':
            a->opts.budget = (int64_t)strtod(optarg, NULL);
            break;
        case 's':
            a->opts.seed = strtoull(optarg, NULL, 10);
            break;
        case 'n':
            a->every = atoi(optarg);
            break;
        case 't':
            a->only = table_of(optarg);
            if (a->only < 0) {
                return 0;
            }
            break;
        case 'v':
            a->is_verbose = 1;
            break;
        default:
            return 0;
        }
    }
    if (optind < argc) {
        snprintf(a->folder, sizeof(a->folder), "%s", argv[optind++]);
    }
    return optind == argc && a->every >= 1;
}

int main(int argc, char **argv)
{
    struct group groups[N_GROUPS] = {{.n_bound = 0}};
    struct args a;

    if (!parse(argc, argv, &a)) {
        fprintf(stderr, "usage: plan [-b MOVES] [-s SEED] [-n EVERY] "
                        "[-t goals|exact|unequal] [-v] [FOLDER]\n");
        return 2;
    }
    if (each_table(&a, groups) != ZB_OK) {
        fprintf(stderr, "plan: %s\n", zb_error_text());
        return 1;
    }
    print_groups(groups);
    if (first_schedule(8, 64) != ZB_OK || first_schedule(64, 512) != ZB_OK) {
        fprintf(stderr, "plan: %s\n", zb_error_text());
        return 1;
    }
    return 0;
}
