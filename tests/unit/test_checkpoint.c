/* SPDX-License-Identifier: MIT
 *
 * Checkpoints on disk: written whole or not at all, checked when they are
 * opened, the newest kept. */
#include "config.h"
#include "zb/checkpoint.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "zbt.h"
#include "zb/hash.h"
#include "zb/log.h"
#include "zb/mem.h"

#define N_PARAMS 5

static char dir[PATH_MAX];

/* Every case has a folder of its own. */
static void new_dir(void)
{
    static int n;
    char name[32];

    snprintf(name, sizeof(name), "ckpt%d", n++);
    snprintf(dir, sizeof(dir), "%s", zbt_scratch_path(name));
}

static const char *in_dir(const char *name)
{
    static char path[2][2 * PATH_MAX];
    static int turn;
    char *p = path[turn++ % 2];

    snprintf(p, sizeof(path[0]), "%s/%s", dir, name);
    return p;
}

static zb_real *reals(int64_t n, double first)
{
    zb_real *x = zb_alloc_array((size_t)n, sizeof(*x));

    CU_ASSERT_FATAL(x != NULL);
    for (int64_t i = 0; i < n; i++) {
        x[i] = (zb_real)(first + (double)i / 8); /* exact in 16 bits */
    }
    return x;
}

/* Parameters of 24, 32, 40, ... elements; the last one is not trained. */
static struct zb_ckpt_shot *new_shot(int64_t step, enum zb_dtype storage)
{
    struct zb_ckpt_shot *c = zb_alloc(sizeof(*c));

    CU_ASSERT_FATAL(c != NULL);
    c->state = (struct zb_ckpt_state){.step = step,
                                      .n_samples = 8 * step,
                                      .seed = UINT64_MAX - 3,
                                      .n_batches = step + 1,
                                      .n_updates = step,
                                      .optimizer = "adamw",
                                      .n_moments = 2,
                                      .has_scale = 1,
                                      .scale = 1.0 / 3,
                                      .n_good = 5,
                                      .n_overflows = 6};
    c->storage = storage;
    c->config_json = zb_strdup("{\"model_type\": \"none\"}");
    c->param = zb_alloc_array(N_PARAMS, sizeof(*c->param));
    CU_ASSERT_FATAL(c->config_json != NULL && c->param != NULL);
    for (int i = 0; i < N_PARAMS; i++) {
        struct zb_ckpt_param *p = &c->param[c->n++];

        p->name = zb_format("layer.%d", i);
        p->n_dims = 2;
        p->dims[0] = 3 + i;
        p->dims[1] = 8;
        p->n = p->dims[0] * p->dims[1];
        p->value = reals(p->n, i);
        p->is_trained = i < N_PARAMS - 1;
        for (int k = 0; k < 2 && p->is_trained; k++) {
            p->moment[k] = reals(p->n, 10 * (k + 1) + i);
        }
    }
    return c;
}

static enum zb_status write_step(int64_t step, int keep)
{
    const struct zb_ckpt_opts o = {.dir = dir, .keep = keep};
    struct zb_ckpt_shot *c = new_shot(step, ZB_DTYPE_REAL);
    enum zb_status st = zb_ckpt_write(&o, c);

    zb_ckpt_shot_free(c);
    return st;
}

static int has_values(struct zb_weight x, const zb_real *want, int64_t n)
{
    zb_real *have = zb_alloc_array((size_t)n, sizeof(*have));
    int is_equal;

    CU_ASSERT_PTR_NOT_NULL_FATAL(x.tensor);
    CU_ASSERT_EQUAL_FATAL(x.tensor->n_elems, n);
    ZBT_OK(zb_st_read_real(x.file, x.tensor, have, n));
    is_equal = memcmp(have, want, (size_t)n * sizeof(*have)) == 0;
    zb_free(have);
    return is_equal;
}

