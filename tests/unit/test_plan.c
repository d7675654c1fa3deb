/* SPDX-License-Identifier: MIT
 *
 * Planners, simulator and bounds: formulas, proved optima, random inputs.
 */
#include "config.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "zb/mem.h"
#include "zb/plan.h"
#include "plan_quick.h"
#include "zbt.h"

#define LINE_MAX_BYTES 1024
#define F_MEM 303104.0

static void input_for(const char *planner, int p, int m,
                      struct zb_plan_input *in)
{
    enum zb_placement placement = ZB_PLACE_V;
    int n_chunk = 0;

    ZBT_OK(zb_planner_shape(planner, &placement, &n_chunk));
    ZBT_OK(zb_plan_input_init(in, p, m, placement, n_chunk));
}

static void set_costs(struct zb_plan_input *in, double f, double b, double w,
                      double c)
{
    for (int v = 0; v < in->n_stage * in->n_chunk; v++) {
        in->f_cost[v] = f;
        in->b_cost[v] = b;
        in->w_cost[v] = w;
    }
    in->c_cost = c;
}

static void set_limit(struct zb_plan_input *in, double limit)
{
    for (int i = 0; i < in->n_stage; i++) {
        in->max_mem[i] = limit;
    }
}

/* ---- placement ---- */

static void virtual_stage_of_v_runs_down_and_up(void)
{
    static const int want[2][3] = {{0, 1, 2}, {5, 4, 3}};

    for (int c = 0; c < 2; c++) {
        for (int s = 0; s < 3; s++) {
            CU_ASSERT_EQUAL(zb_virtual_stage(ZB_PLACE_V, 3, s, c), want[c][s]);
        }
    }
}

static void virtual_stage_and_local_chunk_are_inverse(void)
{
    static const int n_chunk[] = {2, 4, 1};

    for (int place = ZB_PLACE_V; place <= ZB_PLACE_LINEAR; place++) {
        for (int v = 0; v < 5 * n_chunk[place]; v++) {
            enum zb_placement pl = (enum zb_placement)place;
            int stage, chunk;

            zb_virtual_to_local(pl, 5, v, &stage, &chunk);
            CU_ASSERT(stage >= 0 && stage < 5);
            CU_ASSERT(chunk >= 0 && chunk < n_chunk[place]);
            CU_ASSERT_EQUAL(zb_virtual_stage(pl, 5, stage, chunk), v);
        }
    }
}

/* ---- formulas ---- */

/* Narayanan et al. 2021: (m + p - 1) (f + b + w) without latency, and at most
 * p - i microbatches held by stage i. */
static void makespan_and_peak_of_1f1b_follow_formula(void)
{
    for (int p = 1; p <= 6; p++) {
        for (int m = 1; m <= 13; m += 3) {
            struct zb_plan_input in;
            struct zb_schedule *s = NULL;

            input_for("1f1b", p, m, &in);
            set_costs(&in, 2, 3, 4, 0);
            ZBT_OK(zb_plan_make("1f1b", &in, &plan_quick, &s));
            CU_ASSERT_EQUAL(s->makespan, (m + p - 1) * 9.0);
            CU_ASSERT_EQUAL(s->lower_bound, s->makespan);
            for (int i = 0; i < p; i++) {
                CU_ASSERT_EQUAL(s->peak_mem[i],
                                F_MEM * (m < p - i ? m : p - i));
            }
            zb_schedule_free(s);
            zb_plan_input_release(&in);
        }
    }
}

static void let_b_add(struct zb_plan_input *in)
{
    for (int v = 0; v < in->n_stage * in->n_chunk; v++) {
        in->f_mem[v] = 1;
        in->b_mem[v] = 9;
        in->w_mem[v] = -10;
    }
}

/* F keeps 1, B adds 9 that W frees: a BW of 1F1B holds it on top of p - i. A V
 * with that limit has room for one W to wait at a time. */
