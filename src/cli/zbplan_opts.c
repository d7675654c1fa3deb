/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "cli/zbplan_opts.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "zb/mem.h"

/* Values of options without a letter, above all letters. */
enum {
    OPT_PLANNER = 256,
    OPT_COST,
    OPT_F_COST,
    OPT_B_COST,
    OPT_W_COST,
    OPT_C_COST,
    OPT_MEM,
    OPT_F_MEM,
    OPT_B_MEM,
    OPT_W_MEM,
    OPT_MAX_MEM,
    OPT_OBJECTIVE,
    OPT_SEED,
    OPT_BUDGET,
    OPT_TIME_LIMIT,
    OPT_MESSAGES,
    OPT_CHECK,
    OPT_COMPARE
};

struct row {
    int key; /* letter, or one of the above */
    const char *name;
    const char *arg; /* NULL: takes none */
    const char *help;
};

static const char *format_name(int i)
{
    return i < ZB_N_PLAN_FORMATS ? zb_plan_format_str((enum zb_plan_format)i)
                                 : NULL;
}

static const struct row rows[] = {
    {'p', "stages", "P", "how many stages (devices)"},
    {'m', "microbatches", "M", "how many microbatches"},
    {OPT_PLANNER, "planner", "NAME",
     "who makes the schedule: file:PATH, or one of\n"},
    {OPT_COST, "cost", "F,B,W,C", "time of F, B, W and of a message (1,1,1,0)"},
    {OPT_F_COST, "f-cost", "LIST",
     "time of F per chunk in model order (2P values,\n"
     "P where a stage has one chunk)"},
    {OPT_B_COST, "b-cost", "LIST", "the same of B"},
    {OPT_W_COST, "w-cost", "LIST", "the same of W"},
    {OPT_C_COST, "c-cost", "C", "time of a message"},
    {OPT_MEM, "mem", "F,B,W",
     "change of memory by F, B and W; the sum is 0\n"
     "(303104,-172032,-131072)"},
    {OPT_F_MEM, "f-mem", "LIST", "the same per chunk, of F"},
    {OPT_B_MEM, "b-mem", "LIST", "of B"},
    {OPT_W_MEM, "w-mem", "LIST", "of W"},
    {OPT_MAX_MEM, "max-mem", "X",
     "most memory of a stage: absolute, a multiple of\n"
     "2P * F memory (1.0x, the default of zbv), none, or\n"
     "a list with one value per stage"},
    {OPT_OBJECTIVE, "objective", "NAME",
     "what a search makes small: step (default), the\n"
     "makespan, or steady, the span"},
    {OPT_SEED, "seed", "N", "of a search (0)"},
    {OPT_BUDGET, "budget", "MOVES",
     "how far a search goes (about 2 s of one core);\n"
     "0: no search"},
    {OPT_TIME_LIMIT, "time-limit", "MS",
     "end a search after so many milliseconds (0: none)"},
    {'f', "format", "NAME", "of the output, text (default) or another of\n"},
    {OPT_MESSAGES, "messages", NULL, "svg: draw the messages too"},
    {'o', "output", "FILE", "write there instead of standard output"},
    {OPT_CHECK, "check", "FILE",
     "verify a schedule file: exit status 0 if it is\n"
     "legal, else 1 and a message"},
    {OPT_COMPARE, "compare", NULL, "one table of all planners on these inputs"},
    {'h', "help", NULL, "print this help"},
    {'V', "version", NULL, "print the version"},
};

#define N_ROWS ZB_COUNT_OF(rows)

void zbplan_opts_usage(FILE *f)
{
    fputs("usage: zbplan -p P -m M [options]\n"
          "       zbplan [options] config.ini\n"
          "       zbplan --check FILE\n"
          "Try 'zbplan --help'.\n",
          f);
}

#define HELP_COLUMN 29 /* where the texts of the options begin */
#define HELP_WIDTH 78

