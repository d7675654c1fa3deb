/* SPDX-License-Identifier: MIT
 *
 * Measured costs: what they are made of, where they are kept, and that nothing
 * but the plan knows about them. No test asserts a time. */
#include "config.h"
#include "run/profile.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "run/cost_cache.h"
#include "run/run_int.h"
#include "run_util.h"
#include "zb/mem.h"
#include "zbt.h"

/* What a measurement is made for. */
struct rig {
    struct zb_model *m;
    struct zb_session_opts o;
    struct zb_bind max;
    struct zb_layer_kinds kinds;
    struct zb_profile_request r;
};

static void rig_init(struct rig *g, int n_stages)
{
    g->m = ru_llama();
    g->o = ru_opts(n_stages, 4, 8);
    g->o.costs = ZB_COSTS_MEASURED;
    g->max = (struct zb_bind){{2, RU_SEQ}};
    ZBT_OK(zb_layer_kinds_init(&g->kinds, zb_model_graph(g->m), &g->max,
                               g->o.recompute));
    g->r = (struct zb_profile_request){.g = zb_model_graph(g->m),
                                       .kinds = &g->kinds,
                                       .max = g->max,
                                       .o = &g->o};
}

static void rig_release(struct rig *g)
{
    zb_layer_kinds_release(&g->kinds);
    zb_model_free(g->m);
}

/* A folder that does not exist yet. */
static char *cache_dir(const char *name)
{
    char *dir = zb_format("%s/deep", zbt_scratch_path(name));

    CU_ASSERT_PTR_NOT_NULL_FATAL(dir);
    return dir;
}

static struct zb_cost_table *table_of(const struct rig *g, int may_run)
{
    struct zb_cost_table *t;

    ZBT_OK(zb_costs_make(g->r.g, &g->max, &g->o, may_run, &t));
    return t;
}

static int same_layer(const struct zb_layer_cost *a,
                      const struct zb_layer_cost *b)
{
    return a->f_ns == b->f_ns && a->b_ns == b->b_ns && a->w_ns == b->w_ns &&
           a->update_ns == b->update_ns;
}

/* ---- measuring ----------------------------------------------------------- */

static void measured_table_has_one_time_for_equal_layers(void)
{
    for (int n = 1; n <= 3; n++) {
        struct rig g;
        struct zb_cost_table *t;

        rig_init(&g, n);
        t = table_of(&g, 1);
        CU_ASSERT_EQUAL(t->source, ZB_COST_MEASURED);
        CU_ASSERT_EQUAL(t->n_layers, 8);
        for (int i = 0; i < t->n_layers; i++) {
            CU_ASSERT(t->layer[i].f_ns > 0 && t->layer[i].w_ns > 0);
            CU_ASSERT(t->layer[i].update_ns > 0);
            CU_ASSERT(i < 2 || i > 6 ||
                      same_layer(&t->layer[i], &t->layer[1]));
        }
        CU_ASSERT(n == 1 ? t->message_ns == 0 : t->message_ns > 0);
        CU_ASSERT(t->bytes_per_ns > 0);
        zb_costs_free(t);
        rig_release(&g);
    }
}

/* Dropout, a mask, tied weights, layer norms. */
static void other_models_can_be_measured(void)
{
    struct zb_model *m[] = {ru_gpt2(0.1), ru_llama_masked()};

    for (size_t i = 0; i < ZB_COUNT_OF(m); i++) {
        struct zb_session_opts o = ru_opts(2, 2, 4);
        struct zb_session *s;

        o.costs = ZB_COSTS_MEASURED;
        ZBT_OK(zb_session_new(m[i], &o, &s));
        zb_session_free(s);
        zb_model_free(m[i]);
    }
}

static void dry_run_does_not_measure(void)
{
    struct rig g;
    struct zb_cost_table *t;

    rig_init(&g, 2);
    t = table_of(&g, 0);
    CU_ASSERT_EQUAL(t->source, ZB_COST_NOMINAL);
    zb_costs_free(t);
    rig_release(&g);
}