static void memory_that_b_adds_counts_from_its_start(void)
{
    for (int p = 1; p <= 6; p++) {
        struct zb_plan_input in;
        struct zb_schedule *s = NULL;

        input_for("1f1b", p, 8, &in);
        let_b_add(&in);
        ZBT_OK(zb_plan_make("1f1b", &in, &plan_quick, &s));
        for (int i = 0; i < p; i++) {
            CU_ASSERT_EQUAL(s->peak_mem[i], p - i + 9);
        }
        zb_schedule_free(s);
        zb_plan_input_release(&in);
        input_for("zbv", p, 8, &in);
        let_b_add(&in);
        set_limit(&in, 2 * p + 9);
        ZBT_OK(zb_plan_make("zbv", &in, &plan_quick, &s));
        for (int i = 0; i < p; i++) {
            CU_ASSERT(s->peak_mem[i] >= 2 + 9);
            CU_ASSERT(s->peak_mem[i] <= 2 * p + 9);
        }
        zb_schedule_free(s);
        set_limit(&in, 2 + 8);
        CU_ASSERT_EQUAL(zb_plan_make("zbv", &in, &plan_quick, &s),
                        ZB_EINFEASIBLE);
        zb_plan_input_release(&in);
    }
}

static void gpipe_runs_all_forward_then_all_backward_in_order(void)
{
    struct zb_plan_input in;
    struct zb_schedule *s = NULL;

    input_for("gpipe", 3, 4, &in);
    ZBT_OK(zb_plan_make("gpipe", &in, &plan_quick, &s));
    CU_ASSERT_EQUAL(s->makespan, (4 + 3 - 1) * 3.0);
    for (int i = 0; i < 3; i++) {
        int n = 0;

        for (size_t j = 0; j < s->stages[i].n; j++) {
            const struct zb_node *node = &s->stages[i].node[j];

            if (zb_node_is_compute(node->type)) {
                CU_ASSERT_EQUAL(node->type, n < 4 ? ZB_NODE_F : ZB_NODE_BW);
                CU_ASSERT_EQUAL(node->mb, n % 4);
                n++;
            }
        }
        CU_ASSERT_EQUAL(n, 8);
        CU_ASSERT_EQUAL(s->peak_mem[i], 4 * F_MEM);
    }
    zb_schedule_free(s);
    zb_plan_input_release(&in);
}

static void forward_only_linear_follows_formula(void)
{
    for (int p = 1; p <= 5; p++) {
        for (int m = 1; m <= 7; m++) {
            struct zb_plan_input in;
            struct zb_schedule *s = NULL;

            ZBT_OK(zb_plan_input_init(&in, p, m, ZB_PLACE_LINEAR, 1));
            set_costs(&in, 3, 1, 1, 2);
            ZBT_OK(zb_plan_forward_only(&in, &s));
            CU_ASSERT_EQUAL(s->makespan, (m + p - 1) * 3.0 + (p - 1) * 2.0);
            zb_schedule_free(s);
            zb_plan_input_release(&in);
        }
    }
}

static void forward_only_every_placement_has_each_f_once(void)
{
    static const int n_chunk[] = {2, 3, 1};

    for (int place = ZB_PLACE_V; place <= ZB_PLACE_LINEAR; place++) {
        for (int p = 1; p <= 5; p++) {
            for (int m = 1; m <= 8; m++) {
                struct zb_plan_input in;
                struct zb_schedule *s = NULL;
                size_t n = 0;

                ZBT_OK(zb_plan_input_init(&in, p, m, (enum zb_placement)place,
                                          n_chunk[place]));
                set_limit(&in, 0);
                ZBT_OK(zb_plan_forward_only(&in, &s));
                ZBT_OK(zb_schedule_check(s, &in));
                for (int i = 0; i < p; i++) {
                    for (size_t j = 0; j < s->stages[i].n; j++) {
                        n += s->stages[i].node[j].type == ZB_NODE_F;
                    }
                }
                CU_ASSERT_EQUAL(n, (size_t)(p * n_chunk[place] * m));
                CU_ASSERT(s->makespan >= n_chunk[place] * m);
                zb_schedule_free(s);
                zb_plan_input_release(&in);
            }
        }
    }
}

