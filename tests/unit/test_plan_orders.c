/* SPDX-License-Identifier: MIT
 *
 * The orders of the literature: PyTorch's own, node for node
 * (tests/golden/torch_orders.txt), the papers' formulas for memory and bubble,
 * and that every size can be planned.
 */
#include "config.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "zb/mem.h"
#include "zb/plan.h"
#include "plan_quick.h"
#include "zbt.h"

#define LINE_MAX_BYTES 4096
#define F_MEM 303104.0

static const char *const names[] = {"interleaved", "zb-h1", "zb-h2",
                                    "v-half",      "v-min", "pytorch-zbv",
                                    "dualpipev"};

static void input_for(const char *planner, int p, int m, int n_chunk,
                      struct zb_plan_input *in)
{
    enum zb_placement placement = ZB_PLACE_V;
    int usual = 0;

    ZBT_OK(zb_planner_shape(planner, &placement, &usual));
    ZBT_OK(
        zb_plan_input_init(in, p, m, placement, n_chunk > 0 ? n_chunk : usual));
}

static struct zb_schedule *plan(const char *planner, struct zb_plan_input *in)
{
    struct zb_schedule *s = NULL;

    ZBT_OK(zb_plan_make(planner, in, &plan_quick, &s));
    zb_plan_input_release(in);
    return s;
}

/* A schedule for equal costs. */
static struct zb_schedule *plan_costs(const char *planner, int p, int m,
                                      double f, double b, double w, double c)
{
    struct zb_plan_input in;

    input_for(planner, p, m, 0, &in);
    for (int v = 0; v < p * in.n_chunk; v++) {
        in.f_cost[v] = f;
        in.b_cost[v] = b;
        in.w_cost[v] = w;
    }
    in.c_cost = c;
    return plan(planner, &in);
}

/* ---- PyTorch ---- */

/* The next compute node of a stream. */
static const struct zb_node *next_compute(const struct zb_stage_nodes *st,
                                          size_t *at)
{
    while (*at < st->n) {
        const struct zb_node *node = &st->node[(*at)++];

        if (zb_node_is_compute(node->type)) {
            return node;
        }
    }
    return NULL;
}

static int is_node(const struct zb_schedule *s, int stage,
                   const struct zb_node *node, enum zb_node_type type, int virt,
                   int mb)
{
    return node != NULL && node->type == type && node->mb == mb &&
           zb_virtual_stage(s->placement, s->n_stage, stage, node->chunk) ==
               virt;
}

/* PyTorch's I is B here; its B is BW, or B and W where BW is not used. */
static int is_action(const struct zb_schedule *s, int stage, size_t *at,
                     const char *action)
{
    const struct zb_stage_nodes *st = &s->stages[stage];
    int virt, mb;
    char type;

    if (sscanf(action, "%d%c%d", &virt, &type, &mb) != 3) {
        return 0;
    }
    if (type == 'F' || type == 'W' || type == 'I') {
        enum zb_node_type t = type == 'F'   ? ZB_NODE_F
                              : type == 'W' ? ZB_NODE_W
                                            : ZB_NODE_B;

        return is_node(s, stage, next_compute(st, at), t, virt, mb);
    }
    if (s->placement == ZB_PLACE_LOOP) {
        return is_node(s, stage, next_compute(st, at), ZB_NODE_BW, virt, mb);
    }
    return is_node(s, stage, next_compute(st, at), ZB_NODE_B, virt, mb) &&
           is_node(s, stage, next_compute(st, at), ZB_NODE_W, virt, mb);
}

static void check_stage(const struct zb_schedule *s, int stage, char *line)
{
    size_t at = 0, n = 0;
    char *rest = NULL;

    for (char *action = strtok_r(line, ",\n", &rest); action != NULL;
         action = strtok_r(NULL, ",\n", &rest)) {
        int is_same = is_action(s, stage, &at, action);

        CU_ASSERT(is_same);
        if (!is_same) {
            printf("\n  %s p %d m %d stage %d: action %zu should be %s",
                   s->planner, s->n_stage, s->n_micro, stage, n, action);
            return;
        }
        n++;
    }
    CU_ASSERT_PTR_NULL(next_compute(&s->stages[stage], &at));
}

