/* SPDX-License-Identifier: MIT
 *
 * Which layers go into which chunk, and which planner is taken: against all
 * cuts there are, where these can be counted, and within the limits of
 * memory. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "run/run_int.h"
#include "run_util.h"
#include "zb/mem.h"
#include "zbt.h"

#define N_ROWS 4096 /* only planned: steps that are worth some effort */

/* A model whose head is as much work as several of its blocks. */
static struct zb_model *big_head(const char *n_blocks)
{
    const struct zb_model_key key[] = {
        {"model_type", "llama", 0},       {"vocab_size", "512", 0},
        {"hidden_size", "32", 0},         {"intermediate_size", "56", 0},
        {"num_hidden_layers", n_blocks, 0}, {"num_attention_heads", "4", 0},
        {"num_key_value_heads", "2", 0},  {"max_position_embeddings", "64", 0},
        {"tie_word_embeddings", "false", 0},
    };
    struct zb_model_opts o = {.max_seq = 2 * RU_SEQ, .init_std = 0.1};
    struct zb_model *m = NULL;

    ZBT_OK(zb_model_from_keys(key, ZB_COUNT_OF(key), "test", &o, &m));
    return m;
}

static struct zb_run_plan *plan(const struct zb_model *m,
                                const struct zb_session_opts *o)
{
    struct zb_run_plan *p = NULL;

    ZBT_OK(zb_run_plan_new(m, o, &p));
    CU_ASSERT_PTR_NOT_NULL_FATAL(p);
    return p;
}

static double step_of(const struct zb_model *m, const struct zb_session_opts *o)
{
    struct zb_run_plan *p = plan(m, o);
    double step = zb_run_step_cost(p);

    zb_run_plan_free(p);
    return step;
}

static size_t most_bytes(const struct zb_run_plan *p)
{
    size_t most = 0;

    for (int s = 0; s < p->n_stages; s++) {
        most = p->layout[s].total > most ? p->layout[s].total : most;
    }
    return most;
}

/* ---- the cut for a V ----------------------------------------------------- */

/* The busiest stage of a cut. */
static double busiest(const double *cost, const int *first, int n_stages)
{
    double most = 0;

    for (int s = 0; s < n_stages; s++) {
        double sum = 0;

        for (int i = first[s]; i < first[s + 1]; i++) {
            sum += cost[i];
        }
        for (int i = first[2 * n_stages - 1 - s]; i < first[2 * n_stages - s];
             i++) {
            sum += cost[i];
        }
        most = fmax(most, sum);
    }
    return most;
}

/* Go through all cuts with first[v ..] still open. */
static double least_busiest(const double *cost, int n_layers, int n_stages,
                            int v, int *first)
{
    double least = INFINITY;

    if (v == 2 * n_stages) {
        return first[v - 1] < n_layers ? busiest(cost, first, n_stages)
                                       : INFINITY;
    }
    for (first[v] = first[v - 1]; first[v] <= n_layers; first[v]++) {
        least = fmin(least,
                     least_busiest(cost, n_layers, n_stages, v + 1, first));
    }
    return least;
}

static void v_cut_has_least_busiest_stage(void)
{
    struct zbt_rng rng = {7};

    for (int k = 0; k < 300; k++) {
        int n_layers = (int)zbt_rand_in(&rng, 1, 7);
        int n_stages = (int)zbt_rand_in(&rng, 1, 3);
        int all[7] = {0}, first[7];
        double cost[7], have, want;

        all[2 * n_stages] = n_layers;
        for (int i = 0; i < n_layers; i++) {
            cost[i] = (double)zbt_rand_in(&rng, 0, k % 2 ? 3 : 50);
        }
        ZBT_OK(zb_run_cut_v(cost, n_layers, n_stages, first));
        CU_ASSERT_EQUAL(first[0], 0);
        CU_ASSERT_EQUAL(first[2 * n_stages], n_layers);
        for (int v = 0; v < 2 * n_stages; v++) {
            CU_ASSERT(first[v] <= first[v + 1]);
        }
        CU_ASSERT(first[2 * n_stages - 1] < n_layers);
        have = busiest(cost, first, n_stages);
        want = least_busiest(cost, n_layers, n_stages, 1, all);
        CU_ASSERT_DOUBLE_EQUAL(have, want, 1e-6 * want);
    }
}

