/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "plan_cases.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define F_MEM 303104
#define LINE_MAX_BYTES 8192
#define MAX_FIELDS 20

static const char *const names[] = {"goals", "exact", "unequal"};

const char *plan_table_str(enum plan_table table)
{
    return names[table];
}

/* Cut a line at its commas; fields that are not there are empty. */
static void split(char *line, char **field)
{
    char *at = line;

    for (int i = 0; i < MAX_FIELDS; i++) {
        field[i] = at;
        at += strcspn(at, ",\r\n");
        if (*at != '\0') {
            *at++ = '\0';
        }
    }
}

static double number(char *const *field, int i)
{
    return strtod(field[i], NULL);
}

/* As many numbers as there are chunks; 0 when there are fewer. */
static int numbers(const char *at, double *x, int n)
{
    char *end = NULL;

    for (int i = 0; i < n; i++) {
        x[i] = strtod(at, &end);
        if (end == at) {
            return 0;
        }
        at = end;
    }
    return 1;
}

static enum zb_status init(struct plan_case *k, int p, int m, double c,
                           double limit)
{
    ZB_TRY(zb_plan_input_init(&k->in, p, m, ZB_PLACE_V, 2));
    k->in.c_cost = c;
    for (int s = 0; s < p; s++) {
        k->in.max_mem[s] = limit;
    }
    return ZB_OK;
}

/* p,m,f,b,w,c,alpha,max_mem_over_fm,LB_G,exact_opt,best_known_G,... */
static enum zb_status read_goal(char *const *field, struct plan_case *k)
{
    int p = atoi(field[0]), m = atoi(field[1]);

    ZB_TRY(init(k, p, m, number(field, 5), number(field, 7) * F_MEM));
    for (int v = 0; v < 2 * p; v++) {
        k->in.f_cost[v] = number(field, 2);
        k->in.b_cost[v] = number(field, 3);
        k->in.w_cost[v] = number(field, 4);
    }
    k->alpha = number(field, 6);
    k->bound = number(field, 8);
    k->best = number(field, 10);
    if (field[9][0] != '\0') {
        k->best = fmin(k->best, number(field, 9));
    }
    snprintf(k->name, sizeof(k->name), "(%d,%d,(%s,%s,%s,%s)) at %s", p, m,
             field[2], field[3], field[4], field[5], field[6]);
    return ZB_OK;
}

static enum zb_status read_costs(char *const *field, struct plan_case *k)
{
    int n = 2 * k->in.n_stage;

    if (!numbers(field[0], k->in.f_cost, n) ||
        !numbers(field[1], k->in.b_cost, n) ||
        !numbers(field[2], k->in.w_cost, n)) {
        return zb_fail(ZB_ECONFIG, "costs are missing");
    }
    return ZB_OK;
}

/* id,p,m,c,f,b,w,cap_over_fm,LB,opt */
static enum zb_status read_exact(char *const *field, struct plan_case *k)
{
    int p = atoi(field[1]), m = atoi(field[2]);

    ZB_TRY(init(k, p, m, number(field, 3), number(field, 7) * F_MEM));
    ZB_TRY(read_costs(&field[4], k));
    k->alpha = 0;
    k->bound = number(field, 8);
    k->best = number(field, 9);
    snprintf(k->name, sizeof(k->name), "exact %s (%d,%d)", field[0], p, m);
    return ZB_OK;
}

/* name,p,m,alpha,c,f,b,w,f_mem,b_mem,w_mem,max_mem,LB_G,best_seen_G,... */
static enum zb_status read_unequal(char *const *field, struct plan_case *k)
{
    int p = atoi(field[1]), m = atoi(field[2]);

    ZB_TRY(init(k, p, m, number(field, 4), number(field, 11)));
    ZB_TRY(read_costs(&field[5], k));
    if (!numbers(field[8], k->in.f_mem, 2 * p) ||
        !numbers(field[9], k->in.b_mem, 2 * p) ||
        !numbers(field[10], k->in.w_mem, 2 * p)) {
        return zb_fail(ZB_ECONFIG, "memory is missing");
    }
    k->alpha = number(field, 3);
    k->bound = number(field, 12);
    k->best = number(field, 13);
    snprintf(k->name, sizeof(k->name), "%s (%d,%d) at %s", field[0], p, m,
             field[3]);
    return ZB_OK;
}

enum zb_status plan_cases_open(struct plan_cases *c, enum plan_table table,
                               const char *folder)
{
    char path[4096];

    snprintf(path, sizeof(path), "%s/plan_%s.csv", folder,
             plan_table_str(table));
    *c = (struct plan_cases){.table = table, .f = fopen(path, "r")};
    if (c->f == NULL) {
        return zb_fail(ZB_EIO, "%s: cannot open", path);
    }
    return ZB_OK;
}

enum zb_status plan_cases_next(struct plan_cases *c, struct plan_case *k_out,
                               int *has_out)
{
    static enum zb_status (*const read[])(char *const *field,
                                          struct plan_case *k) = {
        [PLAN_GOALS] = read_goal,
        [PLAN_EXACT] = read_exact,
        [PLAN_UNEQUAL] = read_unequal,
    };
    struct plan_case k = {.alpha = 0};
    char line[LINE_MAX_BYTES], *field[MAX_FIELDS];

    do {
        *has_out = fgets(line, sizeof(line), c->f) != NULL;
        if (!*has_out) {
            return ZB_OK;
        }
        c->line++;
    } while (line[0] == '#' || strstr(line, "LB") != NULL);
    split(line, field);
    if (read[c->table](field, &k) != ZB_OK || !(k.bound > 0) ||
        !(k.best >= k.bound - 1e-9)) {
        plan_case_release(&k);
        return zb_fail(ZB_ECONFIG, "plan_%s.csv:%d: not a case",
                       plan_table_str(c->table), c->line);
    }
    *k_out = k;
    return ZB_OK;
}

void plan_case_release(struct plan_case *k)
{
    zb_plan_input_release(&k->in);
}

void plan_cases_close(struct plan_cases *c)
{
    if (c->f != NULL) {
        fclose(c->f);
    }
    c->f = NULL;
}