static void given_costs_are_not_measured(void)
{
    const double one = 1;
    struct rig g;
    struct zb_run_plan *p;

    rig_init(&g, 2);
    g.o.costs = ZB_COSTS_GIVEN;
    CU_ASSERT_EQUAL(zb_run_plan_new_on_devices(g.m, &g.o, &p), ZB_EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "F"));
    g.o.f_cost = g.o.b_cost = g.o.w_cost = &one;
    g.o.n_costs = 1;
    g.o.c_cost = 0.25;
    ZBT_OK(zb_run_plan_new_on_devices(g.m, &g.o, &p));
    CU_ASSERT_EQUAL(p->costs->source, ZB_COST_NOMINAL);
    CU_ASSERT_EQUAL(p->in.f_cost[0], 1);
    CU_ASSERT_EQUAL(p->in.c_cost, 0.25);
    zb_run_plan_free(p);
    rig_release(&g);
}

static void chunks_cost_the_sum_of_measured_layers(void)
{
    struct rig g;
    struct zb_run_plan *p;

    rig_init(&g, 2);
    g.o.cut = ZB_CUT_UNIFORM; /* no chunk is empty */
    ZBT_OK(zb_run_plan_new_on_devices(g.m, &g.o, &p));
    for (int v = 0; v < p->n_virtual; v++) {
        double f = 0;

        for (int i = p->first_layer[v]; i < p->first_layer[v + 1]; i++) {
            f += p->costs->layer[i].f_ns;
        }
        CU_ASSERT_DOUBLE_EQUAL(p->in.f_cost[v] * p->unit_ns, f, 1e-6 * f);
    }
    CU_ASSERT(p->in.c_cost * p->unit_ns >= p->costs->message_ns * 0.999);
    zb_run_plan_free(p);
    rig_release(&g);
}

/* The same order with costs from the model and from the devices. */
static void measuring_changes_no_bit_of_training(void)
{
    struct zb_model *m[] = {ru_llama(), ru_gpt2(0.1)};
    struct ru_batch b;

    ru_batch_init(&b, 8, RU_SEQ, 5);
    for (size_t i = 0; i < ZB_COUNT_OF(m); i++) {
        struct zb_session_opts o = ru_opts(2, 4, 8);
        struct ru_result model, measured;

        o.cut = ZB_CUT_UNIFORM;
        o.planner = "1f1b";
        ru_train_two_steps(m[i], &o, &b, &model);
        o.costs = ZB_COSTS_MEASURED;
        ru_train_two_steps(m[i], &o, &b, &measured);
        CU_ASSERT(ru_result_equal(&model, &measured));
        ru_result_release(&measured);
        ru_result_release(&model);
        zb_model_free(m[i]);
    }
    ru_batch_release(&b);
}

static void session_counts_nothing_before_its_first_step(void)
{
    struct rig g;
    struct zb_session *s;
    struct zb_session_stats stats;

    rig_init(&g, 2);
    ZBT_OK(zb_session_new(g.m, &g.o, &s));
    stats = zb_session_stats(s);
    CU_ASSERT_EQUAL(stats.n_messages + stats.n_meta_writes +
                        stats.n_meta_reads,
                    0);
    for (int i = 0; i < 2; i++) {
        CU_ASSERT_EQUAL(zb_session_allocated_bytes(s, i),
                        zb_session_planned_bytes(s, i));
    }
    zb_session_free(s);
    rig_release(&g);
}

static enum zb_status fail_in_the_middle(struct zb_seat *s)
{
    ZB_TRY(zb_seat_meet(s));
    if (s->index == 1) {
        return zb_fail(ZB_EDEVICE, "the cable is out");
    }
    return zb_seat_meet(s);
}

static void failing_device_ends_the_profile(void)
{
    struct rig g;
    double out[1];

    rig_init(&g, 3);
    CU_ASSERT_EQUAL(zb_profile_run(&g.r, fail_in_the_middle, 1, out),
                    ZB_EDEVICE);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "device 1, profile"));
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "cable"));
    rig_release(&g);
}

static enum zb_status give_index(struct zb_seat *s)
{
    s->result[0] = s->index * 10;
    s->result[1] = s->index == 2 ? 7 : NAN;
    s->result[2] = NAN;
    return ZB_OK;
}

static void results_are_medians_over_devices(void)
{
    struct rig g;
    double out[3];

    rig_init(&g, 4);
    ZBT_OK(zb_profile_run(&g.r, give_index, 3, out));
    CU_ASSERT_EQUAL(out[0], 15);
    CU_ASSERT_EQUAL(out[1], 7);
    CU_ASSERT(isnan(out[2]));
    rig_release(&g);
}