/* ---- auto against other cuts --------------------------------------------- */

static const char *const some_planners[] = {"zbv", "1f1b", "gpipe"};

static void auto_cut_is_never_slower_than_uniform(void)
{
    static const int micro[] = {1, 3, 8};
    struct zb_model *model[] = {big_head("6"), big_head("13"), ru_gpt2(0)};

    for (size_t i = 0; i < 3 * 3 * 3; i++) {
        for (int p = 1; p <= 5; p += 2) {
            struct zb_session_opts o = ru_opts(p, micro[i % 3], N_ROWS);
            const struct zb_model *m = model[i / 3 % 3];
            double chosen;

            o.planner = some_planners[i / 9];
            chosen = step_of(m, &o);
            o.cut = ZB_CUT_UNIFORM;
            CU_ASSERT(chosen <= step_of(m, &o) * (1 + 1e-9));
        }
    }
    for (int i = 0; i < 3; i++) {
        zb_model_free(model[i]);
    }
}

/* All ways to give n_blocks to the chunks from v on: the shortest step. */
static double shortest(const struct zb_model *m, struct zb_session_opts *o,
                       int *count, int v, int n_virtual, int n_left)
{
    double least = INFINITY;

    if (v == n_virtual - 1) {
        count[v] = n_left;
        return step_of(m, o);
    }
    for (count[v] = 0; count[v] <= n_left; count[v]++) {
        least = fmin(least, shortest(m, o, count, v + 1, n_virtual,
                                     n_left - count[v]));
    }
    return least;
}

/* The lists can not move the embedding or the head, auto can. */
static void auto_cut_is_as_good_as_any_list(void)
{
    static const struct {
        const char *planner, *n_blocks;
        int p, n_virtual;
    } cases[] = {
        {"zbv", "7", 2, 4}, {"1f1b", "7", 2, 2}, {"1f1b", "7", 4, 4},
        {"zbv", "3", 2, 4}, {"zbv", "4", 3, 6},
    };

    for (size_t i = 0; i < ZB_COUNT_OF(cases); i++) {
        struct zb_session_opts o = ru_opts(cases[i].p, 4, N_ROWS), list;
        struct zb_model *m = big_head(cases[i].n_blocks);
        double chosen, least;
        int count[6];

        o.planner = cases[i].planner;
        o.plan.budget = 0;
        list = o;
        list.cut = ZB_CUT_LIST;
        list.layers_per_chunk = count;
        chosen = step_of(m, &o);
        least = shortest(m, &list, count, 0, cases[i].n_virtual,
                         zb_model_n_blocks(m));
        if (chosen > least * 1.01) {
            printf("\n%s, %d stages: %g, but there is %g", o.planner,
                   o.n_stages, chosen, least);
            CU_FAIL("a list is better");
        }
        zb_model_free(m);
    }
}

static int n_blocks_of_chunk(const struct zb_run_plan *p, int v)
{
    int begin = zb_model_n_before(p->model), n = 0;

    for (int i = p->first_layer[v]; i < p->first_layer[v + 1]; i++) {
        n += i >= begin && i < begin + zb_model_n_blocks(p->model);
    }
    return n;
}

