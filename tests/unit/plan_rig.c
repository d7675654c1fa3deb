/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "plan_quick.h"
#include "plan_rig.h"

#include <stdlib.h>
#include <string.h>

#include "zbt.h"

struct zb_schedule *plan_rig_make(const char *planner, int p, int m, double f,
                                  double c)
{
    enum zb_placement placement = ZB_PLACE_V;
    struct zb_plan_input in;
    struct zb_schedule *s = NULL;
    int n_chunk = 0;

    ZBT_OK(zb_planner_shape(planner, &placement, &n_chunk));
    ZBT_OK(zb_plan_input_init(&in, p, m, placement, n_chunk));
    for (int v = 0; v < p * n_chunk; v++) {
        in.f_cost[v] = f;
    }
    in.c_cost = c;
    ZBT_OK(zb_plan_make(planner, &in, &plan_quick, &s));
    zb_plan_input_release(&in);
    return s;
}

/* The schedule as text; free() it. */
char *plan_rig_text(const struct zb_schedule *s, enum zb_plan_format format,
                    size_t *len_out)
{
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);

    CU_ASSERT_FATAL(f != NULL);
    ZBT_OK(zb_schedule_write(s, format, f));
    fclose(f);
    *len_out = len;
    return text;
}

const char *plan_rig_file(const char *text, size_t len)
{
    const char *path = zbt_scratch_path("schedule");
    FILE *f = fopen(path, "wb");

    CU_ASSERT_FATAL(f != NULL);
    CU_ASSERT_FATAL(fwrite(text, 1, len, f) == len);
    fclose(f);
    return path;
}

static int node_equal(const struct zb_node *a, const struct zb_node *b)
{
    return a->type == b->type && a->chunk == b->chunk && a->mb == b->mb &&
           a->start == b->start && a->end == b->end;
}

/* The same compute nodes; with `all` the same of every type. */
void plan_rig_same(const struct zb_schedule *a, const struct zb_schedule *b,
                   int all)
{
    CU_ASSERT_EQUAL_FATAL(a->n_stage, b->n_stage);
    CU_ASSERT_EQUAL(a->n_micro, b->n_micro);
    CU_ASSERT_EQUAL(a->n_chunk, b->n_chunk);
    if (a->n_stage > 1) { /* on one stage a loop of 2 chunks is a V */
        CU_ASSERT_EQUAL(a->placement, b->placement);
    }
    CU_ASSERT_EQUAL(a->makespan, b->makespan);
    CU_ASSERT_EQUAL(a->span, b->span);
    CU_ASSERT_DOUBLE_EQUAL(a->bubble_rate, b->bubble_rate, 1e-12);
    for (int i = 0; i < a->n_stage; i++) {
        size_t j = 0, k = 0;

        for (;;) {
            while (j < a->stages[i].n && !all &&
                   !zb_node_is_compute(a->stages[i].node[j].type)) {
                j++;
            }
            while (k < b->stages[i].n && !all &&
                   !zb_node_is_compute(b->stages[i].node[k].type)) {
                k++;
            }
            if (j == a->stages[i].n || k == b->stages[i].n) {
                break;
            }
            CU_ASSERT(
                node_equal(&a->stages[i].node[j++], &b->stages[i].node[k++]));
        }
        CU_ASSERT(j == a->stages[i].n && k == b->stages[i].n);
    }
}

void plan_rig_legal(const char *text, enum zb_placement placement,
                    int n_chunk)
{
    struct zb_schedule *s = NULL;

    ZBT_OK(zb_schedule_read(plan_rig_file(text, strlen(text)), &s));
    ZBT_OK(zb_schedule_check(s, NULL));
    CU_ASSERT_EQUAL(s->placement, placement);
    CU_ASSERT_EQUAL(s->n_chunk, n_chunk);
    zb_schedule_free(s);
}

void plan_rig_refused(const char *text, const char *part)
{
    struct zb_schedule *s = NULL;
    const char *path = plan_rig_file(text, strlen(text));
    enum zb_status st = zb_schedule_read(path, &s);

    CU_ASSERT_EQUAL(st, ZB_ECONFIG);
    CU_ASSERT_EQUAL(strncmp(zb_error_text(), path, strlen(path)), 0);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), part));
    if (strstr(zb_error_text(), part) == NULL) {
        printf("\n  is: %s\n  should name: %s\n", zb_error_text(), part);
    }
    zb_schedule_free(s);
}
