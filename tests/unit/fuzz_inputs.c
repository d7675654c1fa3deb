/* SPDX-License-Identifier: MIT
 *
 * Hostile inputs through the loaders as zbrun uses them, up to a plan: each is
 * taken or refused with a text, without a crash, a hang or a leak. Files of one
 * kind alone are in test_conf_file, test_plan_files, test_safetensors and
 * test_model. */
#include "config.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/job.h"
#include "plan_quick.h"
#include "zbt.h"
#include "zb/log.h"
#include "zb/mem.h"
#include "zb/plan.h"

/* One input takes a millisecond; only a hang takes this. */
#define HANG_S 120

static const char ini[] = "[model]\n"
                          "model_type = llama\n"
                          "vocab_size = 256\n"
                          "hidden_size = 8\n"
                          "intermediate_size = 12\n"
                          "num_hidden_layers = 5\n"
                          "num_attention_heads = 2\n"
                          "num_key_value_heads = 1\n"
                          "max_position_embeddings = 32\n"
                          "rope_scaling = {\"type\": \"linear\", "
                          "\"factor\": 2}\n"
                          "[data]\n"
                          "train = text.txt, text.txt\n"
                          "valid = text.txt\n"
                          "seq_len = 16\n"
                          "[parallel]\n"
                          "pp_size = 2\n"
                          "pp_style = zbv\n"
                          "num_microbatches = 3\n"
                          "num_layers_per_stage = 1, 2, 1, 1\n"
                          "[schedule]\n"
                          "costs = given\n"
                          "f_cost = 1, 2, 3, 4\n"
                          "b_cost = 2\n"
                          "w_cost = 1\n"
                          "max_mem = 1.5x\n"
                          "[train]\n"
                          "steps = 3\n";

static const char json[] =
    "{\"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_positions\": 32,\n"
    " \"n_embd\": 8, \"n_layer\": 3, \"n_head\": 2, \"n_inner\": null,\n"
    " \"activation_function\": \"gelu_new\", \"resid_pdrop\": 0.1,\n"
    " \"layer_norm_epsilon\": 1e-05, \"scale_attn_weights\": true}\n";

static const char json_ini[] = "[model]\npath = .\n"
                               "[data]\ntrain = text.txt\nseq_len = 8\n"
                               "[parallel]\npp_size = 2\n";

static const char nodes_ini[] =
    "[model]\npath = .\n"
    "[data]\ntrain = text.txt\nseq_len = 8\n"
    "[parallel]\npp_size = 2\nnum_microbatches = 2\n"
    "pp_style = file\nscheduler_nodes = schedule\n";

static const char *write_file(const char *name, const void *data, size_t n)
{
    const char *path = zbt_scratch_path(name);
    FILE *f = fopen(path, "wb");

    if (f == NULL || fwrite(data, 1, n, f) != n || fclose(f) != 0) {
        CU_FAIL_FATAL("scratch file");
    }
    return path;
}

static size_t mutate(struct zbt_rng *rng, char *text, size_t n, size_t max)
{
    static const char telling[] = "0123456789-+.e,=[]{}\":;# \n\tx";
    long n_changes = zbt_rand_in(rng, 0, 2) > 0 ? 1 : zbt_rand_in(rng, 2, 5);

    while (n_changes-- > 0 && n > 1) {
        size_t at = (size_t)zbt_rand_in(rng, 0, (long)n - 1);
        size_t left = n - at, len;

        switch (zbt_rand_in(rng, 0, 5)) {
        case 0:
            text[at] = (char)zbt_rand(rng);
            break;
        case 1: /* cut */
            len = (size_t)zbt_rand_in(rng, 1, left < 30 ? (long)left : 30);
            memmove(text + at, text + at + len, left - len);
            n -= len;
            break;
        case 2: /* repeat */
            len = left < 60 ? left : 60;
            if (n + len < max) {
                memmove(text + at + len, text + at, left);
                n += len;
            }
            break;
        case 3: /* the file ends */
            n = zbt_rand_in(rng, 0, 5) == 0 ? at : n;
            break;
        default:
            text[at] = telling[zbt_rand_in(rng, 0, (long)sizeof(telling) - 2)];
        }
    }
    return n;
}

