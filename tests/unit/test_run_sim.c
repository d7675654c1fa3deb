/* SPDX-License-Identifier: MIT
 *
 * The runtime on simulated devices: each node ends when the plan says, by the
 * clock that counts costs alone. Whatever the runtime waits for beyond the plan
 * (a message buffer that is not free, an event of the wrong node) shows as a
 * difference. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/sim/sim_int.h"
#include "run/run_int.h"
#include "run_util.h"
#include "zb/mem.h"
#include "zbt.h"

#define NS_PER_COST 1000.0

struct setting {
    const char *planner;
    int p, m;
    double f, b, w, c;
};

/* The clock after each node: [stage][node]. */
struct clocks {
    const struct zb_step_input *in;
    int64_t **ns;
};

static enum zb_status run_and_note(struct zb_worker *w, void *arg)
{
    struct clocks *c = arg;
    const struct zb_stage_nodes *nodes = zb_worker_nodes(w);

    ZB_TRY(zb_load_batch(w, c->in, w->s->plan->o.n_micro, 1));
    for (size_t i = 0; i < nodes->n; i++) {
        const struct zb_stage_nodes one = {1, &nodes->node[i]};

        ZB_TRY(zb_worker_run_nodes(w, &one));
        c->ns[w->stage][i] = zb_sim_clock_ns(w->stream);
    }
    return ZB_OK;
}

static enum zb_status open_session(const struct zb_model *model,
                                   const struct setting *t,
                                   struct zb_session **s_out)
{
    struct zb_session_opts o = ru_opts(t->p, t->m, t->m);

    o.backend = "sim";
    o.planner = t->planner;
    o.f_cost = &t->f;
    o.b_cost = &t->b;
    o.w_cost = &t->w;
    o.n_costs = 1;
    o.c_cost = t->c;
    o.sim_ns_per_cost = NS_PER_COST;
    return zb_session_new(model, &o, s_out);
}

static size_t n_late(const struct zb_schedule *sched, int64_t *const *ns,
                     const struct setting *t)
{
    size_t n = 0;

    for (int i = 0; i < sched->n_stage; i++) {
        for (size_t k = 0; k < sched->stages[i].n; k++) {
            const struct zb_node *nd = &sched->stages[i].node[k];
            double planned = nd->end * NS_PER_COST;

            if (zb_node_is_compute(nd->type) &&
                !(fabs((double)ns[i][k] - planned) <= 1e-6 * planned + 1)) {
                if (n++ == 0) {
                    printf("%s p %d m %d c %g: stage %d %s chunk %d mb %d "
                           "ended at %lld, planned %.0f\n",
                           t->planner, t->p, t->m, t->c, i,
                           zb_node_type_str(nd->type), nd->chunk, nd->mb,
                           (long long)ns[i][k], planned);
                }
            }
        }
    }
    return n;
}

/* 0 when the planner refuses these sizes. */
static int check_times(const struct zb_model *model, const struct setting *t)
{
    struct zb_session *s;
    struct ru_batch b;
    struct clocks c;
    const struct zb_schedule *sched;

    if (open_session(model, t, &s) != ZB_OK) {
        return 0;
    }
    ru_batch_init(&b, t->m, RU_SEQ, 1);
    sched = zb_session_schedule(s);
    c.in = &b.in;
    c.ns = zb_alloc_array((size_t)t->p, sizeof(*c.ns));
    for (int i = 0; i < t->p; i++) {
        c.ns[i] = zb_alloc_array(sched->stages[i].n, sizeof(**c.ns));
    }
    ZBT_OK(zb_session_each(s, run_and_note, &c));
    CU_ASSERT_EQUAL(n_late(sched, c.ns, t), 0);
    for (int i = 0; i < t->p; i++) {
        zb_free(c.ns[i]);
    }
    zb_free(c.ns);
    zb_session_free(s);
    ru_batch_release(&b);
    return 1;
}

static int check_planner(const char *planner, int p, int m)
{
    const struct setting setting[] = {
        {planner, p, m, 1, 1, 1, 0},
        {planner, p, m, 6, 7, 5, 0},
        {planner, p, m, 4, 5, 2, 1},
        {planner, p, m, 1, 2, 1, 3},
    };
    struct zb_model *model = ru_llama();
    int n = 0;

    for (size_t i = 0; i < ZB_COUNT_OF(setting); i++) {
        n += check_times(model, &setting[i]);
    }
    zb_model_free(model);
    return n;
}