static void compare(const struct zb_ckpt *k, const struct zb_ckpt_shot *c)
{
    int has_masters = c->storage != ZB_DTYPE_REAL;

    CU_ASSERT(memcmp(&k->state, &c->state, sizeof(k->state)) == 0);
    for (size_t i = 0; i < c->n; i++) {
        const struct zb_ckpt_param *p = &c->param[i];
        char name[64];

        if (!has_masters || !p->is_trained) {
            CU_ASSERT(
                has_values(zb_weights_get(k->model, p->name), p->value, p->n));
        }
        snprintf(name, sizeof(name), "master.%s", p->name);
        if (has_masters && p->is_trained) {
            CU_ASSERT(
                has_values(zb_weights_get(k->optim, name), p->value, p->n));
        } else {
            CU_ASSERT_PTR_NULL(zb_weights_get(k->optim, name).tensor);
        }
        snprintf(name, sizeof(name), "m.%s", p->name);
        if (p->is_trained) {
            CU_ASSERT(
                has_values(zb_weights_get(k->optim, name), p->moment[0], p->n));
            name[0] = 'v';
            CU_ASSERT(
                has_values(zb_weights_get(k->optim, name), p->moment[1], p->n));
        } else {
            CU_ASSERT_PTR_NULL(zb_weights_get(k->optim, name).tensor);
        }
    }
}

static int config_says(const char *type)
{
    FILE *f = fopen(in_dir("step-7/config.json"), "r");
    char text[256] = "", want[64];

    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    CU_ASSERT(fread(text, 1, sizeof(text) - 1, f) > 0);
    fclose(f);
    snprintf(want, sizeof(want), "\"torch_dtype\": %s", type);
    return strstr(text, want) != NULL && strstr(text, "\"none\"") != NULL;
}

static void what_is_written_is_read(void)
{
    static const enum zb_dtype storage[] = {ZB_DTYPE_REAL, ZB_DTYPE_BF16,
                                            ZB_DTYPE_F16};

    for (size_t i = 0; i < ZB_COUNT_OF(storage); i++) {
        struct zb_ckpt_shot *c = new_shot(7, storage[i]);
        struct zb_ckpt *k = NULL;
        /* In the model's order: 24, 32, 40, 48 and 56 elements. */
        const struct zb_ckpt_opts o = {
            .dir = dir,
            .max_file_bytes = 60 * (int64_t)zb_dtype_bytes(storage[i])};

        new_dir();
        ZBT_OK(zb_ckpt_write(&o, c));
        ZBT_OK(zb_ckpt_open(in_dir("step-7"), &k));
        compare(k, c);
        CU_ASSERT_EQUAL(
            access(in_dir("step-7/model-00004-of-00004.safetensors"), F_OK), 0);
        CU_ASSERT(config_says(i == 0   ? sizeof(zb_real) == 8 ? "\"float64\""
                                                              : "\"float32\""
                              : i == 1 ? "\"bfloat16\""
                                       : "\"float16\""));
        CU_ASSERT_STRING_EQUAL(
            zb_st_find_meta(zb_weights_get(k->model, "layer.0").file, "format"),
            "pt");
        zb_ckpt_close(k);
        zb_ckpt_shot_free(c);
    }
    CU_ASSERT_EQUAL(zb_mem_live(), 0);
}

static void newest_of_all_that_are_kept_is_opened(void)
{
    struct zb_ckpt *k = NULL;
    int64_t *step = NULL;
    size_t n = 0;

    new_dir();
    ZBT_OK(zb_ckpt_list(dir, &step, &n));
    CU_ASSERT_EQUAL(n, 0);
    ZBT_OK(zb_ckpt_open_newest(dir, &k));
    CU_ASSERT_PTR_NULL(k);
    for (int i = 8; i <= 11; i++) {
        ZBT_OK(write_step(i, 2));
    }
    CU_ASSERT_EQUAL(mkdir(in_dir("step-012"), 0777), 0);
    CU_ASSERT_EQUAL(mkdir(in_dir("step-x"), 0777), 0);
    ZBT_OK(zb_ckpt_list(dir, &step, &n));
    CU_ASSERT_EQUAL_FATAL(n, 2);
    CU_ASSERT_EQUAL(step[0], 10);
    CU_ASSERT_EQUAL(step[1], 11);
    zb_free(step);
    ZBT_OK(zb_ckpt_open_newest(dir, &k));
    CU_ASSERT_EQUAL(k->state.step, 11);
    zb_ckpt_close(k);
    ZBT_OK(write_step(12, 0));
    ZBT_OK(zb_ckpt_list(dir, &step, &n));
    CU_ASSERT_EQUAL(n, 3);
    zb_free(step);
}