/* Zero cost of W, B and F: a message must not come before its node. */
static void planners_with_zero_costs_give_legal_schedules(void)
{
    for (int mask = 0; mask < 8; mask++) {
        for (int i = 0; zb_planner_name(i) != NULL; i++) {
            struct zb_plan_input in;
            struct zb_schedule *s = NULL;

            input_for(zb_planner_name(i), 3, 5, &in);
            set_costs(&in, mask & 1, mask & 2, mask & 4, 0);
            in.f_cost[1] = 0;
            ZBT_OK(zb_plan_make(zb_planner_name(i), &in, &plan_quick, &s));
            zb_schedule_free(s);
            zb_plan_input_release(&in);
        }
    }
}

/* ---- proved optima and known values ---- */

static int csv_list(char *text, double *x, int max)
{
    int n = 0;

    for (char *at = text; n < max && *at != '\0' && *at != ','; n++) {
        x[n] = strtod(at, &at);
        at += *at == ' ';
    }
    return n;
}

static FILE *open_csv(const char *name)
{
    FILE *f = fopen(zbt_source_path(name), "r");
    char line[LINE_MAX_BYTES];

    CU_ASSERT_FATAL(f != NULL);
    do {
        CU_ASSERT_FATAL(fgets(line, sizeof(line), f) != NULL);
    } while (line[0] == '#');
    return f;
}

/* id,p,m,c,f,b,w,cap_over_fm,LB,opt */
static double read_exact(char *line, struct zb_plan_input *in)
{
    char *field[10], *at = line;
    double opt;
    int p;

    for (int i = 0; i < 10; i++) {
        field[i] = at;
        at += strcspn(at, ",\n") + 1;
    }
    p = atoi(field[1]);
    ZBT_OK(zb_plan_input_init(in, p, atoi(field[2]), ZB_PLACE_V, 2));
    in->c_cost = strtod(field[3], NULL);
    CU_ASSERT_EQUAL_FATAL(csv_list(field[4], in->f_cost, 2 * p), 2 * p);
    CU_ASSERT_EQUAL_FATAL(csv_list(field[5], in->b_cost, 2 * p), 2 * p);
    CU_ASSERT_EQUAL_FATAL(csv_list(field[6], in->w_cost, 2 * p), 2 * p);
    set_limit(in, strtod(field[7], NULL) * F_MEM);
    opt = strtod(field[9], NULL);
    return opt;
}

static void zbv_never_beats_proved_optimum(void)
{
    FILE *f = open_csv("tests/golden/plan_exact.csv");
    char line[LINE_MAX_BYTES];
    double sum = 0;
    int n = 0;

    for (; fgets(line, sizeof(line), f) != NULL; n++) {
        struct zb_plan_input in;
        struct zb_schedule *s = NULL;
        double opt = read_exact(line, &in);

        ZBT_OK(zb_plan_make("zbv", &in, &plan_quick, &s));
        CU_ASSERT(s->makespan >= opt - 1e-9);
        CU_ASSERT(isnan(s->lower_bound) || s->lower_bound <= opt + 1e-6);
        sum += s->makespan / opt - 1;
        zb_schedule_free(s);
        zb_plan_input_release(&in);
    }
    fclose(f);
    CU_ASSERT_EQUAL(n, 380);
    printf("\n  zbv is %.1f %% above the proved optima on average\n",
           100 * sum / n);
}

struct goal {
    int p, m;
    double f, b, w, c, alpha, mem, bound, optimum, best, reference;
};

/* p,m,f,b,w,c,alpha,max_mem_over_fm,LB_G,exact_opt,best_known_G,colossal_G */
static void read_goal(const char *line, struct goal *g)
{
    double x[12] = {0};

    for (int i = 0; i < 12; i++) {
        x[i] = strtod(line, NULL);
        line += strcspn(line, ",\n");
        line += *line == ',';
    }
    *g = (struct goal){.p = (int)x[0],
                       .m = (int)x[1],
                       .f = x[2],
                       .b = x[3],
                       .w = x[4],
                       .c = x[5],
                       .alpha = x[6],
                       .mem = x[7],
                       .bound = x[8],
                       .optimum = x[9],
                       .best = x[10],
                       .reference = x[11]};
}