static void check_all_planners(int p, int m)
{
    for (int i = 0; zb_planner_name(i) != NULL; i++) {
        const char *name = zb_planner_name(i);

        if (strncmp(name, "file", 4) != 0 && check_planner(name, p, m) == 0) {
            printf("%s does not plan p %d m %d\n", name, p, m);
        }
    }
}

static void every_node_of_a_few_stages_ends_when_planned(void)
{
    check_all_planners(1, 3);
    check_all_planners(2, 4);
    check_all_planners(4, 8);
    check_all_planners(4, 12);
}

static void every_node_of_many_stages_ends_when_planned(void)
{
    check_all_planners(8, 16);
    if (zbt_is_long()) {
        check_all_planners(16, 32);
        check_all_planners(64, 128);
    }
}

static void named_planners_run_on_64_stages_as_planned(void)
{
    static const char *const name[] = {"zbv", "get_v_schedule", "1f1b"};
    struct zb_model *model = ru_llama();

    for (size_t i = 0; i < ZB_COUNT_OF(name); i++) {
        const struct setting t = {name[i], 64, 64, 5, 6, 4, 1};

        CU_ASSERT_EQUAL(check_times(model, &t), 1);
    }
    zb_model_free(model);
}

/* ---- gradients on their way ---------------------------------------------- */

#define STEPS 3

/* One step after the other; the clock of each device at the end. */
static double steps_ns(const struct zb_model *model, const struct setting *t,
                       double link_ns_per_byte, int is_late)
{
    struct zb_session_opts o = ru_opts(t->p, t->m, 2 * t->m);
    struct zb_session *s = NULL;
    struct zb_step_result res;
    struct ru_batch b;
    int64_t last = 0;

    o.backend = "sim";
    o.planner = t->planner;
    o.n_dp = 2;
    o.cut = ZB_CUT_UNIFORM;
    o.f_cost = &t->f;
    o.b_cost = &t->b;
    o.w_cost = &t->w;
    o.n_costs = 1;
    o.sim_ns_per_cost = NS_PER_COST;
    o.sim_link_ns_per_byte = link_ns_per_byte;
    o.overlap_reduce = !is_late;
    o.overlap_gather = 0; /* takes the same with either */
    ru_batch_init(&b, 2 * t->m, RU_SEQ, 1);
    ZBT_OK(zb_session_new(model, &o, &s));
    for (int i = 0; i < STEPS; i++) {
        ZBT_OK(zb_train_step(s, &b.in, 1e-3, &res));
    }
    for (int i = 0; i < s->plan->n_devices; i++) {
        int64_t ns = zb_sim_clock_ns(s->worker[i].stream);

        last = ns > last ? ns : last;
    }
    zb_session_free(s);
    ru_batch_release(&b);
    return (double)last;
}

/* Large enough for a bucket to be one matrix. */
static struct zb_model *wide_model(void)
{
    static const struct zb_model_key key[] = {
        {"model_type", "llama", 0},           {"vocab_size", "64", 0},
        {"hidden_size", "1024", 0},           {"intermediate_size", "2816", 0},
        {"num_hidden_layers", "16", 0},       {"num_attention_heads", "8", 0},
        {"max_position_embeddings", "32", 0},
    };
    const struct zb_model_opts opts = {.max_seq = RU_SEQ, .init_std = -1};
    struct zb_model *m = NULL;

    ZBT_OK(zb_model_from_keys(key, ZB_COUNT_OF(key), "wide", &opts, &m));
    return m;
}

/* Of what a reduction of 5 % of a step's compute adds to a step when it comes
 * at its end, at least 80 % is gone where it overlaps. */
static void most_of_the_reduction_hides(void)
{
    static const struct setting setting[] = {
        {"zbv", 2, 4, 1, 1, 1, 0},
        {"zbv", 4, 8, 1, 1, 1, 0},
        {"1f1b", 2, 4, 2, 2, 2, 0},
        {"1f1b", 4, 8, 2, 2, 2, 0},
    };
    struct zb_model *model = wide_model();

    for (size_t i = 0; i < ZB_COUNT_OF(setting); i++) {
        const struct setting *t = &setting[i];
        double layer = (1024.0 * 1024 * 4 + 1024.0 * 2816 * 3) *
                       sizeof(zb_real);
        double per_byte = 0.05 * 6 * t->m * NS_PER_COST / (16 * layer / t->p);
        double none = steps_ns(model, t, 0, 0);
        double late = steps_ns(model, t, per_byte, 1);
        double both = steps_ns(model, t, per_byte, 0);

        printf("%s p %d: %.0f alone, %.0f at the end, %.0f hidden\n",
               t->planner, t->p, none, late, both);
        CU_ASSERT(late - both >= 0.8 * STEPS * 0.05 * 6 * t->m * NS_PER_COST);
        CU_ASSERT(both >= none);
    }
    zb_model_free(model);
}

