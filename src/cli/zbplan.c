/* SPDX-License-Identifier: MIT
 *
 * zbplan: plan, check, compare and draw pipeline schedules.
 */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/zbplan_config.h"
#include "cli/zbplan_opts.h"
#include "zb/file.h"
#include "zb/mem.h"

enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

static int report(enum zb_status st)
{
    if (st == ZB_OK) {
        return EXIT_DONE;
    }
    fprintf(stderr, "zbplan: %s\n", zb_error_text());
    return st == ZB_EINVAL || st == ZB_ECONFIG || st == ZB_EUNSUPPORTED
               ? EXIT_USAGE
               : EXIT_FAILED;
}

static int is_file_planner(const char *planner)
{
    return strncmp(planner, "file:", 5) == 0;
}

/* ---- output ---- */

/* How wide the terminal is; 0 when that is not known. */
static int terminal_columns(void)
{
    struct winsize size;
    const char *text = getenv("COLUMNS");
    long n;

    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
        return size.ws_col;
    }
    n = text != NULL ? strtol(text, NULL, 10) : 0;
    return n > 0 && n < 10000 ? (int)n : 0;
}

static int is_set(const char *variable)
{
    const char *text = getenv(variable);

    return text != NULL && text[0] != '\0';
}

#define COLUMNS_OF_FILE 200

/* A terminal gets colours (unless it or the user can not have them) and rows
 * that fit; a file gets neither. */
static struct zb_plan_style style_for(const struct zbplan_opts *o,
                                      const struct zb_plan_input *in)
{
    struct zb_plan_style style = {.in = in, .has_messages = o->has_messages};
    const char *term = getenv("TERM");

    if (o->from != NULL) {
        style.n_columns = COLUMNS_OF_FILE; /* times of models are uneven */
    }
    if (o->output == NULL && isatty(STDOUT_FILENO)) {
        style.n_columns = terminal_columns();
        style.has_color =
            !is_set("NO_COLOR") && is_set("TERM") && strcmp(term, "dumb") != 0;
    }
    return style;
}

static enum zb_status write_schedule(const struct zbplan_opts *o,
                                     const struct zb_plan_input *in,
                                     const struct zb_schedule *s)
{
    struct zb_plan_style style = style_for(o, in);
    struct zb_sink k;

    ZB_TRY(zb_sink_open(&k, o->output));
    return zb_sink_close(&k, zb_schedule_draw(s, o->format, &style, k.f));
}

/* ---- plan ---- */

/* A schedule file knows its sizes. */
static enum zb_status sizes_from_file(struct zbplan_opts *o)
{
    struct zb_schedule *s = NULL;

    ZB_TRY(zb_schedule_read(o->planner + 5, &s));
    o->n_stage = o->n_stage == 0 ? s->n_stage : o->n_stage;
    o->n_micro = o->n_micro == 0 ? s->n_micro : o->n_micro;
    zb_schedule_free(s);
    return ZB_OK;
}

static enum zb_status need_sizes(const struct zbplan_opts *o)
{
    return o->n_stage > 0 && o->n_micro > 0
               ? ZB_OK
               : zb_fail(ZB_EINVAL, "give the sizes: -p STAGES -m "
                                    "MICROBATCHES");
}

/* Release *in in every case. */
static enum zb_status make(struct zbplan_opts *o, struct zb_plan_input *in,
                           struct zb_schedule **s_out)
{
    enum zb_placement placement = ZB_PLACE_V;
    int n_chunk = 0;

    if (o->from != NULL) {
        int is_read = o->format == ZB_PLAN_TEXT && o->output == NULL;

        return zbplan_config_plan(o->from, o, o->planner,
                                  is_read ? stdout : NULL, in, s_out);
    }
    if (is_file_planner(o->planner)) {
        ZB_TRY(sizes_from_file(o));
    }
    ZB_TRY(zb_planner_shape(o->planner, &placement, &n_chunk));
    ZB_TRY(need_sizes(o));
    ZB_TRY(zbplan_opts_input(o, placement, n_chunk, 0,
                             zb_planner_is_elastic(o->planner), in));
    return zb_plan_make(o->planner, in, &o->search, s_out);
}