static void stage_of_a_large_head_gets_fewer_blocks(void)
{
    struct zb_model *m = big_head("16");

    for (size_t i = 0; i < ZB_COUNT_OF(some_planners); i++) {
        struct zb_session_opts o = ru_opts(4, 8, N_ROWS);
        struct zb_run_plan *p;
        int at_head = 0;

        o.planner = some_planners[i];
        p = plan(m, &o);
        for (int v = 0; v < p->n_virtual; v++) {
            at_head += zb_stage_of(p, v) == zb_stage_of(p, p->n_virtual - 1)
                           ? n_blocks_of_chunk(p, v)
                           : 0;
        }
        if (at_head >= 16 / 4) {
            zb_run_plan_print(p, stdout);
            CU_FAIL("the stage of the head has its full share");
        }
        zb_run_plan_free(p);
    }
    zb_model_free(m);
}

static void same_costs_give_the_same_plan(void)
{
    struct zb_model *m = big_head("13");
    struct zb_session_opts o = ru_opts(3, 8, N_ROWS);
    struct zb_run_plan *a = plan(m, &o), *b = plan(m, &o);

    for (int v = 0; v <= a->n_virtual; v++) {
        CU_ASSERT_EQUAL(a->first_layer[v], b->first_layer[v]);
    }
    CU_ASSERT_EQUAL(a->sched->makespan, b->sched->makespan);
    CU_ASSERT_EQUAL(a->n_tried, b->n_tried);
    zb_run_plan_free(a);
    zb_run_plan_free(b);
    zb_model_free(m);
}

static void more_chunks_than_layers_leaves_chunks_empty(void)
{
    struct zb_model *m = big_head("1");
    struct zb_session_opts o = ru_opts(7, 4, N_ROWS);
    struct zb_run_plan *p = plan(m, &o);
    int n_empty = 0;

    for (int v = 0; v < p->n_virtual; v++) {
        n_empty += p->first_layer[v] == p->first_layer[v + 1];
    }
    CU_ASSERT(n_empty >= 14 - 3);
    CU_ASSERT_EQUAL(p->first_layer[p->n_virtual], 3);
    zb_run_plan_free(p);
    zb_model_free(m);
}

/* ---- limits of memory ---------------------------------------------------- */

/* From what a run takes without a limit to the least that the message names,
 * every limit is kept. */
static void device_limit_is_kept_down_to_the_least_named(void)
{
    struct zb_model *m = big_head("6");

    for (size_t i = 0; i < ZB_COUNT_OF(some_planners); i++) {
        struct zb_session_opts o = ru_opts(3, 8, N_ROWS);
        struct zb_run_plan *p;
        size_t free_bytes, least;

        o.planner = some_planners[i];
        p = plan(m, &o);
        free_bytes = most_bytes(p);
        zb_run_plan_free(p);
        o.device_mem = 1000;
        p = plan(m, &o);
        least = most_bytes(p);
        CU_ASSERT_EQUAL(zb_run_plan_check_memory(p), ZB_EINFEASIBLE);
        zb_run_plan_free(p);
        CU_ASSERT(least <= free_bytes);
        for (int k = 0; k <= 4; k++) {
            o.device_mem = least + (free_bytes - least) * (size_t)k / 4;
            p = plan(m, &o);
            ZBT_OK(zb_run_plan_check_memory(p));
            CU_ASSERT(most_bytes(p) <= o.device_mem);
            zb_run_plan_free(p);
        }
    }
    zb_model_free(m);
}

static void less_device_memory_is_never_faster(void)
{
    struct zb_model *m = big_head("6");
    struct zb_session_opts o = ru_opts(2, 8, N_ROWS);
    size_t most, least;
    struct zb_run_plan *p;
    double wide, tight;

    o.device_mem = (size_t)1 << 40;
    p = plan(m, &o);
    most = most_bytes(p);
    wide = zb_run_step_cost(p);
    zb_run_plan_free(p);
    o.device_mem = 1000;
    p = plan(m, &o);
    least = most_bytes(p);
    zb_run_plan_free(p);
    CU_ASSERT(least < most);
    o.device_mem = least;
    tight = step_of(m, &o);
    CU_ASSERT(wide <= tight);
    zb_model_free(m);
}