/* "zbv, 1f1b, ..." in lines of their own. */
static void print_choice(const char *(*choice)(int i), FILE *f)
{
    int column = HELP_WIDTH;

    for (int i = 0; choice(i) != NULL; i++) {
        const char *end = choice(i + 1) != NULL ? "," : "";
        int n = (int)(strlen(choice(i)) + strlen(end));

        if (column + 1 + n > HELP_WIDTH) {
            fprintf(f, "%s%*s", i > 0 ? "\n" : "", HELP_COLUMN, "");
            column = HELP_COLUMN;
        } else {
            fputc(' ', f);
            column++;
        }
        column += fprintf(f, "%s%s", choice(i), end);
    }
    fputc('\n', f);
}

/* "  -f, --format NAME" in a column of its own, then the help lines. */
static void print_row(const struct row *row, FILE *f)
{
    char left[64], letter[8] = "    ";
    const char *line = row->help;

    if (row->key < 256) {
        snprintf(letter, sizeof(letter), "-%c, ", row->key);
    }
    snprintf(left, sizeof(left), "  %s--%s %s", letter, row->name,
             row->arg == NULL ? "" : row->arg);
    while (*line != '\0') {
        int len = (int)strcspn(line, "\n");

        fprintf(f, "%-*s%.*s\n", HELP_COLUMN, left, len, line);
        left[0] = '\0';
        line += len + (line[len] == '\n');
    }
    if (row->key == OPT_PLANNER) {
        print_choice(zb_planner_name, f);
    } else if (row->key == 'f') {
        print_choice(format_name, f);
    }
}

void zbplan_opts_help(FILE *f)
{
    zbplan_opts_usage(f);
    fputs("\nPlan, check, compare and draw pipeline schedules; touches no "
          "device.\n\n",
          f);
    for (size_t i = 0; i < N_ROWS; i++) {
        print_row(&rows[i], f);
    }
    fputs("\nManual: zbplan(1).\n", f);
}

/* ---- values ---- */

static enum zb_status parse_count(const char *name, const char *text, int least,
                                  int *value_out)
{
    char *end;
    long value;

    errno = 0;
    value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < least ||
        value > INT_MAX) {
        return zb_fail(ZB_EINVAL, "--%s '%s' is not a whole number >= %d", name,
                       text, least);
    }
    *value_out = (int)value;
    return ZB_OK;
}

static int parse_number(const char *text, size_t len, double *value_out)
{
    char copy[64], *end;

    if (len == 0 || len >= sizeof(copy)) {
        return 0;
    }
    memcpy(copy, text, len);
    copy[len] = '\0';
    *value_out = strtod(copy, &end);
    return *end == '\0' && isfinite(*value_out);
}

static enum zb_status bad_list(const char *name, const char *text)
{
    return zb_fail(ZB_EINVAL, "--%s '%.200s' is not a list of numbers", name,
                   text);
}

static int count_commas(const char *text)
{
    int n = 0;

    for (; *text != '\0'; text++) {
        n += *text == ',';
    }
    return n;
}

static enum zb_status parse_list(const char *name, const char *text,
                                 struct zbplan_list *list_out)
{
    int n = count_commas(text) + 1;
    double *x = zb_alloc_array((size_t)n, sizeof(*x));
    const char *at = text;

    if (x == NULL) {
        return ZB_ENOMEM;
    }
    for (int i = 0; i < n; i++) {
        size_t len = strcspn(at, ",");

        if (!parse_number(at, len, &x[i])) {
            zb_free(x);
            return bad_list(name, text);
        }
        at += len + (at[len] == ',');
    }
    zb_free(list_out->x);
    *list_out = (struct zbplan_list){.x = x, .n = n};
    return ZB_OK;
}

/* F,B,W and, with `last`, a fourth value. */
static enum zb_status parse_triple(const char *name, const char *text,
                                   struct zbplan_list list[3], double *last)
{
    struct zbplan_list all = {0};
    int n = last == NULL ? 3 : 4;