/* All that a step and an evaluation hand back is 0, on devices whose memory no
 * machine has. */
static void values_are_zero_and_memory_is_only_counted(void)
{
    const struct setting t = {"zbv", 2, 4, 1, 1, 1, 0};
    struct zb_model *model = ru_llama();
    struct zb_session *s;
    struct zb_step_result res = {.loss = 7, .grad_norm = 7};
    struct zb_device *dev;
    struct ru_batch b;
    void *ptr;

    ru_batch_init(&b, t.m, RU_SEQ, 1);
    ZBT_OK(open_session(model, &t, &s));
    CU_ASSERT_EQUAL(zb_session_is_simulated(s), 1);
    ZBT_OK(zb_train_step(s, &b.in, 1e-3, &res));
    CU_ASSERT_EQUAL(res.loss, 0);
    CU_ASSERT_EQUAL(res.grad_norm, 0);
    ZBT_OK(zb_run_forward_only(s, &b.in, 0, ZB_RETURN_LOSS, &res));
    CU_ASSERT_EQUAL(res.loss, 0);
    for (int i = 0; i < t.p; i++) {
        CU_ASSERT_EQUAL(zb_session_allocated_bytes(s, i),
                        zb_session_planned_bytes(s, i));
    }
    dev = s->worker[0].dev;
    ZBT_OK(s->be->ops->mem_alloc(dev, (size_t)1 << 38, "huge", &ptr));
    CU_ASSERT_EQUAL((uintptr_t)ptr % 64, 0);
    s->be->ops->mem_free(dev, ptr);
    CU_ASSERT_EQUAL(s->be->ops->mem_bytes(dev),
                    zb_session_planned_bytes(s, 0));
    CU_ASSERT_EQUAL(s->be->ops->mem_alloc(dev, SIZE_MAX, "too much", &ptr),
                    ZB_ENOMEM);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "too much"));
    zb_session_free(s);
    ru_batch_release(&b);
    zb_model_free(model);
}

static void step_that_would_take_hours_is_refused(void)
{
    const struct setting hours = {"1f1b", 2, 2, 1e12, 1, 1, 1};
    const struct setting ages = {"1f1b", 2, 2, 1e60, 1, 1, 1};
    struct zb_model *model = ru_llama();
    struct zb_session *s = NULL;

    CU_ASSERT_EQUAL(open_session(model, &hours, &s), ZB_EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "sim_unit_us"));
    CU_ASSERT_EQUAL(open_session(model, &ages, &s), ZB_EINVAL);
    CU_ASSERT_PTR_NULL(s);
    zb_model_free(model);
}

static void failing_allocation_of_a_session_unwinds(void)
{
    const struct setting t = {"1f1b", 2, 2, 1, 1, 1, 1};
    struct zb_model *model = ru_llama();
    int64_t before = zb_mem_live();

    for (uint64_t k = 1;; k++) {
        struct zb_session *s = NULL;
        enum zb_status st;
        int failed;

        zb_mem_fail_at(k);
        st = open_session(model, &t, &s);
        failed = zb_mem_failed();
        zb_mem_fail_at(0);
        CU_ASSERT_EQUAL(st, failed ? ZB_ENOMEM : ZB_OK);
        zb_session_free(s);
        CU_ASSERT_EQUAL_FATAL(zb_mem_live(), before);
        if (!failed) {
            break;
        }
    }
    zb_model_free(model);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(every_node_of_a_few_stages_ends_when_planned),
        ZBT_CASE(every_node_of_many_stages_ends_when_planned),
        ZBT_CASE(named_planners_run_on_64_stages_as_planned),
        ZBT_CASE(most_of_the_reduction_hides),
        ZBT_CASE(values_are_zero_and_memory_is_only_counted),
        ZBT_CASE(step_that_would_take_hours_is_refused),
        ZBT_CASE(failing_allocation_of_a_session_unwinds),
    };

    return zbt_run("run on sim", cases, ZB_COUNT_OF(cases));
}