static void activation_limit_is_hard(void)
{
    static const double factor[] = {0.4, 0.6, 1, 2};
    struct zb_model *m = big_head("6");
    struct zb_run_plan *p;

    for (size_t i = 0; i < ZB_COUNT_OF(factor); i++) {
        struct zb_session_opts o = ru_opts(4, 8, N_ROWS);
        double all = 0;

        o.max_mem = factor[i];
        o.is_mem_factor = 1;
        p = plan(m, &o);
        for (int v = 0; v < p->n_virtual; v++) {
            all += p->in.f_mem[v];
        }
        for (int s = 0; s < p->n_stages; s++) {
            CU_ASSERT(p->sched->peak_mem[s] <= factor[i] * all * (1 + 1e-9));
        }
        zb_run_plan_free(p);
        o.max_mem = 100;
        o.is_mem_factor = 0;
        CU_ASSERT_EQUAL(zb_run_plan_new(m, &o, &p), ZB_EINFEASIBLE);
        CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "needs"));
    }
    zb_model_free(m);
}

/* ---- pp_style = auto ----------------------------------------------------- */

static const struct zb_run_row *row_of(const struct zb_run_plan *p)
{
    for (int i = 0; i < p->n_rows; i++) {
        if (strcmp(p->row[i].planner, p->planner) == 0 &&
            p->row[i].recompute == p->o.recompute) {
            return &p->row[i];
        }
    }
    CU_FAIL_FATAL("the planner taken is not in the table");
    return NULL;
}

static void auto_style_takes_the_fastest_of_the_table(void)
{
    static const int micro[] = {1, 4, 8};
    struct zb_model *m = big_head("6");

    for (size_t i = 0; i < 2 * ZB_COUNT_OF(micro); i++) {
        struct zb_session_opts o =
            ru_opts(1 + (int)i, micro[i % ZB_COUNT_OF(micro)], N_ROWS);
        struct zb_run_plan *p, *again;

        o.planner = "auto";
        p = plan(m, &o);
        for (int k = 0; k < p->n_rows; k++) {
            CU_ASSERT(!p->row[k].is_possible ||
                      row_of(p)->step <= p->row[k].step * (1 + 1e-9));
        }
        o.planner = row_of(p)->planner;
        o.plan.budget = p->search.budget;
        again = plan(m, &o);
        CU_ASSERT(zb_run_step_cost(again) <= zb_run_step_cost(p) * (1 + 1e-9));
        zb_run_plan_free(again);
        zb_run_plan_free(p);
    }
    zb_model_free(m);
}

static void auto_style_leaves_out_what_does_not_fit(void)
{
    struct zb_model *m = big_head("6");
    struct zb_session_opts o = ru_opts(4, 8, N_ROWS);
    struct zb_run_plan *p;

    o.planner = "auto";
    o.max_mem = 0.8; /* gpipe needs 8 microbatches of 4 */
    o.is_mem_factor = 1;
    p = plan(m, &o);
    CU_ASSERT_STRING_NOT_EQUAL(p->planner, "gpipe");
    for (int i = 0; i < p->n_rows; i++) {
        if (strcmp(p->row[i].planner, "gpipe") == 0) {
            CU_ASSERT_FALSE(p->row[i].is_possible);
            CU_ASSERT(strlen(p->row[i].why_not) > 10);
        }
    }
    zb_run_plan_free(p);
    o.max_mem = 1e-6;
    CU_ASSERT_EQUAL(zb_run_plan_new(m, &o, &p), ZB_EINFEASIBLE);
    o.max_mem = 0;
    o.device_mem = 1000;
    ZBT_OK(zb_run_plan_new(m, &o, &p));
    CU_ASSERT_EQUAL(zb_run_plan_check_memory(p), ZB_EINFEASIBLE);
    zb_run_plan_free(p);
    zb_model_free(m);
}