    ZB_TRY(parse_list(name, text, &all));
    if (all.n != n) {
        int got = all.n;

        zb_free(all.x);
        return zb_fail(ZB_EINVAL, "--%s '%.200s' has %d values: must be %s",
                       name, text, got, n == 3 ? "F,B,W" : "F,B,W,C");
    }
    for (int i = 0; i < 3; i++) {
        double *x = zb_alloc(sizeof(*x));

        if (x == NULL) {
            zb_free(all.x);
            return ZB_ENOMEM;
        }
        *x = all.x[i];
        zb_free(list[i].x);
        list[i] = (struct zbplan_list){.x = x, .n = 1};
    }
    if (last != NULL) {
        *last = all.x[3];
    }
    zb_free(all.x);
    return ZB_OK;
}

/* "1.5x", "3000000", "none", or a list of such values, all of one kind. */
static enum zb_status parse_max_mem(const char *text, struct zbplan_list *out)
{
    char *copy = zb_strdup(text);
    enum zb_status st = ZB_OK;
    int n_factors = 0, n = count_commas(text) + 1;

    if (copy == NULL) {
        return ZB_ENOMEM;
    }
    for (char *at = copy; *at != '\0'; at++) {
        if (*at == 'x' && (at[1] == ',' || at[1] == '\0')) {
            memmove(at, at + 1, strlen(at));
            n_factors++;
            at -= at > copy;
        }
    }
    if (strcmp(text, "none") == 0) {
        st = parse_list("max-mem", "0", out);
        if (st == ZB_OK) {
            out->x[0] = INFINITY;
        }
    } else if (n_factors != 0 && n_factors != n) {
        st = zb_fail(ZB_EINVAL,
                     "--max-mem '%.200s' mixes multiples and absolute values",
                     text);
    } else {
        st = parse_list("max-mem", copy, out);
        st = st == ZB_EINVAL ? bad_list("max-mem", text) : st;
    }
    if (st == ZB_OK) {
        out->is_factor = n_factors > 0;
    }
    zb_free(copy);
    return st;
}

static enum zb_status parse_objective(const char *text,
                                      enum zb_plan_objective *objective_out)
{
    for (int i = ZB_PLAN_STEP; i <= ZB_PLAN_STEADY; i++) {
        enum zb_plan_objective one = (enum zb_plan_objective)i;

        if (strcmp(text, zb_plan_objective_str(one)) == 0) {
            *objective_out = one;
            return ZB_OK;
        }
    }
    return zb_fail(ZB_EINVAL, "unknown objective '%.64s': step or steady",
                   text);
}

/* A whole number of 64 bits. */
static enum zb_status parse_large(const char *name, const char *text,
                                  uint64_t most, uint64_t *value_out)
{
    char *end;
    unsigned long long value;

    errno = 0;
    value = strtoull(text, &end, 10);
    if (!isdigit((unsigned char)text[0]) || *end != '\0' || errno != 0 ||
        value > most) {
        return zb_fail(ZB_EINVAL,
                       "--%s '%.64s' is not a whole number from 0 to %llu",
                       name, text, (unsigned long long)most);
    }
    *value_out = value;
    return ZB_OK;
}

static enum zb_status parse_budget(const char *text, int64_t *moves_out)
{
    uint64_t value = 0;

    ZB_TRY(parse_large("budget", text, INT64_MAX, &value));
    *moves_out = (int64_t)value;
    return ZB_OK;
}

static enum zb_status parse_time_limit(const char *text, double *ms_out)
{
    double value;

    if (!parse_number(text, strlen(text), &value) || value < 0) {
        return zb_fail(ZB_EINVAL, "--time-limit '%.64s' is not a number >= 0",
                       text);
    }
    *ms_out = value;
    return ZB_OK;
}

static enum zb_status parse_c_cost(const char *text, double *c_cost_out)
{
    double value;

    if (!parse_number(text, strlen(text), &value)) {
        return zb_fail(ZB_EINVAL, "--c-cost '%.64s' is not a number", text);
    }
    *c_cost_out = value;
    return ZB_OK;
}

