/* SPDX-License-Identifier: MIT
 *
 * get_v_schedule against results of the reference generator
 * (tests/golden/v_schedule.txt, made by make_v_schedule.py).
 */
#include "config.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "plan_rig.h"
#include "zb/hash.h"
#include "zb/mem.h"
#include "zb/plan.h"
#include "zbt.h"

#define GOLDEN "tests/golden/v_schedule.txt"
#define LINE_MAX_BYTES 256

struct golden {
    int p, m;
    double f, b, w, c, mem;
};

static struct zb_schedule *plan(const struct golden *g)
{
    struct zb_plan_input in;
    struct zb_schedule *s = NULL;

    ZBT_OK(zb_plan_input_init(&in, g->p, g->m, ZB_PLACE_V, 2));
    for (int v = 0; v < 2 * g->p; v++) {
        in.f_cost[v] = g->f;
        in.b_cost[v] = g->b;
        in.w_cost[v] = g->w;
    }
    in.c_cost = g->c;
    for (int i = 0; i < g->p; i++) {
        in.max_mem[i] = g->mem * 2 * g->p * in.f_mem[0];
    }
    ZBT_OK(zb_plan_make("get_v_schedule", &in, NULL, &s));
    zb_plan_input_release(&in);
    return s;
}

static size_t count_nodes(const struct zb_schedule *s)
{
    size_t n = 0;

    for (int i = 0; i < s->n_stage; i++) {
        n += s->stages[i].n;
    }
    return n;
}

static void check_digest(const char *line)
{
    struct golden g;
    size_t n_nodes;
    uint64_t digest;
    struct zb_schedule *s;
    char *text;
    size_t len;

    CU_ASSERT_FATAL(sscanf(line, "%d %d %lf %lf %lf %lf %lf %zu %" SCNx64, &g.p,
                           &g.m, &g.f, &g.b, &g.w, &g.c, &g.mem, &n_nodes,
                           &digest) == 9);
    s = plan(&g);
    text = plan_rig_text(s, ZB_PLAN_NODES, &len);
    CU_ASSERT_EQUAL(count_nodes(s), n_nodes);
    CU_ASSERT_EQUAL(zb_hash(text, len), digest);
    if (zb_hash(text, len) != digest) {
        printf("\n  differs: %s", line);
    }
    free(text);
    zb_schedule_free(s);
}

static void check_full(const char *line, FILE *f)
{
    struct golden g;
    size_t n_nodes;
    struct zb_schedule *s;
    char *text, *at, wanted[LINE_MAX_BYTES];
    size_t all;

    CU_ASSERT_FATAL(sscanf(line, "full %d %d %lf %lf %lf %lf %lf %zu", &g.p,
                           &g.m, &g.f, &g.b, &g.w, &g.c, &g.mem,
                           &n_nodes) == 8);
    s = plan(&g);
    text = at = plan_rig_text(s, ZB_PLAN_NODES, &all);
    CU_ASSERT_EQUAL_FATAL(count_nodes(s), n_nodes);
    for (size_t i = 0; i < n_nodes; i++) {
        size_t len = strcspn(at, "\n") + 1;

        CU_ASSERT_FATAL(fgets(wanted, sizeof(wanted), f) != NULL);
        CU_ASSERT_EQUAL(strncmp(at, wanted, len), 0);
        if (strncmp(at, wanted, len) != 0) {
            printf("\n  node %zu of p %d m %d: is     %.*s  should be %s", i,
                   g.p, g.m, (int)len, at, wanted);
        }
        at += len;
    }
    free(text);
    zb_schedule_free(s);
}

/* Walk the golden file; digests or full cases. */
static int walk(int want_full)
{
    FILE *f = fopen(zbt_source_path(GOLDEN), "r");
    char line[LINE_MAX_BYTES];
    int n = 0;

    CU_ASSERT_FATAL(f != NULL);
    while (fgets(line, sizeof(line), f) != NULL) {
        int is_full = strncmp(line, "full ", 5) == 0;

        if (line[0] == '#' || is_full != want_full) {
            continue;
        }
        if (is_full) {
            check_full(line, f);
            n++;
        } else if (line[strspn(line, "0123456789 ")] != 'F') {
            int spaces = 0;

            for (const char *c = line; *c != '\0'; c++) {
                spaces += *c == ' ';
            }
            if (spaces == 8) {
                check_digest(line);
                n++;
            }
        }
    }
    fclose(f);
    return n;
}

static void get_v_schedule_small_cases_equal_reference_node_for_node(void)
{
    CU_ASSERT_EQUAL(walk(1), 4);
}

static void get_v_schedule_grid_equals_reference_digests(void)
{
    CU_ASSERT_EQUAL(walk(0), 5 * 4 * 6 * 2 + 7 * 8);
}

/* With these fractions the reference puts a W before its B: an end time minus
 * a cost misses the end of the node before. The order is kept, and runs. */
static void get_v_schedule_with_rounding_keeps_order_and_runs(void)
{
    static const struct golden cases[] = {
        {1, 14, 40 / 3.0, 1.6, 0, 10, 1},
        {5, 6, 32 / 3.0, 7, 0, 0, 1},
        {11, 21, 1.3, 1.5625, 20 / 7.0, 0, 1.1},
        {7, 19, 3.5, 25 / 3.0, 13 / 3.0, 0, 3},
    };

    for (size_t i = 0; i < ZB_COUNT_OF(cases); i++) {
        struct zb_schedule *s = plan(&cases[i]);

        ZBT_OK(zb_schedule_check(s, NULL));
        CU_ASSERT_EQUAL(count_nodes(s),
                        (size_t)(6 * s->n_stage * s->n_micro +
                                 8 * (s->n_stage - 1) * s->n_micro +
                                 3 * s->n_stage - 2));
        zb_schedule_free(s);
    }
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(get_v_schedule_small_cases_equal_reference_node_for_node),
        ZBT_CASE(get_v_schedule_grid_equals_reference_digests),
        ZBT_CASE(get_v_schedule_with_rounding_keeps_order_and_runs),
    };

    return zbt_run("plan_golden", cases, ZB_COUNT_OF(cases));
}