static void measuring_without_memory_fails_cleanly(void)
{
    struct rig g;
    int64_t before;

    rig_init(&g, 2);
    g.o.cost_cache = NULL;
    before = zb_mem_live();
    /* Most allocations are the backend's and alike: a prime stride samples
     * them. */
    for (uint64_t k = 1;; k += k < 40 || zbt_is_long() ? 1 : 17) {
        struct zb_cost_table *t = NULL;
        enum zb_status st;
        int failed;

        zb_mem_fail_at(k);
        st = zb_costs_make(g.r.g, &g.max, &g.o, 1, &t);
        failed = zb_mem_failed();
        zb_mem_fail_at(0);
        /* The check backend calls what fails within a kernel a fault of the
         * device. */
        CU_ASSERT(failed ? st == ZB_ENOMEM || st == ZB_EDEVICE : st == ZB_OK);
        if (st == ZB_OK) {
            zb_costs_free(t);
        }
        CU_ASSERT_EQUAL(zb_mem_live(), before);
        if (!failed) {
            break;
        }
    }
    rig_release(&g);
}

/* ---- the cache ----------------------------------------------------------- */

static void measured_table_comes_back_from_the_cache(void)
{
    struct rig g;
    struct zb_cost_table *first, *again;
    char *dir = cache_dir("round");

    rig_init(&g, 2);
    g.o.cost_cache = dir;
    first = table_of(&g, 1);
    again = table_of(&g, 0); /* nothing may run: it is from the cache */
    CU_ASSERT_EQUAL(again->source, ZB_COST_MEASURED);
    for (int i = 0; i < first->n_layers; i++) {
        CU_ASSERT(same_layer(&first->layer[i], &again->layer[i]));
    }
    CU_ASSERT_EQUAL(first->message_ns, again->message_ns);
    CU_ASSERT_EQUAL(first->bytes_per_ns, again->bytes_per_ns);
    zb_costs_free(again);
    zb_costs_free(first);
    rig_release(&g);
    zb_free(dir);
}

static void rates_of_the_model_are_kept_too(void)
{
    struct rig g;
    struct zb_cost_table *first, *again;
    char *dir = cache_dir("rates");

    rig_init(&g, 2);
    g.o.cost_cache = dir;
    g.o.costs = ZB_COSTS_MODEL;
    first = table_of(&g, 0);
    CU_ASSERT_EQUAL(first->source, ZB_COST_NOMINAL);
    zb_costs_free(first);
    first = table_of(&g, 1);
    again = table_of(&g, 0);
    CU_ASSERT_EQUAL(first->source, ZB_COST_RATES);
    CU_ASSERT_EQUAL(again->source, ZB_COST_RATES);
    for (int i = 0; i < first->n_layers; i++) {
        CU_ASSERT(same_layer(&first->layer[i], &again->layer[i]));
    }
    zb_costs_free(again);
    zb_costs_free(first);
    rig_release(&g);
    zb_free(dir);
}

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");

    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    fputs(text, f);
    fclose(f);
}

static void broken_or_foreign_file_is_not_used(void)
{
    static const char *const broken[] = {
        "", "{", "[1]", "7", "{\"values\": [1, 2]}",
        "{\"key\": 3, \"values\": [1, 2]}",
        "{\"key\": \"another\", \"values\": [1, 2]}",
        "{\"key\": \"k\", \"values\": [1]}",
        "{\"key\": \"k\", \"values\": [1, 2, 3]}",
        "{\"key\": \"k\", \"values\": [1, -2]}",
        "{\"key\": \"k\", \"values\": [1, \"2\"]}",
        "{\"key\": \"k\", \"values\": {\"a\": 1}}",
        "{\"key\": \"k\", \"values\": [1, 2",
    };
    const double kept[] = {1, NAN};
    char *dir = cache_dir("broken"), *path = zb_cost_cache_path(dir, "k");
    double v[2];
    int is_found;

    ZBT_OK(zb_cost_cache_load(dir, "k", v, 2, &is_found));
    CU_ASSERT_FALSE(is_found);
    ZBT_OK(zb_cost_cache_store(dir, "k", kept, 2));
    ZBT_OK(zb_cost_cache_load(dir, "k", v, 2, &is_found));
    CU_ASSERT(is_found && v[0] == 1 && isnan(v[1]));
    for (size_t i = 0; i < ZB_COUNT_OF(broken); i++) {
        write_text(path, broken[i]);
        ZBT_OK(zb_cost_cache_load(dir, "k", v, 2, &is_found));
        CU_ASSERT_FALSE(is_found);
    }
    ZBT_OK(zb_cost_cache_store(dir, "k", kept, 2));
    ZBT_OK(zb_cost_cache_load(dir, "k", v, 2, &is_found));
    CU_ASSERT_TRUE(is_found);
    zb_free(path);
    zb_free(dir);
}