static void check_goal(const struct goal *g)
{
    struct zb_plan_input in;
    struct zb_schedule *s = NULL;

    input_for("get_v_schedule", g->p, g->m, &in);
    set_costs(&in, g->f, g->b, g->w, g->c);
    set_limit(&in, g->mem * F_MEM);
    ZBT_OK(zb_plan_make("get_v_schedule", &in, &plan_quick, &s));
    CU_ASSERT(s->lower_bound <= g->best + 1e-6);
    /* The listed bounds know one more argument for m < p. */
    CU_ASSERT(s->lower_bound >= g->bound * (g->m < g->p ? 0.99 : 1) - 0.0011);
    CU_ASSERT(s->makespan >= s->lower_bound - 1e-9);
    CU_ASSERT(g->optimum == 0 || s->makespan >= g->optimum - 1e-9);
    CU_ASSERT(g->reference == 0 || s->makespan == g->reference);
    zb_schedule_free(s);
    zb_plan_input_release(&in);
}

static void bound_is_below_best_known_and_get_v_schedule_equals_known(void)
{
    FILE *f = open_csv("tests/golden/plan_goals.csv");
    char line[LINE_MAX_BYTES];
    int n = 0;

    for (; fgets(line, sizeof(line), f) != NULL; n++) {
        struct goal g;

        read_goal(line, &g);
        check_goal(&g);
    }
    fclose(f);
    CU_ASSERT_EQUAL(n, 265);
}

/* ---- random inputs ---- */

static double random_cost(struct zbt_rng *r, int is_whole)
{
    return is_whole ? (double)zbt_rand_in(r, 1, 40)
                    : (double)zbt_rand_in(r, 1, 40000) / 1000;
}

static void random_input(struct zbt_rng *r, const char *planner,
                         struct zb_plan_input *in)
{
    int is_whole = (int)zbt_rand_in(r, 0, 1);
    int is_equal = (int)zbt_rand_in(r, 0, 1);
    int is_equal_mem = (int)zbt_rand_in(r, 0, 3) > 0;

    input_for(planner, (int)zbt_rand_in(r, 1, 7), (int)zbt_rand_in(r, 1, 14),
              in);
    for (int v = 0; v < in->n_stage * in->n_chunk; v++) {
        int from = is_equal && v > 0 ? 0 : v;

        in->f_cost[v] = from < v ? in->f_cost[0] : random_cost(r, is_whole);
        in->b_cost[v] = from < v ? in->b_cost[0] : random_cost(r, is_whole);
        in->w_cost[v] = from < v ? in->w_cost[0] : random_cost(r, is_whole);
        if (!is_equal_mem) {
            in->b_mem[v] = -(double)zbt_rand_in(r, 0, 100);
            in->w_mem[v] = -(double)zbt_rand_in(r, 0, 100);
            in->f_mem[v] = -in->b_mem[v] - in->w_mem[v];
            if (zbt_rand_in(r, 0, 3) == 0) { /* B needs what F did not keep */
                in->f_mem[v] = (double)zbt_rand_in(r, 1, 20);
                in->b_mem[v] = -in->f_mem[v] - in->w_mem[v];
            }
        }
    }
    in->c_cost = zbt_rand_in(r, 0, 1) ? 0 : random_cost(r, is_whole);
    if (zbt_rand_in(r, 0, 3) > 0) {
        for (int i = 0; i < in->n_stage; i++) {
            in->max_mem[i] = (double)zbt_rand_in(r, 1, 150) / 100 *
                             in->f_mem[0] * 2 * in->n_stage;
        }
    }
}

/* Peak memory, added up again here. */
static void check_peaks(const struct zb_schedule *s,
                        const struct zb_plan_input *in)
{
    for (int i = 0; i < s->n_stage; i++) {
        double mem = 0, peak = 0;

        for (size_t j = 0; j < s->stages[i].n; j++) {
            const struct zb_node *node = &s->stages[i].node[j];
            int v = zb_virtual_stage(s->placement, s->n_stage, i, node->chunk);

            mem += node->type == ZB_NODE_F ? in->f_mem[v] : 0;
            peak = fmax(peak, mem + (node->type == ZB_NODE_B ||
                                             node->type == ZB_NODE_BW
                                         ? fmax(0, in->b_mem[v])
                                         : 0));
            mem += node->type == ZB_NODE_B    ? in->b_mem[v]
                   : node->type == ZB_NODE_W  ? in->w_mem[v]
                   : node->type == ZB_NODE_BW ? -in->f_mem[v]
                                              : 0;
        }
        CU_ASSERT_DOUBLE_EQUAL(mem, 0, 1e-3);
        CU_ASSERT_DOUBLE_EQUAL(peak, s->peak_mem[i], 1e-3);
        CU_ASSERT(peak <= in->max_mem[i] * (1 + 1e-8));
    }
}