static void same_step_is_replaced(void)
{
    struct zb_ckpt *k = NULL;
    struct zb_ckpt_shot *c = new_shot(3, ZB_DTYPE_REAL);
    const struct zb_ckpt_opts o = {.dir = dir, .keep = 3};

    new_dir();
    ZBT_OK(write_step(3, 3));
    c->param[0].value[0] = 99;
    ZBT_OK(zb_ckpt_write(&o, c));
    ZBT_OK(zb_ckpt_open_newest(dir, &k));
    compare(k, c);
    CU_ASSERT_NOT_EQUAL(access(in_dir("step-3.old.tmp"), F_OK), 0);
    zb_ckpt_close(k);
    zb_ckpt_shot_free(c);
}

/* ---- damage -------------------------------------------------------------- */

static void change_byte(const char *path, long at)
{
    FILE *f = fopen(path, "r+b");
    int c;

    CU_ASSERT_FATAL(f != NULL);
    CU_ASSERT_FATAL(fseek(f, at, at < 0 ? SEEK_END : SEEK_SET) == 0);
    c = fgetc(f);
    CU_ASSERT_FATAL(fseek(f, -1, SEEK_CUR) == 0);
    fputc(c ^ 1, f);
    CU_ASSERT_FATAL(fclose(f) == 0);
}

static void damaged_one_is_named_and_the_one_before_used(void)
{
    static const char *const files[] = {"config.json", "model.safetensors",
                                        "state/optim.safetensors",
                                        "state/state.json"};

    for (size_t i = 0; i < ZB_COUNT_OF(files); i++) {
        struct zb_ckpt *k = NULL;
        char name[64];

        new_dir();
        ZBT_OK(write_step(1, 3));
        ZBT_OK(write_step(2, 3));
        snprintf(name, sizeof(name), "step-2/%s", files[i]);
        change_byte(in_dir(name), i == 3 ? 120 : -9);
        CU_ASSERT_NOT_EQUAL(zb_ckpt_open(in_dir("step-2"), &k), ZB_OK);
        CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), files[i]));
        ZBT_OK(zb_ckpt_open_newest(dir, &k));
        CU_ASSERT_EQUAL(k->state.step, 1);
        zb_ckpt_close(k);
        CU_ASSERT_EQUAL(truncate(in_dir("step-1/model.safetensors"), 40), 0);
        k = NULL;
        CU_ASSERT_EQUAL(zb_ckpt_open_newest(dir, &k), ZB_ECONFIG);
        CU_ASSERT_PTR_NOT_NULL(
            strstr(zb_error_text(), "all checkpoints are damaged (2)"));
        CU_ASSERT_PTR_NULL(k);
    }
    CU_ASSERT_EQUAL(zb_mem_live(), 0);
}

static void missing_file_is_damage(void)
{
    struct zb_ckpt *k = NULL;

    new_dir();
    ZBT_OK(write_step(1, 3));
    CU_ASSERT_EQUAL(remove(in_dir("step-1/config.json")), 0);
    CU_ASSERT_EQUAL(zb_ckpt_open(in_dir("step-1"), &k), ZB_EIO);
    CU_ASSERT(zb_ckpt_is_one(in_dir("step-1")));
    CU_ASSERT(!zb_ckpt_is_one(dir));
    ZBT_OK(zb_ckpt_set_aside(dir, 1));
    ZBT_OK(zb_ckpt_open_newest(dir, &k));
    CU_ASSERT_PTR_NULL(k);
    ZBT_OK(write_step(1, 3));
    ZBT_OK(zb_ckpt_set_aside(dir, 1));
    CU_ASSERT_EQUAL(access(in_dir("step-1.damaged-2"), F_OK), 0);
}