/* The device of the least that suffices with some way to recompute: others than
 * that do not fit. With more memory than is needed none is the fastest. */
static void auto_style_recomputes_where_memory_asks_for_it(void)
{
    struct zb_model *m = big_head("6");
    struct zb_session_opts o = ru_opts(4, 8, N_ROWS);
    size_t least[ZB_N_RECOMPUTES];
    struct zb_run_plan *p;

    o.planner = "auto";
    for (int i = 0; i < ZB_N_RECOMPUTES; i++) {
        o.recompute = (enum zb_recompute)i;
        o.device_mem = 1000;
        p = plan(m, &o);
        CU_ASSERT_EQUAL(p->o.recompute, o.recompute);
        CU_ASSERT_EQUAL(p->row[0].recompute, p->row[p->n_rows - 1].recompute);
        least[i] = row_of(p)->device_bytes;
        zb_run_plan_free(p);
    }
    printf("\n  at least %zu, %zu, %zu bytes ", least[0], least[1], least[2]);
    CU_ASSERT_FATAL(least[2] < least[0]);
    o.recompute = ZB_RECOMPUTE_NONE;
    o.may_change_recompute = 1;
    o.device_mem = least[2];
    p = plan(m, &o);
    ZBT_OK(zb_run_plan_check_memory(p));
    CU_ASSERT_EQUAL(p->o.recompute, ZB_RECOMPUTE_FULL);
    CU_ASSERT(row_of(p)->is_possible);
    CU_ASSERT_EQUAL(p->row[0].recompute, ZB_RECOMPUTE_NONE);
    for (int i = 0; i < p->n_rows; i++) {
        CU_ASSERT(!p->row[i].is_possible ||
                  row_of(p)->step <= p->row[i].step * (1 + 1e-9));
    }
    zb_run_plan_free(p);
    o.device_mem = 100 * least[0];
    p = plan(m, &o);
    CU_ASSERT_EQUAL(p->o.recompute, ZB_RECOMPUTE_NONE);
    zb_run_plan_free(p);
    zb_model_free(m);
}

/* Times given for the chunks of a V are added up for a stage of one chunk. */
static void auto_style_compares_given_times_of_the_same_work(void)
{
    static const double cost[] = {1, 2, 3, 4};
    struct zb_model *m = big_head("6");
    struct zb_session_opts o = ru_opts(2, 4, N_ROWS);
    struct zb_run_plan *p;

    o.planner = "auto";
    o.f_cost = o.b_cost = o.w_cost = cost;
    for (o.n_costs = 1; o.n_costs <= 4; o.n_costs += 3) {
        p = plan(m, &o);
        for (int i = 0; i < p->n_rows; i++) {
            if (strcmp(p->row[i].planner, "gpipe") == 0) {
                CU_ASSERT(p->row[i].is_possible);
                /* 4 microbatches of 2 F + B + W on each stage, and one way
                 * there and back; or of 3 and 7 on the stages. */
                CU_ASSERT_DOUBLE_EQUAL(p->row[i].step,
                                       o.n_costs == 1 ? 24 + 6 : 84 + 9, 1e-9);
            }
        }
        zb_run_plan_free(p);
    }
    zb_model_free(m);
}

/* ---- effort -------------------------------------------------------------- */

static void effort_is_a_share_of_the_first_steps(void)
{
    int64_t one = zb_run_search_moves(1e6);
    int64_t ten = zb_run_search_moves(1e7);

    CU_ASSERT(one > 0);
    CU_ASSERT_DOUBLE_EQUAL((double)ten / (double)one, 10, 0.01);
    CU_ASSERT_EQUAL(zb_run_search_moves(0.01), 0);
    CU_ASSERT_EQUAL(zb_run_search_moves(1e12), -1);
    CU_ASSERT(zb_run_cut_tries(1e6, 1, 1000) >= 4);
    CU_ASSERT(zb_run_cut_tries(1e6, 1, 1000) < zb_run_cut_tries(1e9, 1, 1000));
    CU_ASSERT(zb_run_cut_tries(1e12, 1, 100000) <
              zb_run_cut_tries(1e12, 1, 1000));
    CU_ASSERT(zb_run_cut_tries(1e9, 0.1, 1000) <
              zb_run_cut_tries(1e9, 1, 1000));
}