/* Simulating again must not find anything earlier. */
static void check_times(struct zb_schedule *s, const struct zb_plan_input *in)
{
    double makespan = s->makespan, span = s->span, bubble = s->bubble_rate;

    ZBT_OK(zb_schedule_simulate(s, in));
    CU_ASSERT_DOUBLE_EQUAL(s->makespan, makespan, 1e-6);
    CU_ASSERT_DOUBLE_EQUAL(s->span, span, 1e-6);
    CU_ASSERT_DOUBLE_EQUAL(s->bubble_rate, bubble, 1e-9);
}

static double last_number(const char *text)
{
    const char *space = strrchr(text, ' ');
    const char *needs = strstr(text, "needs ");

    return strtod(needs != NULL ? needs + 6 : space, NULL);
}

/* A refusal names a stage and the least limit; with that, stage by stage, the
 * plan must succeed. */
static struct zb_schedule *plan_or_raise_limit(const char *planner,
                                               struct zb_plan_input *in,
                                               int *n_refused)
{
    struct zb_schedule *s = NULL;

    for (int i = 0; i <= in->n_stage; i++) {
        enum zb_status st = zb_plan_make(planner, in, &plan_quick, &s);
        const char *stage = strstr(zb_error_text(), "stage ");
        double need;
        int which;

        if (st == ZB_OK) {
            return s;
        }
        CU_ASSERT_EQUAL_FATAL(st, ZB_EINFEASIBLE);
        CU_ASSERT_FATAL(stage != NULL);
        which = atoi(stage + 6);
        need = last_number(zb_error_text());
        CU_ASSERT_FATAL(which >= 0 && which < in->n_stage);
        CU_ASSERT(need > in->max_mem[which]);
        in->max_mem[which] = need;
        (*n_refused)++;
    }
    CU_FAIL_FATAL("the limits named are not enough");
    return NULL;
}

static void planners_on_random_inputs_hold_all_promises(void)
{
    struct zbt_rng r = {20240501};
    int n = zbt_is_long() ? 20000 : 1500, n_refused = 0;

    for (int k = 0; k < n; k++) {
        for (int i = 0; zb_planner_name(i) != NULL; i++) {
            const char *planner = zb_planner_name(i);
            struct zb_plan_input in;
            struct zb_schedule *s;

            random_input(&r, planner, &in);
            s = plan_or_raise_limit(planner, &in, &n_refused);
            ZBT_OK(zb_schedule_check(s, &in));
            CU_ASSERT(isnan(s->lower_bound) ||
                      s->lower_bound <= s->makespan * (1 + 1e-9));
            check_peaks(s, &in);
            check_times(s, &in);
            zb_schedule_free(s);
            zb_plan_input_release(&in);
        }
    }
    CU_ASSERT(n_refused > n / 10);
}

static void zbv_with_room_for_one_microbatch_gives_schedule(void)
{
    for (int p = 1; p <= 8; p++) {
        struct zb_plan_input in;
        struct zb_schedule *s = NULL;

        input_for("zbv", p, 6, &in);
        set_limit(&in, 2 * F_MEM);
        ZBT_OK(zb_plan_make("zbv", &in, &plan_quick, &s));
        zb_schedule_free(s);
        set_limit(&in, 2 * F_MEM - 1);
        CU_ASSERT_EQUAL(zb_plan_make("zbv", &in, &plan_quick, &s),
                        ZB_EINFEASIBLE);
        CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "606208"));
        zb_plan_input_release(&in);
    }
}

/* ---- input ---- */