/* ---- failures ------------------------------------------------------------ */

/* Files beyond `bytes` can not be written, as on a full disk. */
static void limit_files(rlim_t bytes)
{
    struct rlimit r;

    signal(SIGXFSZ, SIG_IGN);
    CU_ASSERT_FATAL(getrlimit(RLIMIT_FSIZE, &r) == 0);
    r.rlim_cur = bytes;
    CU_ASSERT_FATAL(setrlimit(RLIMIT_FSIZE, &r) == 0);
}

static void full_disk_leaves_what_was_there(void)
{
    struct zb_ckpt *k = NULL;
    rlim_t limit[] = {10, 600, 900, 1500};

    new_dir();
    ZBT_OK(write_step(1, 1));
    for (size_t i = 0; i < ZB_COUNT_OF(limit); i++) {
        limit_files(limit[i]);
        CU_ASSERT_EQUAL(write_step(2, 1), ZB_EIO);
        limit_files(RLIM_INFINITY);
        CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "step-2"));
        CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "File too large"));
        CU_ASSERT_NOT_EQUAL(access(in_dir("step-2.tmp"), F_OK), 0);
        ZBT_OK(zb_ckpt_open_newest(dir, &k));
        CU_ASSERT_EQUAL(k->state.step, 1);
        zb_ckpt_close(k);
    }
    ZBT_OK(write_step(2, 1));
}

static void every_allocation_may_fail(void)
{
    const struct zb_ckpt_opts o = {.dir = dir, .max_file_bytes = 100};
    struct zb_ckpt_shot *c = new_shot(4, ZB_DTYPE_BF16);
    struct zb_ckpt *k = NULL;
    int64_t before = zb_mem_live();
    enum zb_status st = ZB_ENOMEM;

    new_dir();
    for (uint64_t at = 1; st == ZB_ENOMEM && at < 10000; at++) {
        zb_mem_fail_at(at);
        st = zb_ckpt_write(&o, c);
        zb_mem_fail_at(0);
        CU_ASSERT_EQUAL_FATAL(zb_mem_live(), before);
    }
    CU_ASSERT_EQUAL(st, ZB_OK);
    st = ZB_ENOMEM;
    for (uint64_t at = 1; st == ZB_ENOMEM && at < 10000; at++) {
        k = NULL;
        zb_mem_fail_at(at);
        st = zb_ckpt_open_newest(dir, &k);
        zb_mem_fail_at(0);
        CU_ASSERT_FATAL(st == ZB_OK || zb_mem_live() == before);
    }
    CU_ASSERT_EQUAL(st, ZB_OK);
    CU_ASSERT_PTR_NOT_NULL_FATAL(k);
    compare(k, c);
    zb_ckpt_close(k);
    zb_ckpt_shot_free(c);
}

static void leftovers_of_a_killed_run_are_removed(void)
{
    int64_t *step = NULL;
    size_t n = 0;

    new_dir();
    ZBT_OK(zb_ckpt_clean(dir));
    ZBT_OK(write_step(1, 3));
    CU_ASSERT_EQUAL(rename(in_dir("step-1"), in_dir("step-1.tmp")), 0);
    ZBT_OK(write_step(2, 3));
    CU_ASSERT_EQUAL(rename(in_dir("step-2"), in_dir("step-2.old.tmp")), 0);
    ZBT_OK(write_step(3, 3));
    CU_ASSERT_EQUAL(mkdir(in_dir("mine.tmp"), 0777), 0);
    ZBT_OK(zb_ckpt_list(dir, &step, &n));
    CU_ASSERT_EQUAL(n, 1);
    zb_free(step);
    ZBT_OK(zb_ckpt_clean(dir));
    CU_ASSERT_NOT_EQUAL(access(in_dir("step-1.tmp"), F_OK), 0);
    CU_ASSERT_NOT_EQUAL(access(in_dir("step-2.old.tmp"), F_OK), 0);
    CU_ASSERT_EQUAL(access(in_dir("step-3"), F_OK), 0);
    CU_ASSERT_EQUAL(access(in_dir("mine.tmp"), F_OK), 0);
}

