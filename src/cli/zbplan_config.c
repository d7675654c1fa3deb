/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "cli/zbplan_config.h"

#include <math.h>
#include <string.h>

#include "cli/job.h"
#include "zb/mem.h"

enum { N_SET = 2 };

struct zbplan_config {
    struct zbrun_job job;
    struct zbrun_opts opts;
    char *set[N_SET]; /* sizes as overrides of keys */
};

static enum zb_status set_size(struct zbplan_config *c, const char *key,
                               int value)
{
    char *text;

    if (value == 0) {
        return ZB_OK;
    }
    text = zb_format("parallel.%s=%d", key, value);
    if (text == NULL) {
        return ZB_ENOMEM;
    }
    c->set[c->opts.n_set++] = text;
    return ZB_OK;
}

static enum zb_status load(struct zbplan_config *c, struct zbplan_opts *o)
{
    const char *set[N_SET];
    enum zb_status st;

    c->opts = (struct zbrun_opts){
        .action = ZBRUN_DRY_RUN, .config = o->config, .backend = "auto"};
    ZB_TRY(set_size(c, "pp_size", o->n_stage));
    ZB_TRY(set_size(c, "num_microbatches", o->n_micro));
    memcpy(set, c->set, sizeof(set));
    c->opts.set = set;
    st = zbrun_job_init(&c->job, &c->opts);
    c->opts.set = NULL;
    ZB_TRY(st);
    o->n_stage = c->job.session.n_stages;
    o->n_micro = c->job.session.n_micro;
    return ZB_OK;
}

enum zb_status zbplan_config_open(struct zbplan_opts *o,
                                  struct zbplan_config **c_out)
{
    struct zbplan_config *c = zb_alloc(sizeof(*c));
    enum zb_status st;

    if (c == NULL) {
        return ZB_ENOMEM;
    }
    st = load(c, o);
    if (st != ZB_OK) {
        zbplan_config_close(c);
        return st;
    }
    *c_out = c;
    return ZB_OK;
}

void zbplan_config_close(struct zbplan_config *c)
{
    if (c == NULL) {
        return;
    }
    zbrun_job_release(&c->job);
    for (int i = 0; i < N_SET; i++) {
        zb_free(c->set[i]);
    }
    zb_free(c);
}

/* What the command line says about the search and the limit of all stages. */
static struct zb_session_opts session_of(const struct zbplan_config *c,
                                         const struct zbplan_opts *o,
                                         const char *planner)
{
    struct zb_session_opts so = c->job.session;

    so.planner = planner != NULL ? planner : so.planner;
    so.plan.seed = o->search.seed;
    if (o->has_objective) {
        so.plan.objective = o->search.objective;
    }
    if (o->search.budget >= 0) {
        so.plan.budget = o->search.budget;
    }
    if (o->has_time_limit) {
        so.plan.time_limit_ms = o->search.time_limit_ms;
    }
    if (o->max_mem.n == 1) {
        so.max_mem = isinf(o->max_mem.x[0]) ? 0 : o->max_mem.x[0];
        so.is_mem_factor = o->max_mem.is_factor;
    }
    return so;
}

/* Whether the command line says something about the chunks of the cut. */
static int is_overridden(const struct zbplan_opts *o)
{
    int n = o->has_c_cost + (o->max_mem.n > 1);

    for (int i = 0; i < 3; i++) {
        n += o->cost[i].n + o->mem[i].n;
    }
    return n > 0;
}

static enum zb_status plan_again(const struct zbplan_opts *o,
                                 const struct zb_session_opts *so,
                                 struct zb_plan_input *in,
                                 struct zb_schedule **s)
{
    struct zb_schedule *made;
    const char *planner =
        strcmp(so->planner, "auto") == 0 ? (*s)->planner : so->planner;

    struct zbplan_opts part = *o;

    /* One limit for all stages was kept to already, with that of the device. */
    part.max_mem.n = o->max_mem.n > 1 ? o->max_mem.n : 0;
    ZB_TRY(zbplan_opts_override(&part, in));
    ZB_TRY(zb_plan_make(planner, in, &so->plan, &made));
    zb_schedule_free(*s);
    *s = made;
    return ZB_OK;
}

enum zb_status zbplan_config_plan(struct zbplan_config *c,
                                  const struct zbplan_opts *o,
                                  const char *planner, FILE *f,
                                  struct zb_plan_input *in_out,
                                  struct zb_schedule **s_out)
{
    struct zb_session_opts so = session_of(c, o, planner);
    struct zb_plan_input in;
    struct zb_schedule *s;

    ZB_TRY(zb_session_plan(c->job.model, &so, f, &in, &s));
    if (is_overridden(o)) {
        enum zb_status st = plan_again(o, &so, &in, &s);

        if (st != ZB_OK) {
            zb_schedule_free(s);
            zb_plan_input_release(&in);
            return st;
        }
    }
    *in_out = in;
    *s_out = s;
    return ZB_OK;
}