static int run_plan(struct zbplan_opts *o)
{
    struct zb_plan_input in = {0};
    struct zb_schedule *s = NULL;
    enum zb_status st = make(o, &in, &s);
    int status;

    /* A schedule file that cannot be opened is bad input. */
    if (st == ZB_EIO) {
        report(st);
        status = EXIT_USAGE;
    } else {
        status = report(st == ZB_OK ? write_schedule(o, &in, s) : st);
    }
    zb_schedule_free(s);
    zb_plan_input_release(&in);
    return status;
}

/* ---- check ---- */

/* With the model's memory against the limits there are. */
static enum zb_status check_with_config(const struct zbplan_opts *o)
{
    char *planner = zb_format("file:%s", o->check_path);
    struct zb_plan_input in = {0};
    struct zb_schedule *s = NULL;
    enum zb_status st = ZB_ENOMEM;

    if (planner != NULL) {
        st = zbplan_config_plan(o->from, o, planner, NULL, &in, &s);
    }
    zb_schedule_free(s);
    zb_plan_input_release(&in);
    zb_free(planner);
    return st;
}

/* Memory is held against a limit only when there is one to hold it against. */
static enum zb_status check_schedule(struct zbplan_opts *o,
                                     const struct zb_schedule *s)
{
    struct zb_plan_input in = {0};
    enum zb_status st;

    ZB_TRY(zb_schedule_check(s, NULL));
    if ((o->n_stage > 0 && o->n_stage != s->n_stage) ||
        (o->n_micro > 0 && o->n_micro != s->n_micro)) {
        return zb_fail(ZB_ECONFIG, "it has %d stages and %d microbatches",
                       s->n_stage, s->n_micro);
    }
    if (o->from != NULL) {
        return check_with_config(o);
    }
    if (o->max_mem.n == 0) {
        return ZB_OK;
    }
    o->n_stage = s->n_stage;
    o->n_micro = s->n_micro;
    ZB_TRY(zbplan_opts_input(o, s->placement, s->n_chunk, 0, 0, &in));
    st = zb_schedule_check(s, &in);
    zb_plan_input_release(&in);
    return st;
}

static int run_check(struct zbplan_opts *o)
{
    struct zb_schedule *s = NULL;
    enum zb_status st = zb_schedule_read(o->check_path, &s);

    if (st != ZB_OK) {
        report(st);
        return st == ZB_ECONFIG ? EXIT_FAILED : EXIT_USAGE;
    }
    st = check_schedule(o, s);
    if (st == ZB_OK) {
        printf("%s: legal: %d stages, %d microbatches, placement %s\n",
               o->check_path, s->n_stage, s->n_micro,
               zb_placement_str(s->placement));
    } else {
        zb_fail_in(st, "%s", o->check_path);
        report(st);
    }
    zb_schedule_free(s);
    return st == ZB_OK ? EXIT_DONE : st == ZB_EINVAL ? EXIT_USAGE : EXIT_FAILED;
}

/* ---- compare ---- */

static double largest(const double *x, int n)
{
    double max = x[0];

    for (int i = 1; i < n; i++) {
        max = fmax(max, x[i]);
    }
    return max;
}

static void print_head(FILE *f)
{
    fprintf(f, "%-16s %12s %9s %8s %12s %14s %9s %10s\n", "planner", "makespan",
            "bubble %", "gap %", "span", "peak memory", "peak", "plan ms");
}

/* `whole`: the memory that --max-mem 1x means. */
static void print_compared(const char *planner, const struct zb_schedule *s,
                           double whole, FILE *f)
{
    double peak = largest(s->peak_mem, s->n_stage);
    char gap[32] = "-", times[32] = "-";

    if (!isnan(zb_schedule_gap(s))) {
        snprintf(gap, sizeof(gap), "%.2f", 100 * zb_schedule_gap(s));
    }
    if (whole > 0) {
        snprintf(times, sizeof(times), "%.3fx", peak / whole);
    }
    fprintf(f, "%-16s %12.10g %9.2f %8s %12.10g %14.12g %9s %10.2f\n", planner,
            s->makespan, 100 * s->bubble_rate, gap, s->span, peak, times,
            s->plan_ms);
}