/* Sums of larger numbers might not be numbers any more. */
static void huge_costs_and_memory_are_refused(void)
{
    for (int i = 0; i < 3; i++) {
        struct zb_plan_input in;
        struct zb_schedule *s = NULL;

        ZBT_OK(zb_plan_input_init(&in, 2, 2, ZB_PLACE_V, 2));
        *(i == 0 ? &in.b_cost[3] : i == 1 ? &in.c_cost : &in.f_mem[3]) = 1e308;
        if (i == 2) {
            in.w_mem[3] = -1e308;
            in.b_mem[3] = 0;
        }
        for (int k = 0; zb_planner_name(k) != NULL; k++) {
            enum zb_placement place;
            int n_chunk;

            ZBT_OK(zb_planner_shape(zb_planner_name(k), &place, &n_chunk));
            if (place == ZB_PLACE_V) {
                CU_ASSERT_EQUAL(
                    zb_plan_make(zb_planner_name(k), &in, &plan_quick, &s),
                    ZB_EINVAL);
            }
        }
        zb_plan_input_release(&in);
    }
}

/* Circles of nodes that take no time are no order either. */
static void zbv_with_some_zero_costs_ends(void)
{
    static const double f[] = {1, 0, 0, 0, 3, 0}, b[] = {1, 0, 0, 0, 3, 1},
                        w[] = {1, 0, 0, 1, 0, 2}, mem[] = {1, 1, 0, 0, 1, 2},
                        w_mem[] = {-1, 0, 0, 0, -1, 0};
    struct zb_plan_opts o = plan_quick;
    struct zb_plan_input in;
    struct zb_schedule *s = NULL;

    ZBT_OK(zb_plan_input_init(&in, 3, 5, ZB_PLACE_V, 2));
    for (int v = 0; v < 6; v++) {
        in.f_cost[v] = f[v];
        in.b_cost[v] = b[v];
        in.w_cost[v] = w[v];
        in.f_mem[v] = mem[v];
        in.w_mem[v] = w_mem[v];
        in.b_mem[v] = -mem[v] - w_mem[v];
    }
    for (int i = 0; i < 3; i++) {
        in.max_mem[i] = 3;
    }
    o.objective = ZB_PLAN_STEADY;
    o.budget = 300000;
    ZBT_OK(zb_plan_make("zbv", &in, &o, &s));
    zb_schedule_free(s);
    zb_plan_input_release(&in);
}

/* The search must not take it for one that is over. */
static void huge_time_limit_gives_same_order_as_none(void)
{
    struct zb_plan_opts o = plan_quick;
    struct zb_plan_input in;
    struct zb_schedule *s[2] = {NULL, NULL};

    ZBT_OK(zb_plan_input_init(&in, 4, 9, ZB_PLACE_V, 2));
    set_costs(&in, 3, 5, 2, 1);
    o.budget = 200000;
    ZBT_OK(zb_plan_make("zbv", &in, &o, &s[0]));
    o.time_limit_ms = 1e300;
    ZBT_OK(zb_plan_make("zbv", &in, &o, &s[1]));
    CU_ASSERT_EQUAL(s[0]->makespan, s[1]->makespan);
    for (int i = 0; i < 4; i++) {
        CU_ASSERT_EQUAL_FATAL(s[0]->stages[i].n, s[1]->stages[i].n);
        for (size_t k = 0; k < s[0]->stages[i].n; k++) {
            CU_ASSERT_EQUAL(s[0]->stages[i].node[k].type,
                            s[1]->stages[i].node[k].type);
            CU_ASSERT_EQUAL(s[0]->stages[i].node[k].mb,
                            s[1]->stages[i].node[k].mb);
        }
    }
    zb_schedule_free(s[0]);
    zb_schedule_free(s[1]);
    zb_plan_input_release(&in);
}