/* A plan of a huge layout is slow, not wrong. */
static int is_small(const struct zbrun_job *job)
{
    const struct zb_conf_parallel *p = &job->conf->parallel;

    return (int64_t)p->pp_size * p->num_microbatches <= 512 &&
           zb_model_n_blocks(job->model) <= 100;
}

/* Everything that zbrun -n does. */
static enum zb_status dry_run(const char *config, FILE *sink)
{
    struct zbrun_opts opts = {
        .action = ZBRUN_DRY_RUN, .backend = "cpu", .config = config};
    struct zbrun_job job;
    enum zb_status st = zbrun_job_init(&job, &opts);

    if (st == ZB_OK && is_small(&job)) {
        st = zb_session_dry_run(job.model, &job.session, sink);
    }
    zbrun_job_release(&job);
    return st;
}

struct tally {
    size_t n_bytes;
    int n_ok, n_refused;
};

static void try_dry_run(const char *config, FILE *sink, struct tally *t)
{
    int64_t before = zb_mem_live();
    enum zb_status st;

    zb_fail(ZB_EINVAL, "%s", "");
    alarm(HANG_S);
    st = dry_run(config, sink);
    alarm(0);
    t->n_ok += st == ZB_OK;
    t->n_refused += st != ZB_OK;
    if (st != ZB_OK && zb_error_text()[0] == '\0') {
        CU_FAIL_FATAL("refused without a text");
    }
    if (zb_mem_live() != before) {
        CU_FAIL_FATAL("memory stays");
    }
}

/* Mutations of `good`, written to `name`, through the run of `config`. */
static void fuzz(const char *name, const char *good, const char *config,
                 size_t goal, unsigned long long seed)
{
    struct zbt_rng rng = {seed};
    struct tally t = {0};
    char ini_path[PATH_MAX], text[8192];
    FILE *sink = fopen("/dev/null", "w");

    CU_ASSERT_PTR_NOT_NULL_FATAL(sink);
    snprintf(ini_path, sizeof(ini_path), "%s", zbt_scratch_path(config));
    while (t.n_bytes < goal) {
        size_t n = strlen(good);

        memcpy(text, good, n);
        n = mutate(&rng, text, n, sizeof(text));
        write_file(name, text, n);
        try_dry_run(ini_path, sink, &t);
        t.n_bytes += n;
    }
    fclose(sink);
    printf("%s: %zu bytes, %d taken, %d refused\n", name, t.n_bytes, t.n_ok,
           t.n_refused);
    CU_ASSERT(t.n_ok > 0 && t.n_refused > 0);
}

static size_t goal_of(int mib)
{
    return zbt_is_long() ? (size_t)mib << 20 : (size_t)mib << 16;
}

static void write_text(void)
{
    char text[400];

    memset(text, 'a', sizeof(text));
    write_file("text.txt", text, sizeof(text));
}

static void mutated_ini_dry_run_is_taken_or_refused(void)
{
    write_text();
    fuzz("run.ini", ini, "run.ini", goal_of(4), 1);
}

static void mutated_config_json_dry_run_is_taken_or_refused(void)
{
    write_text();
    write_file("path.ini", json_ini, strlen(json_ini));
    fuzz("config.json", json, "path.ini", goal_of(2), 2);
}