static int check_torch(const char *planner)
{
    FILE *f = fopen(zbt_source_path("tests/golden/torch_orders.txt"), "r");
    char line[LINE_MAX_BYTES], name[32];
    int p, m, n_chunk, n = 0;

    CU_ASSERT_FATAL(f != NULL);
    while (fgets(line, sizeof(line), f) != NULL) {
        struct zb_plan_input in;
        struct zb_schedule *s;

        if (sscanf(line, "%31[a-z-] %d %d %d", name, &p, &m, &n_chunk) != 4 ||
            strcmp(name, planner) != 0) {
            continue;
        }
        input_for(planner, p, m, n_chunk, &in);
        s = plan(planner, &in);
        for (int i = 0; i < p; i++) {
            CU_ASSERT_FATAL(fgets(line, sizeof(line), f) != NULL);
            check_stage(s, i, line);
        }
        zb_schedule_free(s);
        n++;
    }
    fclose(f);
    return n;
}

static void pytorch_zbv_has_order_of_torch(void)
{
    CU_ASSERT_EQUAL(check_torch("pytorch-zbv"), 25);
}

static void dualpipev_has_order_of_torch(void)
{
    CU_ASSERT_EQUAL(check_torch("dualpipev"), 15);
}

static void interleaved_has_order_of_torch(void)
{
    CU_ASSERT(check_torch("interleaved") >= 40);
}

/* ---- all sizes ---- */

/* zb_plan_make() proves each schedule; whatever is refused has no right to. */
static void orders_of_all_sizes_are_legal(void)
{
    int most = zbt_is_long() ? 40 : 20;

    for (int p = 1; p <= 9; p++) {
        for (int m = 1; m <= most; m++) {
            for (size_t i = 0; i < ZB_COUNT_OF(names); i++) {
                zb_schedule_free(plan_costs(names[i], p, m, 1, 1, 1, 0));
                zb_schedule_free(plan_costs(names[i], p, m, 3, 5, 0, 2));
            }
        }
    }
}

static void interleaved_with_many_chunks_is_legal(void)
{
    struct zb_plan_input in;

    for (int p = 1; p <= 6; p++) {
        for (int m = 1; m <= 15; m++) {
            for (int n_chunk = 3; n_chunk <= 6; n_chunk++) {
                input_for("interleaved", p, m, n_chunk, &in);
                zb_schedule_free(plan("interleaved", &in));
            }
        }
    }
}

static void interleaved_with_one_chunk_is_refused(void)
{
    struct zb_plan_input in;
    struct zb_schedule *s = NULL;

    input_for("interleaved", 2, 2, 1, &in);
    CU_ASSERT_EQUAL(zb_plan_make("interleaved", &in, &plan_quick, &s),
                    ZB_EINVAL);
    zb_plan_input_release(&in);
}

/* ---- formulas ---- */

/* Narayanan et al. 2021: of the ideal time m (f + b) the pipeline is idle
 * (p - 1) (f + b) / n_chunk. */
static void interleaved_idles_one_over_chunks_of_1f1b(void)
{
    struct zb_plan_input in;

    for (int p = 2; p <= 8; p++) {
        for (int n_chunk = 2; n_chunk <= 4; n_chunk++) {
            struct zb_schedule *s;

            input_for("interleaved", p, 3 * p, n_chunk, &in);
            s = plan("interleaved", &in);
            CU_ASSERT_EQUAL(s->makespan, 3.0 * (3 * p * n_chunk + p - 1));
            zb_schedule_free(s);
        }
    }
}

static double largest_peak(const struct zb_schedule *s)
{
    double peak = 0;

    for (int i = 0; i < s->n_stage; i++) {
        peak = fmax(peak, s->peak_mem[i]);
    }
    return peak / F_MEM;
}