static enum zb_status take_option(struct zbplan_opts *o, int key,
                                  const char *arg)
{
    switch (key) {
    case 'p':
        return parse_count("stages", arg, 1, &o->n_stage);
    case 'm':
        return parse_count("microbatches", arg, 1, &o->n_micro);
    case OPT_PLANNER:
        o->planner = arg;
        return ZB_OK;
    case OPT_COST:
        o->has_c_cost = 1;
        return parse_triple("cost", arg, o->cost, &o->c_cost);
    case OPT_F_COST:
    case OPT_B_COST:
    case OPT_W_COST:
        return parse_list(key == OPT_F_COST   ? "f-cost"
                          : key == OPT_B_COST ? "b-cost"
                                              : "w-cost",
                          arg, &o->cost[key - OPT_F_COST]);
    case OPT_C_COST:
        o->has_c_cost = 1;
        return parse_c_cost(arg, &o->c_cost);
    case OPT_MEM:
        return parse_triple("mem", arg, o->mem, NULL);
    case OPT_F_MEM:
    case OPT_B_MEM:
    case OPT_W_MEM:
        return parse_list(key == OPT_F_MEM   ? "f-mem"
                          : key == OPT_B_MEM ? "b-mem"
                                             : "w-mem",
                          arg, &o->mem[key - OPT_F_MEM]);
    case OPT_MAX_MEM:
        return parse_max_mem(arg, &o->max_mem);
    case OPT_OBJECTIVE:
        o->has_objective = 1;
        return parse_objective(arg, &o->search.objective);
    case OPT_SEED:
        return parse_large("seed", arg, UINT64_MAX, &o->search.seed);
    case OPT_BUDGET:
        return parse_budget(arg, &o->search.budget);
    case OPT_TIME_LIMIT:
        o->has_time_limit = 1;
        return parse_time_limit(arg, &o->search.time_limit_ms);
    case OPT_MESSAGES:
        o->has_messages = 1;
        return ZB_OK;
    case 'f':
        return zb_plan_format_find(arg, &o->format);
    case 'o':
        o->output = arg;
        return ZB_OK;
    case OPT_CHECK:
        o->check_path = arg;
        o->mode = ZBPLAN_CHECK;
        return ZB_OK;
    case OPT_COMPARE:
        o->mode = ZBPLAN_COMPARE;
        return ZB_OK;
    case 'h':
        o->mode = ZBPLAN_HELP;
        return ZB_OK;
    default:
        o->mode = ZBPLAN_VERSION;
        return ZB_OK;
    }
}

/* getopt's tables, from ours. */
static void fill_getopt(struct option *longs, char *shorts)
{
    *shorts++ = ':'; /* report a missing value as ':' */
    for (size_t i = 0; i < N_ROWS; i++) {
        longs[i] = (struct option){.name = rows[i].name,
                                   .has_arg = rows[i].arg != NULL,
                                   .val = rows[i].key};
        if (rows[i].key < 256) {
            *shorts++ = (char)rows[i].key;
            if (rows[i].arg != NULL) {
                *shorts++ = ':';
            }
        }
    }
    *shorts = '\0';
}

enum zb_status zbplan_opts_parse(struct zbplan_opts *o, int argc, char **argv)
{
    struct option longs[N_ROWS + 1] = {{0}};
    char shorts[2 * N_ROWS + 2];
    int key;

    *o = (struct zbplan_opts){.format = ZB_PLAN_TEXT};
    zb_plan_opts_init(&o->search);
    fill_getopt(longs, shorts);
    opterr = 0;
    optind = 1;
    while ((key = getopt_long(argc, argv, shorts, longs, NULL)) != -1) {
        if (key == ':') {
            return zb_fail(ZB_EINVAL, "%s needs a value", argv[optind - 1]);
        }
        if (key == '?') {
            return zb_fail(ZB_EINVAL, "unknown option %s", argv[optind - 1]);
        }
        ZB_TRY(take_option(o, key, optarg));
        if (o->mode == ZBPLAN_HELP || o->mode == ZBPLAN_VERSION) {
            return ZB_OK;
        }
    }
    if (optind + 1 < argc) {
        return zb_fail(ZB_EINVAL, "more than one configuration file: %s",
                       argv[optind + 1]);
    }
    o->config = argv[optind]; /* NULL after the last */
    if (o->planner == NULL && o->config == NULL) {
        o->planner = "zbv";
    }
    return ZB_OK;
}