/* ---- behind -------------------------------------------------------------- */

static void saver_writes_and_reports_once(void)
{
    struct zb_saver *s = NULL;
    struct zb_ckpt *k = NULL;
    const struct zb_ckpt_opts o = {.dir = dir, .keep = 2};

    new_dir();
    ZBT_OK(zb_saver_new(&o, &s));
    CU_ASSERT(zb_saver_is_done(s));
    ZBT_OK(zb_saver_wait(s));
    for (int i = 1; i <= 3; i++) {
        ZBT_OK(zb_saver_begin(s, new_shot(i, ZB_DTYPE_REAL)));
        ZBT_OK(zb_saver_wait(s));
        CU_ASSERT(zb_saver_is_done(s));
    }
    ZBT_OK(zb_ckpt_open_newest(dir, &k));
    CU_ASSERT_EQUAL(k->state.step, 3);
    zb_ckpt_close(k);
    limit_files(100);
    ZBT_OK(zb_saver_begin(s, new_shot(4, ZB_DTYPE_REAL)));
    CU_ASSERT_EQUAL(zb_saver_wait(s), ZB_EIO);
    limit_files(RLIM_INFINITY);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "step-4"));
    ZBT_OK(zb_saver_wait(s));
    ZBT_OK(zb_saver_begin(s, new_shot(5, ZB_DTYPE_REAL)));
    zb_saver_free(s);
    ZBT_OK(zb_ckpt_open(in_dir("step-5"), &k));
    zb_ckpt_close(k);
    CU_ASSERT_EQUAL(zb_mem_live(), 0);
}

/* ---- checksums ----------------------------------------------------------- */

static uint64_t sum_of(const unsigned char *x, size_t n, size_t cut)
{
    struct zb_sum s;

    zb_sum_init(&s);
    for (size_t at = 0; at < n; at += cut) {
        zb_sum_add(&s, x + at, n - at < cut ? n - at : cut);
    }
    return zb_sum_value(&s);
}

static void sum_does_not_depend_on_cuts_but_on_every_bit(void)
{
    unsigned char x[200];
    uint64_t whole;

    for (size_t i = 0; i < sizeof(x); i++) {
        x[i] = (unsigned char)(i * 37);
    }
    whole = sum_of(x, sizeof(x), sizeof(x));
    for (size_t cut = 1; cut < sizeof(x); cut++) {
        CU_ASSERT_EQUAL_FATAL(sum_of(x, sizeof(x), cut), whole);
        CU_ASSERT_FATAL(sum_of(x, cut, 64) != whole);
    }
    for (size_t i = 0; i < 8 * sizeof(x); i++) {
        x[i / 8] ^= (unsigned char)(1u << i % 8);
        CU_ASSERT_FATAL(sum_of(x, sizeof(x), 64) != whole);
        x[i / 8] ^= (unsigned char)(1u << i % 8);
    }
    /* Two changes of the same bit, a block apart. */
    x[7] ^= 0x80;
    x[39] ^= 0x80;
    CU_ASSERT(sum_of(x, sizeof(x), 64) != whole);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(what_is_written_is_read),
        ZBT_CASE(newest_of_all_that_are_kept_is_opened),
        ZBT_CASE(same_step_is_replaced),
        ZBT_CASE(damaged_one_is_named_and_the_one_before_used),
        ZBT_CASE(missing_file_is_damage),
        ZBT_CASE(full_disk_leaves_what_was_there),
        ZBT_CASE(every_allocation_may_fail),
        ZBT_CASE(leftovers_of_a_killed_run_are_removed),
        ZBT_CASE(saver_writes_and_reports_once),
        ZBT_CASE(sum_does_not_depend_on_cuts_but_on_every_bit),
    };

    zb_log_set_level(ZB_LOG_ERROR);
    return zbt_run("checkpoint", cases, ZB_COUNT_OF(cases));
}
