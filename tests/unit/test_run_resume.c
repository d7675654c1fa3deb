/* SPDX-License-Identifier: MIT
 *
 * Runs that stop and go on: on the same layout with the same bits, on another
 * one from the same masters and moments. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "run_util.h"
#include "zbt.h"
#include "zb/checkpoint.h"
#include "zb/mem.h"

#define ROWS 8
#define LR 1e-2

struct setup {
    struct ru_grid grid;
    enum zb_dtype storage;
    enum zb_optim_kind optim;
    int zero_stage;
    int is_gpt2; /* tied, with dropout */
};

struct run {
    struct zb_model *m;
    struct zb_session *s;
    struct zb_ckpt *from; /* what it goes on from, or NULL */
};

static struct zb_session_opts opts_of(const struct setup *u)
{
    struct zb_session_opts o = ru_grid_opts(&u->grid, ROWS);

    o.optim.kind = u->optim;
    o.optim.momentum = u->optim == ZB_OPTIM_SGD ? 0.9 : 0;
    o.zero_stage = u->zero_stage;
    if (u->storage == ZB_DTYPE_F16) {
        o.scaler = (struct zb_scaler_opts){.initial_scale = 1024,
                                           .min_scale = 1,
                                           .max_scale = 65536,
                                           .growth_factor = 2,
                                           .backoff_factor = 0.5,
                                           .growth_interval = 4,
                                           .hysteresis = 1};
    }
    return o;
}

static struct run begin(const struct setup *u, const char *checkpoint)
{
    const struct zb_parallel par = {.tp = u->grid.tp,
                                    .sp = u->grid.sp,
                                    .mode = u->grid.mode,
                                    .vocab_multiple = 24};
    struct zb_session_opts o = opts_of(u);
    struct run r = {.from = NULL};

    r.m = u->is_gpt2 ? ru_gpt2_on(&par) : ru_llama_as(&par, u->storage);
    if (checkpoint != NULL) {
        ZBT_OK(zb_ckpt_open_newest(checkpoint, &r.from));
        CU_ASSERT_PTR_NOT_NULL_FATAL(r.from);
        o.resume = r.from;
    }
    ZBT_OK(zb_session_new(r.m, &o, &r.s));
    return r;
}

static void end(struct run *r)
{
    zb_session_free(r->s);
    zb_ckpt_close(r->from);
    zb_model_free(r->m);
}

/* Steps first .. last, each with a batch of its own. */
static void train(struct run *r, int first, int last, double *loss)
{
    for (int i = first; i <= last; i++) {
        struct zb_step_result res = {.loss = 0};
        struct ru_batch b;

        ru_batch_init(&b, ROWS, RU_SEQ, (unsigned long long)i);
        ZBT_OK(zb_train_step(r->s, &b.in, LR, &res));
        loss[i] = res.loss;
        ru_batch_release(&b);
    }
}

static struct zb_ckpt_shot *shoot(struct run *r, int step)
{
    struct zb_ckpt_shot *c = NULL;

    ZBT_OK(zb_session_snapshot(r->s, &c));
    c->state.step = step;
    return c;
}

static void save(struct run *r, int step, const char *dir)
{
    struct zb_ckpt_shot *c = shoot(r, step);
    const struct zb_ckpt_opts o = {.dir = dir, .keep = 1};

    ZBT_OK(zb_ckpt_write(&o, c));
    zb_ckpt_shot_free(c);
}

static int same_reals(const zb_real *a, const zb_real *b, int64_t n)
{
    return (a == NULL) == (b == NULL) &&
           (a == NULL || memcmp(a, b, (size_t)n * sizeof(*a)) == 0);
}

/* Names, masters and moments, and all counters. */
static int same_shots(const struct zb_ckpt_shot *a,
                      const struct zb_ckpt_shot *b)
{
    const struct zb_ckpt_state *x = &a->state, *y = &b->state;

    if (a->n != b->n || x->n_batches != y->n_batches ||
        x->n_updates != y->n_updates || x->has_scale != y->has_scale ||
        (x->has_scale && x->scale != y->scale) || x->n_good != y->n_good) {
        return 0;
    }
    for (size_t i = 0; i < a->n; i++) {
        const struct zb_ckpt_param *p = &a->param[i], *q = &b->param[i];

        if (strcmp(p->name, q->name) != 0 || p->n != q->n ||
            !same_reals(p->value, q->value, p->n) ||
            !same_reals(p->moment[0], q->moment[0], p->n) ||
            !same_reals(p->moment[1], q->moment[1], p->n)) {
            printf("\n%s differs", p->name);
            return 0;
        }
    }
    return 1;
}

/* Something was learned: moments that stay zero would be equal too. */
static int has_moments(const struct zb_ckpt_shot *c)
{
    for (size_t i = 0; i < c->n; i++) {
        double sum = 0;

        for (int64_t k = 0; k < c->param[i].n; k++) {
            sum += fabs((double)c->param[i].moment[0][k]);
        }
        if (!(sum > 0)) {
            return 0;
        }
    }
    return c->n > 0;
}