/* 2401.10241, table 2: bubble (p-1) (f+b-w) at p microbatches of memory. */
static void zb_h1_has_bubble_and_memory_of_paper(void)
{
    for (int p = 1; p <= 9; p++) {
        for (int m = 2 * p; m <= 4 * p; m += p) {
            struct zb_schedule *s = plan_costs("zb-h1", p, m, 2, 2, 2, 0);

            CU_ASSERT_EQUAL(s->span, 6 * m + (p - 1) * 2);
            CU_ASSERT_EQUAL(s->makespan, 6 * m + (p - 1) * 2);
            CU_ASSERT_EQUAL(largest_peak(s), p);
            zb_schedule_free(s);
        }
    }
}

/* 2401.10241, table 2: bubble (p-1) (f+b-2w) at 2p-1 microbatches. */
static void zb_h2_has_bubble_and_memory_of_paper(void)
{
    for (int p = 1; p <= 9; p++) {
        for (int m = 2 * p; m <= 4 * p; m += p) {
            struct zb_schedule *s = plan_costs("zb-h2", p, m, 2, 2, 2, 0);

            CU_ASSERT_EQUAL(s->span, 6 * m);
            CU_ASSERT_EQUAL(largest_peak(s), 2 * p - 1);
            zb_schedule_free(s);
        }
    }
}

/* 2401.10241, section 6: no bubble, and 1F1B's memory: p microbatches of two
 * chunks. DeepSeek's DualPipeV keeps one chunk more. */
static void v_orders_have_memory_of_papers(void)
{
    for (int p = 1; p <= 9; p++) {
        for (int m = 2 * p; m <= 4 * p; m += p) {
            struct zb_schedule *s = plan_costs("pytorch-zbv", p, m, 1, 1, 1, 0);

            CU_ASSERT_EQUAL(s->span, 6 * m);
            CU_ASSERT_EQUAL(largest_peak(s), 2 * p);
            zb_schedule_free(s);
            s = plan_costs("dualpipev", p, m, 1, 1, 1, 0);
            CU_ASSERT_EQUAL(largest_peak(s), 2 * p + 1);
            zb_schedule_free(s);
        }
    }
}

/* 2405.15362, table 1: (p+2)/2 and (p+4)/3 microbatches of two chunks. */
static void v_half_and_v_min_have_memory_of_paper(void)
{
    for (int p = 1; p <= 20; p++) {
        for (int m = 1; m <= 3 * p + 1; m += p) {
            struct zb_schedule *s = plan_costs("v-half", p, m, 3, 4, 2, 1);

            CU_ASSERT(largest_peak(s) <= p + 2);
            zb_schedule_free(s);
            s = plan_costs("v-min", p, m, 3, 4, 2, 1);
            CU_ASSERT(largest_peak(s) <= 2. * (p + 4) / 3 + 1e-9);
            zb_schedule_free(s);
        }
    }
}

/* ---- known makespans ---- */

static void check_makespan(const char *planner, int p, int m,
                           const double *cost, const char *known)
{
    struct zb_schedule *s;

    if (*known == ',' || *known == '\n') {
        return;
    }
    s = plan_costs(planner, p, m, cost[0], cost[1], cost[2], cost[3]);
    CU_ASSERT(s->makespan <= atof(known));
    if (s->makespan > atof(known)) {
        printf("\n  %s p %d m %d (%g %g %g %g): %g, known %s", planner, p, m,
               cost[0], cost[1], cost[2], cost[3], s->makespan, known);
    }
    zb_schedule_free(s);
}

static void v_orders_are_no_longer_than_their_authors(void)
{
    static const char *const planner[] = {"pytorch-zbv", "v-half", "v-min"};
    FILE *f = fopen(zbt_source_path("tests/golden/plan_orders.csv"), "r");
    char line[LINE_MAX_BYTES];
    int n = 0;

    CU_ASSERT_FATAL(f != NULL);
    while (fgets(line, sizeof(line), f) != NULL) {
        int p, m, at;
        double c[4];

        if (sscanf(line, "%d,%d,%lf,%lf,%lf,%lf,%n", &p, &m, &c[0], &c[1],
                   &c[2], &c[3], &at) != 6 ||
            (p * m > 300 && !zbt_is_long())) {
            continue;
        }
        for (int i = 0; i < 3; i++) {
            check_makespan(planner[i], p, m, c, &line[at]);
            at += (int)strcspn(&line[at], ",\n") + 1;
        }
        n++;
    }
    fclose(f);
    CU_ASSERT(n >= 80);
}