static void folder_that_can_not_be_made_is_no_error(void)
{
    char *file = zb_strdup(zbt_scratch_path("a_file"));
    const double v[] = {1};

    write_text(file, "x");
    ZBT_OK(zb_cost_cache_store(file, "k", v, 1));
    zb_free(file);
}

static char *key_of(const struct rig *g, const char *backend)
{
    char *key;

    ZBT_OK(zb_cost_key(&g->r, backend, "costs", &key));
    return key;
}

/* Each way to change what is measured changes the key. */
static void key_names_all_that_times_depend_on(void)
{
    struct rig g, other;
    char *key[8];
    size_t n = 0;

    rig_init(&g, 2);
    key[n++] = key_of(&g, "cpu");
    key[n++] = key_of(&g, "check");
    g.o.threads_per_device = 2;
    key[n++] = key_of(&g, "cpu");
    g.o.threads_per_device = 1;
    g.r.max.value[ZB_SYM_SEQ]++;
    key[n++] = key_of(&g, "cpu");
    g.r.max.value[ZB_SYM_SEQ]--;
    g.o.n_stages = 3;
    key[n++] = key_of(&g, "cpu");
    g.o.n_stages = 2;
    g.kinds.signature[1]++;
    key[n++] = key_of(&g, "cpu");
    g.kinds.signature[1]--;
    g.o.optim.kind = ZB_OPTIM_SGD;
    key[n++] = key_of(&g, "cpu");
    rig_init(&other, 2);
    key[n++] = key_of(&other, "cpu");
    CU_ASSERT_STRING_EQUAL(key[0], key[n - 1]);
    for (size_t i = 0; i + 1 < n; i++) {
        for (size_t k = 0; k < i; k++) {
            CU_ASSERT(strcmp(key[i], key[k]) != 0);
        }
    }
    for (size_t i = 0; i < n; i++) {
        zb_free(key[i]);
    }
    rig_release(&other);
    rig_release(&g);
}

static void cache_without_memory_fails_cleanly(void)
{
    char *dir = cache_dir("nomem");
    const double v[] = {1, 2};
    double back[2];
    int64_t before = zb_mem_live();

    for (uint64_t k = 1;; k++) {
        enum zb_status st;
        int is_found = 0, failed;

        zb_mem_fail_at(k);
        st = zb_cost_cache_store(dir, "k", v, 2);
        if (st == ZB_OK) {
            st = zb_cost_cache_load(dir, "k", back, 2, &is_found);
        }
        failed = zb_mem_failed();
        zb_mem_fail_at(0);
        CU_ASSERT_EQUAL(st, failed ? ZB_ENOMEM : ZB_OK);
        CU_ASSERT_EQUAL(zb_mem_live(), before);
        if (!failed) {
            CU_ASSERT_TRUE(is_found);
            break;
        }
    }
    zb_free(dir);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(measured_table_has_one_time_for_equal_layers),
        ZBT_CASE(other_models_can_be_measured),
        ZBT_CASE(dry_run_does_not_measure),
        ZBT_CASE(given_costs_are_not_measured),
        ZBT_CASE(chunks_cost_the_sum_of_measured_layers),
        ZBT_CASE(measuring_changes_no_bit_of_training),
        ZBT_CASE(session_counts_nothing_before_its_first_step),
        ZBT_CASE(failing_device_ends_the_profile),
        ZBT_CASE(results_are_medians_over_devices),
        ZBT_CASE(measuring_without_memory_fails_cleanly),
        ZBT_CASE(measured_table_comes_back_from_the_cache),
        ZBT_CASE(rates_of_the_model_are_kept_too),
        ZBT_CASE(broken_or_foreign_file_is_not_used),
        ZBT_CASE(folder_that_can_not_be_made_is_no_error),
        ZBT_CASE(key_names_all_that_times_depend_on),
        ZBT_CASE(cache_without_memory_fails_cleanly),
    };

    return zbt_run("profile", cases, ZB_COUNT_OF(cases));
}