/* Train 10 steps on `a`, save, and go on both there and, from the checkpoint,
 * on `b`: losses of steps 11 .. 14 by both. */
static void stop_and_go(const struct setup *a, const struct setup *b,
                        double *loss_a, double *loss_b)
{
    const char *dir = zbt_scratch_path("ckpt");
    struct run r = begin(a, NULL), next;
    struct zb_ckpt_shot *before, *after;

    train(&r, 1, 10, loss_a);
    save(&r, 10, dir);
    before = shoot(&r, 10);
    CU_ASSERT(has_moments(before));
    next = begin(b, dir);
    CU_ASSERT_EQUAL(next.from->state.step, 10);
    after = shoot(&next, 10);
    CU_ASSERT(same_shots(before, after));
    train(&r, 11, 14, loss_a);
    train(&next, 11, 14, loss_b);
    zb_ckpt_shot_free(before);
    zb_ckpt_shot_free(after);
    end(&next);
    end(&r);
}

static void same_layout_goes_on_with_the_same_bits(void)
{
    static const struct setup u[] = {
        {{2, 1, 1, 1, ZB_SEQ_WHOLE}, ZB_DTYPE_REAL, ZB_OPTIM_ADAMW, 1, 0},
        {{2, 1, 1, 1, ZB_SEQ_WHOLE}, ZB_DTYPE_REAL, ZB_OPTIM_ADAMW, 1, 1},
        {{1, 2, 1, 2, ZB_SEQ_WHOLE}, ZB_DTYPE_REAL, ZB_OPTIM_ADAMW, 1, 1},
        {{1, 1, 2, 2, ZB_SEQ_RING}, ZB_DTYPE_REAL, ZB_OPTIM_ADAMW, 0, 0},
        {{2, 2, 1, 1, ZB_SEQ_WHOLE}, ZB_DTYPE_BF16, ZB_OPTIM_ADAMW, 1, 0},
        {{1, 1, 1, 2, ZB_SEQ_WHOLE}, ZB_DTYPE_F16, ZB_OPTIM_ADAMW, 1, 0},
        {{2, 1, 1, 2, ZB_SEQ_WHOLE}, ZB_DTYPE_REAL, ZB_OPTIM_SGD, 1, 0},
    };

    for (size_t i = 0; i < ZB_COUNT_OF(u); i++) {
        double a[15], b[15];

        stop_and_go(&u[i], &u[i], a, b);
        CU_ASSERT(memcmp(a + 11, b + 11, 4 * sizeof(*a)) == 0);
    }
}

static void other_layout_goes_on_from_the_same_state(void)
{
    static const struct setup u[] = {
        {{2, 1, 1, 1, ZB_SEQ_WHOLE}, ZB_DTYPE_REAL, ZB_OPTIM_ADAMW, 1, 0},
        {{1, 2, 1, 2, ZB_SEQ_WHOLE}, ZB_DTYPE_REAL, ZB_OPTIM_ADAMW, 1, 0},
        {{2, 1, 1, 2, ZB_SEQ_WHOLE}, ZB_DTYPE_REAL, ZB_OPTIM_ADAMW, 1, 0},
        {{1, 4, 1, 1, ZB_SEQ_WHOLE}, ZB_DTYPE_REAL, ZB_OPTIM_ADAMW, 0, 0},
        {{1, 1, 2, 2, ZB_SEQ_ALL_TO_ALL}, ZB_DTYPE_REAL, ZB_OPTIM_ADAMW, 0, 0},
        {{3, 2, 1, 1, ZB_SEQ_SPLIT_GATHER},
         ZB_DTYPE_REAL,
         ZB_OPTIM_ADAMW,
         1,
         0},
    };

    for (size_t i = 0; i < ZB_COUNT_OF(u); i++) {
        struct setup from = u[i], to = u[(i + 1) % ZB_COUNT_OF(u)];

        for (int is_gpt2 = 0; is_gpt2 < 2; is_gpt2++) {
            double a[15], b[15];

            from.is_gpt2 = to.is_gpt2 = is_gpt2;
            stop_and_go(&from, &to, a, b);
            for (int k = 11; k <= 14; k++) {
                CU_ASSERT_DOUBLE_EQUAL(b[k], a[k], 1e-5 * fabs(a[k]));
            }
        }
    }
}