/* One planner on the 2P chunks the options describe: where a stage has one
 * chunk, it is two of those. A planner that can not do it says why; *n_made
 * counts those that can. */
static enum zb_status compare_one(const struct zbplan_opts *o,
                                  const char *planner, FILE *f, int *n_made)
{
    enum zb_placement placement = ZB_PLACE_V;
    struct zb_plan_input in = {0};
    struct zb_schedule *s = NULL;
    enum zb_status st;
    double whole;
    int n_chunk = 0;

    ZB_TRY(zb_planner_shape(planner, &placement, &n_chunk));
    if (o->from != NULL) {
        st = zbplan_config_plan(o->from, o, planner, NULL, &in, &s);
    } else {
        ZB_TRY(zbplan_opts_input(o, placement, n_chunk, n_chunk == 1,
                                 zb_planner_is_elastic(planner), &in));
        st = zb_plan_make(planner, &in, &o->search, &s);
    }
    whole = st != ZB_OK ? 0 : zbplan_memory_unit(&in, n_chunk == 1);
    zb_plan_input_release(&in);
    if (st == ZB_OK) {
        print_compared(planner, s, whole, f);
        (*n_made)++;
    } else if (st != ZB_ENOMEM) {
        fprintf(f, "%-16s %s\n", planner, zb_error_text());
        *n_made += st == ZB_EINFEASIBLE;
        st = ZB_OK;
    }
    zb_schedule_free(s);
    return st;
}

/* What every planner refuses is wrong with the options. */
static enum zb_status compare(const struct zbplan_opts *o)
{
    enum zb_status st = ZB_OK;
    struct zb_sink k;
    int n_made = 0;

    ZB_TRY(zb_sink_open(&k, o->output));
    fprintf(k.f,
            "%d stages, %d microbatches, objective %s; peak: as a "
            "multiple of 2P * F memory\n",
            o->n_stage, o->n_micro, zb_plan_objective_str(o->search.objective));
    print_head(k.f);
    for (int i = 0; zb_planner_name(i) != NULL && st == ZB_OK; i++) {
        st = compare_one(o, zb_planner_name(i), k.f, &n_made);
    }
    if (st == ZB_OK && n_made == 0) {
        st = ZB_EINVAL;
    }
    return zb_sink_close(&k, st);
}

static int run_compare(const struct zbplan_opts *o)
{
    enum zb_status st = need_sizes(o);

    return report(st == ZB_OK ? compare(o) : st);
}

static int run(struct zbplan_opts *o)
{
    if (o->config != NULL) {
        enum zb_status st = zbplan_config_open(o, &o->from);

        if (st != ZB_OK) {
            return report(st);
        }
    }
    switch (o->mode) {
    case ZBPLAN_CHECK:
        return run_check(o);
    case ZBPLAN_COMPARE:
        return run_compare(o);
    default:
        return run_plan(o);
    }
}

int main(int argc, char **argv)
{
    struct zbplan_opts o;
    enum zb_status st = zbplan_opts_parse(&o, argc, argv);
    int status;

    if (st != ZB_OK) {
        status = report(st);
        if (status == EXIT_USAGE) {
            zbplan_opts_usage(stderr);
        }
    } else if (o.mode == ZBPLAN_HELP) {
        zbplan_opts_help(stdout);
        status = EXIT_DONE;
    } else if (o.mode == ZBPLAN_VERSION) {
        printf("zbplan %s\n", PACKAGE_VERSION);
        status = EXIT_DONE;
    } else {
        status = run(&o);
    }
    zbplan_config_close(o.from);
    zbplan_opts_release(&o);
    return status;
}