void zbplan_opts_release(struct zbplan_opts *o)
{
    for (int i = 0; i < 3; i++) {
        zb_free(o->cost[i].x);
        zb_free(o->mem[i].x);
    }
    zb_free(o->max_mem.x);
    memset(o, 0, sizeof(*o));
}

/* ---- input of a plan ---- */

/* One value for all, or one per chunk; with `is_pair` two chunks of the list
 * make one. */
static enum zb_status spread(const char *name, const struct zbplan_list *list,
                             int n, int is_pair, double *out)
{
    int per = is_pair ? 2 : 1;

    for (int v = 0; v < n && list->n == 0 && is_pair; v++) {
        out[v] *= 2;
    }
    if (list->n == 0) {
        return ZB_OK;
    }
    if (list->n != 1 && list->n != n * per) {
        return zb_fail(ZB_EINVAL, "--%s has %d values: must be 1 or %d", name,
                       list->n, n * per);
    }
    for (int v = 0; v < n; v++) {
        out[v] = 0;
        for (int i = 0; i < per; i++) {
            out[v] += list->x[list->n == 1 ? 0 : v * per + i];
        }
    }
    return ZB_OK;
}

static double mean(const double *x, int n)
{
    double sum = 0;

    for (int i = 0; i < n; i++) {
        sum += x[i];
    }
    return sum / n;
}

double zbplan_memory_unit(const struct zb_plan_input *in, int is_pair)
{
    return 2 * in->n_stage * mean(in->f_mem, in->n_stage * in->n_chunk) /
           (is_pair ? 2 : 1);
}

static enum zb_status set_limits(const struct zbplan_opts *o, int is_pair,
                                 int is_limited, struct zb_plan_input *in)
{
    static const struct zbplan_list none;
    double one = 1, whole;
    struct zbplan_list deflt = {.x = &one, .n = 1, .is_factor = 1};
    const struct zbplan_list *l = o->max_mem.n > 0 ? &o->max_mem
                                  : is_limited     ? &deflt
                                                   : &none;

    if (l->n > 1 && l->n != in->n_stage) {
        return zb_fail(ZB_EINVAL, "--max-mem has %d values: must be 1 or %d",
                       l->n, in->n_stage);
    }
    whole = zbplan_memory_unit(in, is_pair);
    for (int i = 0; i < in->n_stage && l->n > 0; i++) {
        in->max_mem[i] = l->x[l->n == 1 ? 0 : i] * (l->is_factor ? whole : 1);
    }
    return ZB_OK;
}

static enum zb_status fill_input(const struct zbplan_opts *o, int is_pair,
                                 int is_limited, struct zb_plan_input *in)
{
    static const char *const cost_names[] = {"f-cost", "b-cost", "w-cost"};
    static const char *const mem_names[] = {"f-mem", "b-mem", "w-mem"};
    double *cost[] = {in->f_cost, in->b_cost, in->w_cost};
    double *mem[] = {in->f_mem, in->b_mem, in->w_mem};
    int n = in->n_stage * in->n_chunk;

    for (int i = 0; i < 3; i++) {
        ZB_TRY(spread(cost_names[i], &o->cost[i], n, is_pair, cost[i]));
        ZB_TRY(spread(mem_names[i], &o->mem[i], n, is_pair, mem[i]));
    }
    if (o->has_c_cost) {
        in->c_cost = o->c_cost;
    }
    return set_limits(o, is_pair, is_limited, in);
}

enum zb_status zbplan_opts_override(const struct zbplan_opts *o,
                                    struct zb_plan_input *in)
{
    return fill_input(o, 0, 0, in);
}

enum zb_status zbplan_opts_input(const struct zbplan_opts *o,
                                 enum zb_placement placement, int n_chunk,
                                 int is_pair, int is_limited,
                                 struct zb_plan_input *in_out)
{
    struct zb_plan_input in;
    enum zb_status st;

    ZB_TRY(zb_plan_input_init(&in, o->n_stage, o->n_micro, placement, n_chunk));
    st = fill_input(o, is_pair, is_limited, &in);
    if (st != ZB_OK) {
        zb_plan_input_release(&in);
        return st;
    }
    *in_out = in;
    return ZB_OK;
}