static void budget_given_is_the_budget(void)
{
    struct zb_model *m = big_head("6");
    struct zb_session_opts o = ru_opts(2, 4, N_ROWS);
    struct zb_run_plan *p;

    p = plan(m, &o);
    CU_ASSERT(p->search.budget > 0); /* of a step of some microseconds */
    zb_run_plan_free(p);
    o.plan.budget = 17;
    o.plan.objective = ZB_PLAN_STEADY;
    p = plan(m, &o);
    CU_ASSERT_EQUAL(p->search.budget, 17);
    CU_ASSERT_EQUAL(p->sched->objective, ZB_PLAN_STEADY);
    CU_ASSERT_DOUBLE_EQUAL(zb_run_step_cost(p), p->sched->span + p->update,
                           1e-12);
    zb_run_plan_free(p);
    zb_model_free(m);
}

/* ---- failing allocations ------------------------------------------------- */

static void fail_each_allocation(const char *planner, size_t device_mem,
                                 int is_open)
{
    struct zb_model *m = big_head("3");
    struct zb_session_opts o = ru_opts(2, 2, N_ROWS);
    int64_t before = (int64_t)zb_mem_live();

    o.planner = planner;
    o.device_mem = device_mem;
    o.plan.budget = 0;
    o.may_change_recompute = is_open;
    for (unsigned k = 1;; k += zbt_is_long() ? 1 : is_open ? 1 + k / 2 : 5) {
        struct zb_run_plan *p = NULL;
        enum zb_status st;
        int failed;

        zb_mem_fail_at(k);
        st = zb_run_plan_new(m, &o, &p);
        failed = zb_mem_failed();
        zb_mem_fail_at(0);
        CU_ASSERT_EQUAL(st, failed ? ZB_ENOMEM : ZB_OK);
        zb_run_plan_free(st == ZB_OK ? p : NULL);
        CU_ASSERT_EQUAL((int64_t)zb_mem_live(), before);
        if (!failed) {
            break;
        }
    }
    zb_model_free(m);
}

static void failing_kth_allocation_unwinds(void)
{
    fail_each_allocation("zbv", 0, 0);
    fail_each_allocation("zbv", 1000, 0);
    fail_each_allocation("auto", 0, 0);
    fail_each_allocation("auto", 1000, 1);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(v_cut_has_least_busiest_stage),
        ZBT_CASE(auto_cut_is_never_slower_than_uniform),
        ZBT_CASE(auto_cut_is_as_good_as_any_list),
        ZBT_CASE(stage_of_a_large_head_gets_fewer_blocks),
        ZBT_CASE(same_costs_give_the_same_plan),
        ZBT_CASE(more_chunks_than_layers_leaves_chunks_empty),
        ZBT_CASE(device_limit_is_kept_down_to_the_least_named),
        ZBT_CASE(less_device_memory_is_never_faster),
        ZBT_CASE(activation_limit_is_hard),
        ZBT_CASE(auto_style_takes_the_fastest_of_the_table),
        ZBT_CASE(auto_style_leaves_out_what_does_not_fit),
        ZBT_CASE(auto_style_recomputes_where_memory_asks_for_it),
        ZBT_CASE(auto_style_compares_given_times_of_the_same_work),
        ZBT_CASE(effort_is_a_share_of_the_first_steps),
        ZBT_CASE(budget_given_is_the_budget),
        ZBT_CASE(failing_kth_allocation_unwinds),
    };
    return zbt_run("run_cut", cases, ZB_COUNT_OF(cases));
}