static void mutated_schedule_dry_run_is_taken_or_refused(void)
{
    static const char *const planner[] = {"zbv", "1f1b"};
    struct zb_plan_input in;
    struct zb_schedule *s;

    write_text();
    write_file("config.json", json, strlen(json));
    write_file("nodes.ini", nodes_ini, strlen(nodes_ini));
    for (int i = 0; i < 6; i++) {
        static const enum zb_plan_format format[] = {
            ZB_PLAN_NODES, ZB_PLAN_JSON, ZB_PLAN_TORCH};
        static char text[4096];
        FILE *f = fmemopen(text, sizeof(text), "w");

        CU_ASSERT_PTR_NOT_NULL_FATAL(f);
        ZBT_OK(zb_plan_input_init(&in, 2, 2,
                                  i % 2 == 0 ? ZB_PLACE_V : ZB_PLACE_LINEAR,
                                  i % 2 == 0 ? 2 : 1));
        ZBT_OK(zb_plan_make(planner[i % 2], &in, &plan_quick, &s));
        ZBT_OK(zb_schedule_write(s, format[i / 2], f));
        fclose(f);
        zb_schedule_free(s);
        zb_plan_input_release(&in);
        fuzz("schedule", text, "nodes.ini", goal_of(1), 3 + (unsigned)i);
    }
}

/* ---- data files ---- */

static void read_all(const struct zb_dataset *ds, int64_t seq_len)
{
    struct zb_batch batch = {.n_rows = 0};
    int64_t vocab = zb_dataset_vocab_size(ds);

    ZBT_OK(zb_batch_init(&batch, 3, seq_len));
    for (int64_t step = 1; step < 4; step++) {
        ZBT_OK(zb_dataset_train_batch(ds, step, 3, 0, 3, &batch));
        for (int64_t i = 0; i < 3 * seq_len; i++) {
            if (batch.input_ids[i] < 0 || batch.input_ids[i] >= vocab) {
                CU_FAIL_FATAL("a token outside the vocabulary");
            }
        }
    }
    zb_batch_release(&batch);
}

static void random_data_files_are_taken_or_refused(void)
{
    struct zbt_rng rng = {77};
    size_t n_bytes = 0, goal = goal_of(16);
    int n_ok = 0, n_refused = 0;
    static char data[65536];

    while (n_bytes < goal) {
        long top = zbt_rand_in(&rng, 0, 3) == 0 ? 65536 : 600;
        size_t n = (size_t)zbt_rand_in(&rng, 0, top);
        struct zb_dataset_opts o = {.name = "data.train",
                                    .format = ZB_DATA_AUTO,
                                    .seq_len = zbt_rand_in(&rng, 1, 500),
                                    .seed = 5,
                                    .shuffle = (int)zbt_rand_in(&rng, 0, 1)};
        const char *paths[2];
        struct zb_dataset *ds = NULL;
        int64_t before = zb_mem_live();

        for (size_t i = 0; i < n; i++) {
            data[i] = (char)zbt_rand(&rng);
        }
        paths[0] = paths[1] = write_file("data", data, n);
        alarm(HANG_S);
        if (zb_dataset_open(paths, (size_t)zbt_rand_in(&rng, 1, 2), &o, &ds) ==
            ZB_OK) {
            read_all(ds, o.seq_len);
            n_ok++;
        } else {
            n_refused += zb_error_text()[0] != '\0';
        }
        alarm(0);
        zb_dataset_close(ds);
        CU_ASSERT_EQUAL_FATAL(zb_mem_live(), before);
        n_bytes += n;
    }
    printf("data: %zu bytes, %d taken, %d refused\n", n_bytes, n_ok, n_refused);
    CU_ASSERT(n_ok > 0 && n_refused > 0);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(mutated_ini_dry_run_is_taken_or_refused),
        ZBT_CASE(mutated_config_json_dry_run_is_taken_or_refused),
        ZBT_CASE(mutated_schedule_dry_run_is_taken_or_refused),
        ZBT_CASE(random_data_files_are_taken_or_refused),
    };

    /* One warning per file would hide what failed. */
    zb_log_set_level(ZB_LOG_ERROR);
    return zbt_run("fuzz_inputs", cases, ZB_COUNT_OF(cases));
}