static void chain_of_layouts_ends_where_one_run_does(void)
{
    static const struct setup u[] = {
        {{2, 1, 1, 1, ZB_SEQ_WHOLE}, ZB_DTYPE_REAL, ZB_OPTIM_ADAMW, 1, 0},
        {{1, 2, 1, 2, ZB_SEQ_WHOLE}, ZB_DTYPE_REAL, ZB_OPTIM_ADAMW, 1, 0},
        {{2, 1, 1, 2, ZB_SEQ_WHOLE}, ZB_DTYPE_REAL, ZB_OPTIM_ADAMW, 1, 0},
    };
    const char *dir = zbt_scratch_path("chain");
    double whole[31], parts[31];
    struct run r = begin(&u[0], NULL);

    train(&r, 1, 30, whole);
    end(&r);
    for (int i = 0; i < 3; i++) {
        r = begin(&u[i], i > 0 ? dir : NULL);
        train(&r, 10 * i + 1, 10 * i + 10, parts);
        save(&r, 10 * i + 10, dir);
        end(&r);
    }
    for (int i = 1; i <= 30; i++) {
        CU_ASSERT_DOUBLE_EQUAL(parts[i], whole[i], 1e-5 * fabs(whole[i]));
    }
}

/* 16-bit runs keep masters, which a run in another type takes up. */
static void other_type_goes_on_from_the_masters(void)
{
    static const enum zb_dtype type[] = {ZB_DTYPE_BF16, ZB_DTYPE_REAL,
                                         ZB_DTYPE_F16, ZB_DTYPE_BF16};

    for (size_t i = 0; i + 1 < ZB_COUNT_OF(type); i++) {
        struct setup a = {
            {1, 2, 1, 1, ZB_SEQ_WHOLE}, type[i], ZB_OPTIM_ADAMW, 1, 0};
        struct setup b = a;
        const char *dir = zbt_scratch_path("types");
        struct run r = begin(&a, NULL), next;
        struct zb_ckpt_shot *x, *y;
        double loss[3];

        b.storage = type[i + 1];
        train(&r, 1, 2, loss);
        save(&r, 2, dir);
        next = begin(&b, dir);
        x = shoot(&r, 2);
        y = shoot(&next, 2);
        for (size_t k = 0; k < x->n; k++) {
            CU_ASSERT(same_reals(x->param[k].value, y->param[k].value,
                                 x->param[k].n));
        }
        zb_ckpt_shot_free(y);
        zb_ckpt_shot_free(x);
        end(&next);
        end(&r);
    }
}

/* A step that was clipped is undone behind it: a snapshot has what came of it.
 */
static void snapshot_after_a_clipped_step_is_that_of_waiting(void)
{
    static const struct setup u = {
        {2, 1, 1, 2, ZB_SEQ_WHOLE}, ZB_DTYPE_REAL, ZB_OPTIM_ADAMW, 1, 0};
    struct zb_ckpt_shot *shot[2];
    struct zb_step_result res = {.loss = 0};
    struct ru_batch b;

    ru_batch_init(&b, ROWS, RU_SEQ, 1);
    for (int i = 0; i < 2; i++) {
        struct zb_model *m = ru_llama();
        struct zb_session_opts o = opts_of(&u);
        struct run r = {.m = m};

        o.optim.max_norm = 0.01;
        o.post_validation = i;
        ZBT_OK(zb_session_new(m, &o, &r.s));
        ZBT_OK(zb_train_step(r.s, &b.in, LR, &res));
        CU_ASSERT(res.grad_norm > 0.01);
        shot[i] = shoot(&r, 1);
        end(&r);
    }
    CU_ASSERT(same_shots(shot[0], shot[1]));
    zb_ckpt_shot_free(shot[0]);
    zb_ckpt_shot_free(shot[1]);
    ru_batch_release(&b);
}

static void other_model_or_optimizer_is_refused(void)
{
    static const struct setup u = {
        {1, 1, 1, 1, ZB_SEQ_WHOLE}, ZB_DTYPE_REAL, ZB_OPTIM_ADAMW, 1, 0};
    const char *dir = zbt_scratch_path("other");
    struct run r = begin(&u, NULL);
    struct zb_ckpt *c = NULL;
    struct zb_session *s = NULL;
    struct zb_model *m = ru_gpt2(0);
    struct zb_session_opts o = opts_of(&u);

    save(&r, 0, dir);
    ZBT_OK(zb_ckpt_open_newest(dir, &c));
    o.resume = c;
    CU_ASSERT_EQUAL(zb_session_new(m, &o, &s), ZB_ECONFIG);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "transformer.wte.weight"));
    o.optim.kind = ZB_OPTIM_SGD;
    CU_ASSERT_EQUAL(zb_session_new(r.m, &o, &s), ZB_ECONFIG);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "adamw"));
    zb_model_free(m);
    zb_ckpt_close(c);
    end(&r);
    CU_ASSERT_EQUAL(zb_mem_live(), 0);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(same_layout_goes_on_with_the_same_bits),
        ZBT_CASE(other_layout_goes_on_from_the_same_state),
        ZBT_CASE(chain_of_layouts_ends_where_one_run_does),
        ZBT_CASE(other_type_goes_on_from_the_masters),
        ZBT_CASE(snapshot_after_a_clipped_step_is_that_of_waiting),
        ZBT_CASE(other_model_or_optimizer_is_refused),
    };

    return zbt_run("run_resume", cases, ZB_COUNT_OF(cases));
}