static void bad_input_is_refused_by_name(void)
{
    struct zb_plan_input in;
    struct zb_schedule *s = NULL;

    CU_ASSERT_EQUAL(zb_plan_input_init(&in, 0, 1, ZB_PLACE_V, 2), ZB_EINVAL);
    CU_ASSERT_EQUAL(zb_plan_input_init(&in, 1, 0, ZB_PLACE_V, 2), ZB_EINVAL);
    CU_ASSERT_EQUAL(zb_plan_input_init(&in, 2, 2, ZB_PLACE_V, 1), ZB_EINVAL);
    CU_ASSERT_EQUAL(zb_plan_input_init(&in, 1 << 16, 1 << 20, ZB_PLACE_V, 2),
                    ZB_EINVAL);
    input_for("zbv", 2, 2, &in);
    CU_ASSERT_EQUAL(zb_plan_make("nonsense", &in, &plan_quick, &s), ZB_ECONFIG);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "nonsense"));
    CU_ASSERT_EQUAL(zb_plan_make("1f1b", &in, &plan_quick, &s), ZB_EINVAL);
    in.b_cost[3] = -1;
    CU_ASSERT_EQUAL(zb_plan_make("zbv", &in, &plan_quick, &s), ZB_EINVAL);
    CU_ASSERT_PTR_NOT_NULL(
        strstr(zb_error_text(), "B cost of virtual stage 3"));
    in.b_cost[3] = NAN;
    CU_ASSERT_EQUAL(zb_plan_make("zbv", &in, &plan_quick, &s), ZB_EINVAL);
    in.b_cost[3] = 1;
    in.w_mem[2] = -1;
    CU_ASSERT_EQUAL(zb_plan_make("zbv", &in, &plan_quick, &s), ZB_EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "virtual stage 2"));
    zb_plan_input_release(&in);
}

/* ---- failing allocations ---- */

static enum zb_status plan_once(const char *planner, int p, double factor)
{
    enum zb_placement placement = ZB_PLACE_V;
    struct zb_plan_input in;
    struct zb_schedule *s = NULL;
    enum zb_status st;
    int n_chunk = 0;

    ZB_TRY(zb_planner_shape(planner, &placement, &n_chunk));
    ZB_TRY(zb_plan_input_init(&in, p, 4, placement, n_chunk));
    set_limit(&in, factor * 2 * p * F_MEM);
    st = zb_plan_make(planner, &in, &plan_quick, &s);
    zb_schedule_free(s);
    if (st == ZB_OK) {
        s = NULL;
        st = zb_plan_forward_only(&in, &s);
        zb_schedule_free(s);
    }
    zb_plan_input_release(&in);
    return st;
}

static void planners_with_failing_allocation_leave_nothing(void)
{
    for (int i = 0; zb_planner_name(i) != NULL; i++) {
        for (int is_tight = 0; is_tight < 2; is_tight++) {
            double factor = is_tight && i < 2 ? 0.7 : 2;

            for (uint64_t k = 1;; k++) {
                int64_t before = zb_mem_live();
                enum zb_status st;
                int failed;

                zb_mem_fail_at(k);
                st = plan_once(zb_planner_name(i), 3, factor);
                failed = zb_mem_failed();
                zb_mem_fail_at(0);
                CU_ASSERT_EQUAL(zb_mem_live(), before);
                CU_ASSERT_EQUAL(st, failed ? ZB_ENOMEM : ZB_OK);
                if (!failed) {
                    break;
                }
            }
        }
    }
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(virtual_stage_of_v_runs_down_and_up),
        ZBT_CASE(virtual_stage_and_local_chunk_are_inverse),
        ZBT_CASE(makespan_and_peak_of_1f1b_follow_formula),
        ZBT_CASE(memory_that_b_adds_counts_from_its_start),
        ZBT_CASE(gpipe_runs_all_forward_then_all_backward_in_order),
        ZBT_CASE(forward_only_linear_follows_formula),
        ZBT_CASE(forward_only_every_placement_has_each_f_once),
        ZBT_CASE(planners_with_zero_costs_give_legal_schedules),
        ZBT_CASE(zbv_never_beats_proved_optimum),
        ZBT_CASE(bound_is_below_best_known_and_get_v_schedule_equals_known),
        ZBT_CASE(planners_on_random_inputs_hold_all_promises),
        ZBT_CASE(zbv_with_room_for_one_microbatch_gives_schedule),
        ZBT_CASE(bad_input_is_refused_by_name),
        ZBT_CASE(zbv_with_some_zero_costs_ends),
        ZBT_CASE(huge_costs_and_memory_are_refused),
        ZBT_CASE(huge_time_limit_gives_same_order_as_none),
        ZBT_CASE(planners_with_failing_allocation_leave_nothing),
    };

    return zbt_run("plan", cases, ZB_COUNT_OF(cases));
}