/* ---- size ---- */

static int has_host_memory(double bytes)
{
    return (double)sysconf(_SC_AVPHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) >=
           bytes;
}

/* With unit costs the last stage can not begin before p - 1 units, has 6 m to
 * do; each of the 2 p - 2 boundaries between stages has 4 message nodes for
 * each microbatch. */
static void thousand_stages_with_4096_microbatches_are_legal(void)
{
    static const char *const planner[] = {"zbv", "get_v_schedule"};
    enum { P = 1024, M = 4096 };

    if (!zbt_is_long() || !has_host_memory(4e9)) {
        return;
    }
    for (size_t i = 0; i < ZB_COUNT_OF(planner); i++) {
        struct zb_plan_opts opts;
        struct zb_plan_input in;
        struct zb_schedule *s = NULL;
        size_t n = 0;

        zb_plan_opts_init(&opts);
        opts.budget = 0;
        ZBT_OK(zb_plan_input_init(&in, P, M, ZB_PLACE_V, 2));
        ZBT_OK(zb_plan_make(planner[i], &in, &opts, &s));
        CU_ASSERT_PTR_NOT_NULL_FATAL(s);
        ZBT_OK(zb_schedule_check(s, &in));
        for (int k = 0; k < P; k++) {
            for (size_t j = 0; j < s->stages[k].n; j++) {
                n += s->stages[k].node[j].type < ZB_NODE_POST_VALIDATION;
            }
        }
        CU_ASSERT_EQUAL(n, (size_t)M * (6 * P + 4 * (2 * P - 2)));
        CU_ASSERT(s->makespan >= 6 * M + P - 1);
        zb_schedule_free(s);
        zb_plan_input_release(&in);
    }
}

/* ---- no memory ---- */

static void orders_with_failing_allocation_leave_nothing(void)
{
    for (size_t i = 0; i < ZB_COUNT_OF(names); i++) {
        for (int k = 1;; k++) {
            struct zb_plan_input in;
            struct zb_schedule *s = NULL;
            int64_t before;
            int failed;
            enum zb_status st;

            input_for(names[i], 3, 4, 0, &in);
            before = zb_mem_live();
            zb_mem_fail_at(k);
            st = zb_plan_make(names[i], &in, &plan_quick, &s);
            failed = zb_mem_failed();
            zb_mem_fail_at(0);
            CU_ASSERT_EQUAL(st, failed ? ZB_ENOMEM : ZB_OK);
            zb_schedule_free(s);
            CU_ASSERT_EQUAL(zb_mem_live(), before);
            zb_plan_input_release(&in);
            if (!failed) {
                break;
            }
        }
    }
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(pytorch_zbv_has_order_of_torch),
        ZBT_CASE(dualpipev_has_order_of_torch),
        ZBT_CASE(interleaved_has_order_of_torch),
        ZBT_CASE(orders_of_all_sizes_are_legal),
        ZBT_CASE(interleaved_with_many_chunks_is_legal),
        ZBT_CASE(interleaved_with_one_chunk_is_refused),
        ZBT_CASE(interleaved_idles_one_over_chunks_of_1f1b),
        ZBT_CASE(zb_h1_has_bubble_and_memory_of_paper),
        ZBT_CASE(zb_h2_has_bubble_and_memory_of_paper),
        ZBT_CASE(v_orders_have_memory_of_papers),
        ZBT_CASE(v_half_and_v_min_have_memory_of_paper),
        ZBT_CASE(v_orders_are_no_longer_than_their_authors),
        ZBT_CASE(thousand_stages_with_4096_microbatches_are_legal),
        ZBT_CASE(orders_with_failing_allocation_leave_nothing),
    };
    return zbt_run("plan orders", cases, ZB_COUNT_OF(cases));
}
