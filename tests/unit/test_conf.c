/* SPDX-License-Identifier: MIT */
#include "config.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conf/conf_int.h"
#include "zb/conf.h"
#include "zb/log.h"
#include "zb/mem.h"
#include "zbt.h"

static const char *write_ini(const char *text)
{
    const char *path = zbt_scratch_path("run.ini");
    FILE *f = fopen(path, "w");

    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    fputs(text, f);
    fclose(f);
    return path;
}

static struct zb_conf *load_ok(const char *text)
{
    struct zb_conf *conf = NULL;

    ZBT_OK(zb_conf_load(write_ini(text), NULL, 0, &conf));
    return conf;
}

static struct zb_conf *set_ok(const char *override)
{
    struct zb_conf *conf = NULL;

    ZBT_OK(zb_conf_load(NULL, &override, 1, &conf));
    return conf;
}

/* The call must fail with ECONFIG, leave nothing, and say all the words. */
static int fails_saying(const char *path, const char *override,
                        const char *const words[3])
{
    struct zb_conf *conf = NULL;
    int64_t before = zb_mem_live();
    enum zb_status st = zb_conf_load(path, &override, override != NULL, &conf);
    int is_good = st == ZB_ECONFIG && conf == NULL && zb_mem_live() == before;

    for (size_t i = 0; i < 3 && words[i] != NULL; i++) {
        is_good = is_good && strstr(zb_error_text(), words[i]) != NULL;
    }
    if (!is_good) {
        printf("\n%s %s: %d '%s'\n", path != NULL ? path : "",
               override != NULL ? override : "", st, zb_error_text());
    }
    zb_conf_free(conf);
    return is_good;
}

static int ini_fails(const char *text, const char *word1, const char *word2,
                     const char *word3)
{
    const char *words[3] = {word1, word2, word3};

    return fails_saying(write_ini(text), NULL, words);
}

static int set_fails(const char *override, const char *word1, const char *word2)
{
    const char *words[3] = {word1, word2, NULL};

    return fails_saying(NULL, override, words);
}

static void defaults_are_those_of_the_interface(void)
{
    struct zb_conf *conf = NULL;

    ZBT_OK(zb_conf_load(NULL, NULL, 0, &conf));
    CU_ASSERT_EQUAL(conf->parallel.pp_size, 1);
    CU_ASSERT_EQUAL(conf->parallel.zero_stage, 1);
    CU_ASSERT_EQUAL(conf->parallel.pp_style, ZB_CONF_PP_ZBV);
    CU_ASSERT_EQUAL(conf->parallel.num_model_chunks, 2);
    CU_ASSERT_EQUAL(conf->parallel.num_microbatches, 2);
    CU_ASSERT_EQUAL(conf->parallel.microbatch_size, 1);
    CU_ASSERT_EQUAL(conf->parallel.enable_metadata_cache, 1);
    CU_ASSERT_EQUAL(conf->parallel.enable_sequence_parallelism, 0);
    CU_ASSERT_EQUAL(conf->parallel.make_vocab_size_divisible_by, 64);
    CU_ASSERT_EQUAL(conf->optimizer.name, ZB_CONF_ADAMW);
    CU_ASSERT_EQUAL(conf->optimizer.lr_schedule, ZB_CONF_LR_COSINE);
    CU_ASSERT_EQUAL(conf->optimizer.max_norm, 1.0);
    CU_ASSERT_EQUAL(conf->optimizer.post_validation, 1);
    CU_ASSERT_EQUAL(conf->precision.initial_scale, 65536);
    CU_ASSERT_EQUAL(conf->precision.max_scale, 4294967296.0);
    CU_ASSERT_EQUAL(conf->checkpoint.keep, 3);
    CU_ASSERT_PTR_NULL(conf->checkpoint.dir);
    CU_ASSERT_EQUAL(conf->checkpoint.max_file_bytes, 5000000000);
    CU_ASSERT_EQUAL(conf->checkpoint.on_error, ZB_CONF_SAVE_CONTINUE);
    CU_ASSERT_EQUAL(conf->train.watchdog_s, 300);
    CU_ASSERT_EQUAL(conf->train.loss_average, ZB_CONF_LOSS_TOKEN);
    CU_ASSERT_EQUAL(conf->model.init_std, -1);
    CU_ASSERT_STRING_EQUAL(conf->output.log, "log.jsonl");
    CU_ASSERT_STRING_EQUAL(conf->data.tokenizer, "byte");
    CU_ASSERT_EQUAL(conf->schedule.max_mem.is_set, 0);
    CU_ASSERT_STRING_EQUAL(zb_conf_where(conf, "parallel.pp_size"), "default");
    zb_conf_free(conf);
    CU_ASSERT_EQUAL(zb_mem_live(), 0);
}

static void derived_defaults_follow_other_keys(void)
{
    struct zb_conf *conf = load_ok("[parallel]\npp_size = 4\n"
                                   "pp_style = 1f1b\n");

    CU_ASSERT_EQUAL(conf->parallel.num_microbatches, 8);
    CU_ASSERT_EQUAL(conf->parallel.num_model_chunks, 1);
    CU_ASSERT_EQUAL(zb_conf_n_model_devices(conf), 4);
    zb_conf_free(conf);
}

static void interleaved_chunks_are_two_or_as_set(void)
{
    struct zb_conf *conf = load_ok("[parallel]\npp_style = interleaved\n");

    CU_ASSERT_EQUAL(conf->parallel.num_model_chunks, 2);
    zb_conf_free(conf);
    conf = load_ok("[parallel]\npp_style = interleaved\n"
                   "num_model_chunks = 5\n");
    CU_ASSERT_EQUAL(conf->parallel.num_model_chunks, 5);
    zb_conf_free(conf);
}

static void file_values_of_all_kinds_are_read(void)
{
    struct zb_conf *conf =
        load_ok("\xef\xbb\xbf# comment\r\n"
                "; comment\n"
                "[model]\n"
                "model_type = llama   ; the family\n"
                "hidden_size = 64\n"
                "rope_scaling = {\"rope_type\": \"llama3\", \"factor\": 8.0}\n"
                "[parallel]\n"
                "   pp_size : 2\n"
                "   num_microbatches=3\n"
                "num_layers_per_stage = 1, 2,3 , 0\n"
                "[schedule]\n"
                "max_mem = 1.5x\ndevice_mem = 3 GiB\n"
                "costs = given\nf_cost = 1\nb_cost=1,2,3,4.5\nw_cost=0\n"
                "[train]\nseed = 18446744073709551615\neval_interval = never\n"
                "[optimizer]\nlr = 2.5e-4\nmax_norm = off\n");

    CU_ASSERT_STRING_EQUAL(conf->model.model_type, "llama");
    CU_ASSERT_EQUAL_FATAL(conf->model.n_kv, 2);
    CU_ASSERT_STRING_EQUAL(conf->model.kv[0].key, "hidden_size");
    CU_ASSERT_STRING_EQUAL(conf->model.kv[0].value, "64");
    CU_ASSERT_EQUAL(conf->model.kv[0].line, 5);
    CU_ASSERT_STRING_EQUAL(conf->model.kv[1].value,
                           "{\"rope_type\": \"llama3\", \"factor\": 8.0}");
    CU_ASSERT_EQUAL(conf->parallel.pp_size, 2);
    CU_ASSERT_EQUAL(conf->parallel.num_microbatches, 3);
    CU_ASSERT_EQUAL_FATAL(conf->parallel.num_layers_per_stage.n, 4);
    CU_ASSERT_EQUAL(conf->parallel.num_layers_per_stage.item[2], 3);
    CU_ASSERT_TRUE(conf->schedule.max_mem.is_multiple);
    CU_ASSERT_EQUAL(conf->schedule.max_mem.value, 1.5);
    CU_ASSERT_EQUAL(conf->schedule.device_mem, 3221225472);
    CU_ASSERT_EQUAL_FATAL(conf->schedule.b_cost.n, 4);
    CU_ASSERT_EQUAL(conf->schedule.b_cost.item[3], 4.5);
    CU_ASSERT_EQUAL(conf->train.seed, UINT64_MAX);
    CU_ASSERT_EQUAL(conf->optimizer.lr, 2.5e-4);
    CU_ASSERT_EQUAL(conf->optimizer.max_norm, 0);
    CU_ASSERT_PTR_NOT_NULL(
        strstr(zb_conf_where(conf, "parallel.pp_size"), "run.ini:8"));
    CU_ASSERT_PTR_NOT_NULL(
        strstr(zb_conf_where(conf, "model.hidden_size"), "run.ini:5"));
    zb_conf_free(conf);
    CU_ASSERT_EQUAL(zb_mem_live(), 0);
}

static void unknown_names_are_errors_with_line_and_suggestion(void)
{
    CU_ASSERT(ini_fails("[parallel]\n\npp_siz = 2\n", "run.ini:3", "'pp_siz'",
                        "did you mean 'pp_size'"));
    CU_ASSERT(ini_fails("[paralel]\n", "run.ini:1", "'paralel'",
                        "did you mean 'parallel'"));
    CU_ASSERT(
        ini_fails("[train]\nlr = 1\n", "run.ini:2", "'lr'", "[optimizer]"));
    CU_ASSERT(ini_fails("[train]\nqwertyuiop = 1\n", "run.ini:2",
                        "'qwertyuiop'", NULL));
    CU_ASSERT_PTR_NULL(strstr(zb_error_text(), "did you mean"));
    CU_ASSERT(ini_fails("[optimizer]\nname = adam\n", "run.ini:2",
                        "optimizer.name = adam", "did you mean adamw"));
    CU_ASSERT(set_fails("train.step=1", "--set train.step=1", "'steps'"));
}

static void repeated_key_is_error_with_both_lines(void)
{
    CU_ASSERT(ini_fails("[train]\nsteps = 1\n[model]\n[train]\nsteps = 2\n",
                        "run.ini:5", "train.steps is given twice", "line 2"));
    CU_ASSERT(ini_fails("[model]\nmodel_type=llama\nx = 1\nx = 2\n",
                        "run.ini:4", "model.x is given twice", "line 3"));
}

static void malformed_lines_are_errors_with_line(void)
{
    CU_ASSERT(
        ini_fails("[train]\nsteps\n", "run.ini:2", "key = value", "steps"));
    CU_ASSERT(ini_fails("[train\nsteps = 1\n", "run.ini:1", "[name]", NULL));
    CU_ASSERT(ini_fails("[train] x\nsteps = 1\n", "run.ini:1", "[name]", NULL));
    CU_ASSERT(
        ini_fails("steps = 1\n", "run.ini:1", "before any [section]", "steps"));
    CU_ASSERT(ini_fails("[train]\n = 1\n", "run.ini:2", "no key", NULL));
    CU_ASSERT(ini_fails("[train]\nsteps =\n", "run.ini:2", "train.steps",
                        "whole number"));
    CU_ASSERT(ini_fails("[model]\nmodel_type=gpt2\nn_embd =\n", "run.ini:3",
                        "model.n_embd has no value", NULL));
    CU_ASSERT(ini_fails("[model]\nmodel_type=gpt2\nn.embd = 1\n", "run.ini:3",
                        "n.embd", NULL));
}

static void nul_bytes_and_sizes_are_errors_with_line(void)
{
    static const char nul[] = "[train]\nsteps = 1\0\n";
    const char *path = write_ini("");
    const char *words[3] = {"run.ini:2", "NUL", NULL};
    const char *words_big[3] = {"run.ini", "bytes", NULL};
    const char *words_line[3] = {"run.ini:1", "65536 bytes", NULL};
    FILE *f = fopen(path, "w");

    fwrite(nul, 1, sizeof(nul) - 1, f);
    fclose(f);
    CU_ASSERT(fails_saying(path, NULL, words));
    f = fopen(path, "w");
    for (int i = 0; i < 70000; i++) {
        fputc('a', f);
    }
    fclose(f);
    CU_ASSERT(fails_saying(path, NULL, words_line));
    f = fopen(path, "w");
    for (int i = 0; i < 1 << 18; i++) {
        fputs("#abc\n", f);
    }
    fclose(f);
    CU_ASSERT(fails_saying(path, NULL, words_big));
}

static void long_lines_are_read_whole(void)
{
    static char text[100000], want[30000];
    struct zb_conf *conf;

    memset(want, '\0', sizeof(want));
    for (size_t len = 150; len < 20000; len += 97) {
        for (size_t i = 0; i < len; i++) {
            want[i] = i % 7 == 3 && i + 1 < len ? ' ' : (char)('a' + i % 26);
        }
        want[len] = '\0';
        snprintf(text, sizeof(text),
                 "# %s = 1\n[model]\nmodel_type = llama\nkey = %s ; %s\n"
                 "after = 1\n",
                 want, want, want);
        conf = load_ok(text);
        CU_ASSERT_EQUAL_FATAL(conf->model.n_kv, 2);
        CU_ASSERT_STRING_EQUAL(conf->model.kv[0].value, want);
        CU_ASSERT_EQUAL(conf->model.kv[1].line, 5);
        zb_conf_free(conf);
    }
    memset(want, 'k', 1000);
    want[1000] = '\0';
    snprintf(text, sizeof(text), "[train]\n%s = 1\n", want);
    CU_ASSERT(ini_fails(text, "run.ini:2", "too long", NULL));
    snprintf(text, sizeof(text), "[%s]\n", want);
    CU_ASSERT(ini_fails(text, "run.ini:1", "[name]", NULL));
}

/* 1 when the override section.name=x is refused as out of range. */
static int is_out_of_range(const struct zb_conf_opt *opt, double x)
{
    int is_whole = opt->kind == ZB_OPT_INT || opt->kind == ZB_OPT_I64;
    struct zb_conf *conf = NULL;
    char text[256];
    const char *override = text;
    int is_refused;

    snprintf(text, sizeof(text), is_whole ? "%s.%s=%.0f" : "%s.%s=%.17g",
             opt->section, opt->name, x);
    is_refused = zb_conf_load(NULL, &override, 1, &conf) != ZB_OK &&
                 strstr(zb_error_text(), ": must be ") != NULL;
    zb_conf_free(conf);
    return is_refused;
}

static void every_range_holds_at_its_ends(void)
{
    size_t n, n_checked = 0;
    const struct zb_conf_opt *table = zb_conf_table(&n);

    for (size_t i = 0; i < n; i++) {
        const struct zb_conf_opt *opt = &table[i];
        int is_whole = opt->kind == ZB_OPT_INT || opt->kind == ZB_OPT_I64;
        double above = is_whole ? opt->hi + 1 : opt->hi * 1.001;

        if (!is_whole && opt->kind != ZB_OPT_DOUBLE &&
            opt->kind != ZB_OPT_DOUBLES) {
            continue;
        }
        CU_ASSERT_EQUAL(is_out_of_range(opt, opt->lo), opt->lo_open);
        CU_ASSERT_EQUAL(is_out_of_range(opt, opt->hi), opt->hi_open);
        CU_ASSERT_TRUE(is_out_of_range(opt, opt->lo - 1));
        CU_ASSERT_TRUE(is_out_of_range(opt, above));
        n_checked++;
    }
    CU_ASSERT(n_checked > 30);
}

static void values_that_are_no_numbers_are_errors(void)
{
    static const char *const bad[] = {
        "train.steps=1x",
        "train.steps=1.5",
        "train.steps=1 2",
        "train.steps=99999999999999999999",
        "train.seed=-1",
        "train.seed=18446744073709551616",
        "train.seed=x",
        "optimizer.lr=nan",
        "optimizer.lr=inf",
        "optimizer.lr=1e999",
        "optimizer.lr=",
        "optimizer.lr=0.1 #",
        "data.shuffle=maybe",
        "data.shuffle=2",
        "schedule.max_mem=x",
        "schedule.max_mem=-1",
        "schedule.max_mem=1y",
        "schedule.device_mem=1Q",
        "schedule.device_mem=99999999999G",
        "parallel.num_layers_per_stage=1;2",
        "schedule.f_cost=1,two",
    };

    for (size_t i = 0; i < ZB_COUNT_OF(bad); i++) {
        CU_ASSERT(set_fails(bad[i], bad[i], "must be"));
    }
    CU_ASSERT(set_fails("data.train=a,,b", "data.train", "empty entry"));
    CU_ASSERT(set_fails("data.train=a,", "data.train", "empty entry"));
}

static void overrides_replace_and_last_one_wins(void)
{
    const char *path = write_ini("[train]\nsteps = 1\n[model]\n"
                                 "model_type = llama\nhidden_size = 8\n");
    const char *set[] = {"train.steps=2", "train.steps = 3",
                         "model.hidden_size=16", "model.x=1"};
    struct zb_conf *conf = NULL;

    ZBT_OK(zb_conf_load(path, set, ZB_COUNT_OF(set), &conf));
    CU_ASSERT_EQUAL(conf->train.steps, 3);
    CU_ASSERT_EQUAL_FATAL(conf->model.n_kv, 2);
    CU_ASSERT_STRING_EQUAL(conf->model.kv[0].value, "16");
    CU_ASSERT_EQUAL(conf->model.kv[0].line, 0);
    CU_ASSERT_STRING_EQUAL(zb_conf_where(conf, "train.steps"), "--set");
    CU_ASSERT_STRING_EQUAL(zb_conf_where(conf, "model.x"), "--set");
    zb_conf_free(conf);
    CU_ASSERT(set_fails("steps=3", "--set steps=3", "SECTION.KEY=VALUE"));
    CU_ASSERT(set_fails("train.steps", "--set", "SECTION.KEY=VALUE"));
    CU_ASSERT(set_fails("output.dir=a ;b", "--set", "';' after a blank"));
    CU_ASSERT(set_fails("output.dir=a\nb", "--set", "line ends"));
}

static void missing_features_are_refused_by_name(void)
{
    static const char *const asks[][2] = {
        {"data.inputs_embeds=x.npy", "this field of array data"},
        {"data.pixel_values=x.npy", "this field of array data"},
    };

    for (size_t i = 0; i < ZB_COUNT_OF(asks); i++) {
        CU_ASSERT(set_fails(asks[i][0], asks[i][1], "does not have yet"));
        CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "--set: "));
    }
    CU_ASSERT(ini_fails("[data]\npixel_values = x.npy\n", "run.ini:2",
                        "data.pixel_values", "this field of array data"));
}

static void budget_auto_is_not_a_budget_of_0(void)
{
    static const struct {
        const char *set;
        int64_t budget;
    } cases[] = {
        {"schedule.budget=auto", -1},
        {"schedule.budget=0", 0},
        {"schedule.budget=none", 0},
        {"schedule.budget=5000", 5000},
    };

    for (size_t i = 0; i < ZB_COUNT_OF(cases); i++) {
        struct zb_conf *conf;

        ZBT_OK(zb_conf_load(NULL, &cases[i].set, 1, &conf));
        CU_ASSERT_EQUAL(conf->schedule.budget, cases[i].budget);
        zb_conf_free(conf);
    }
    CU_ASSERT(set_fails("schedule.budget=-1", "--set", "schedule.budget"));
}

static void values_that_ask_for_nothing_are_accepted(void)
{
    static const char *const asks[] = {
        "parallel.tp_size=1",
        "parallel.sp_size=1",
        "parallel.zero_stage=1",
        "parallel.zero_stage=0",
        "schedule.budget=0",
        "schedule.time_limit_ms=none",
        "schedule.device_mem=0",
        "precision.growth_factor=2",
        "precision.max_scale=4294967296",
        "precision.precision=bf16",
        "precision.precision=fp16",
        "optimizer.post_validation=false",
        "optimizer.post_validation=0",
        "train.recompute=none",
        "checkpoint.dir=",
        "checkpoint.dir=none",
        "checkpoint.interval=0",
        "checkpoint.interval=never",
        "checkpoint.resume=never",
        "output.report=",
        "output.report=false",
        "output.trace=none",
        "data.pixel_values=",
        "data.tokenizer=byte",
        "parallel.find_unused_parameters=false",
        "parallel.enable_sequence_parallelism=false",
        "optimizer.max_norm=0",
        "train.eval_interval=0",
        "train.watchdog_s=0",
        "train.deterministic=false",
        "parallel.overlap_p2p=false",
        "optimizer.warmup_steps=none",
        "train.steps=0",
        "parallel.num_layers_per_stage=none",
    };

    for (size_t i = 0; i < ZB_COUNT_OF(asks); i++) {
        zb_conf_free(set_ok(asks[i]));
    }
}

static void keys_against_each_other_are_checked(void)
{
    CU_ASSERT(ini_fails("[train]\nsteps=5\n[optimizer]\nwarmup_steps=6\n",
                        "run.ini:4", "warmup_steps = 6", "run.ini:2"));
    CU_ASSERT(ini_fails("[optimizer]\nlr=1\nmin_lr=2\n", "run.ini:3",
                        "min_lr = 2", "run.ini:2"));
    CU_ASSERT(ini_fails("[parallel]\npp_size=2\nnum_layers_per_stage=1,2\n",
                        "run.ini:3", "2 values", "need 4"));
    CU_ASSERT(ini_fails("[parallel]\npp_style=1f1b\nnum_model_chunks=2\n",
                        "run.ini:3", "num_model_chunks = 2", "1f1b"));
    CU_ASSERT(ini_fails("[parallel]\npp_style=interleaved\n"
                        "num_model_chunks=1\n",
                        "run.ini:3", "num_model_chunks = 1", "2 or more"));
    CU_ASSERT(ini_fails("[parallel]\npp_style=file\n", "run.ini:2",
                        "scheduler_nodes", NULL));
    CU_ASSERT(ini_fails("[schedule]\ncosts=given\nf_cost=1\nb_cost=1\n",
                        "run.ini:2", "schedule.w_cost", NULL));
    CU_ASSERT(ini_fails("[schedule]\ncosts=given\nf_cost=1,2,3\nb_cost=1\n"
                        "w_cost=1\n",
                        "run.ini:3", "3 values", "2 chunks"));
    CU_ASSERT(ini_fails("[schedule]\nc_cost=1,2\n", "run.ini:2",
                        "does not have yet", NULL));
    CU_ASSERT(ini_fails("[model]\npath=x\nmodel_type=llama\n", "run.ini:3",
                        "model.model_type", "model.path"));
    CU_ASSERT(ini_fails("[model]\nhidden_size=1\n", "run.ini:2",
                        "model.model_type", NULL));
    CU_ASSERT(ini_fails("[checkpoint]\ninterval=5\n", "run.ini:2",
                        "checkpoint.interval", "checkpoint.dir"));
    CU_ASSERT(ini_fails("[model]\ninit=pretrained\n", "run.ini:2", "model.path",
                        NULL));
    CU_ASSERT(ini_fails("[train]\neval_interval=5\n", "run.ini:2", "data.valid",
                        NULL));
    CU_ASSERT(ini_fails("[data]\nseq_len=16777216\n[parallel]\n"
                        "microbatch_size=1048576\n",
                        "run.ini:2", "microbatch_size * data.seq_len", NULL));
}

static void layout_divides_devices(void)
{
    struct zb_conf *conf = set_ok("parallel.pp_size=4");
    int dp = 0;

    ZBT_OK(zb_conf_layout(conf, 4, &dp));
    CU_ASSERT_EQUAL(dp, 1);
    CU_ASSERT_EQUAL(zb_conf_layout(conf, 6, &dp), ZB_ECONFIG);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "number of devices, 6"));
    CU_ASSERT_EQUAL(zb_conf_layout(conf, 2, &dp), ZB_ECONFIG);
    ZBT_OK(zb_conf_layout(conf, 8, &dp));
    CU_ASSERT_EQUAL(dp, 2);
    zb_conf_free(conf);
}

static void paths_are_relative_to_file_and_output_dir(void)
{
    struct zb_conf *conf =
        load_ok("[data]\ntrain = a.txt, /b/c.txt\n[output]\ndir = out\n"
                "trace = t.json\nlog = /x/log\n");
    char dir[PATH_MAX], want[PATH_MAX + 32];

    CU_ASSERT_PTR_NOT_NULL_FATAL(realpath(zbt_scratch_path("."), dir));
    snprintf(want, sizeof(want), "%s/a.txt", dir);
    CU_ASSERT_EQUAL_FATAL(conf->data.train.n, 2);
    CU_ASSERT_STRING_EQUAL(conf->data.train.item[0], want);
    CU_ASSERT_STRING_EQUAL(conf->data.train.item[1], "/b/c.txt");
    snprintf(want, sizeof(want), "%s/out", dir);
    CU_ASSERT_STRING_EQUAL(conf->output.dir, want);
    snprintf(want, sizeof(want), "%s/out/t.json", dir);
    CU_ASSERT_STRING_EQUAL(conf->output.trace, want);
    CU_ASSERT_STRING_EQUAL(conf->output.log, "/x/log");
    CU_ASSERT_PTR_NULL(conf->output.report);
    zb_conf_free(conf);
}

/* "auto" is no path, none is nothing. */
static void cost_cache_is_a_path_auto_or_none(void)
{
    static const char *const value[][2] = {
        {"", "auto"}, {"cost_cache = auto\n", "auto"},
        {"cost_cache = none\n", NULL}, {"cost_cache = /a\n", "/a"}};
    char ini[64];

    for (size_t i = 0; i < ZB_COUNT_OF(value); i++) {
        struct zb_conf *conf;

        snprintf(ini, sizeof(ini), "[schedule]\n%s", value[i][0]);
        conf = load_ok(ini);
        if (value[i][1] == NULL) {
            CU_ASSERT_PTR_NULL(conf->schedule.cost_cache);
        } else {
            CU_ASSERT_STRING_EQUAL(conf->schedule.cost_cache, value[i][1]);
        }
        zb_conf_free(conf);
    }
}

static void file_that_can_not_be_read_is_error(void)
{
    struct zb_conf *conf = NULL;

    CU_ASSERT_EQUAL(zb_conf_load("/nonexistent/x.ini", NULL, 0, &conf),
                    ZB_ECONFIG);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "/nonexistent/x.ini"));
    CU_ASSERT_EQUAL(zb_conf_load(zbt_scratch_path("."), NULL, 0, &conf),
                    ZB_ECONFIG);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "directory"));
    CU_ASSERT_PTR_NULL(conf);
}

static void nearest_finds_typos_only(void)
{
    static const char *const list[] = {"steps", "seed", "recompute"};

    CU_ASSERT_STRING_EQUAL(zb_conf_nearest("step", list, 3), "steps");
    CU_ASSERT_STRING_EQUAL(zb_conf_nearest("Seed", list, 3), "seed");
    CU_ASSERT_STRING_EQUAL(zb_conf_nearest("recmopute", list, 3), "recompute");
    CU_ASSERT_PTR_NULL(zb_conf_nearest("momentum", list, 3));
    CU_ASSERT_PTR_NULL(zb_conf_nearest("x", list, 0));
}

/* What pp_style = file leaves open until the file is read. */
static void lists_are_checked_against_chunks_of_schedule_file(void)
{
    static const char *const base[] = {"parallel.pp_size=2",
                                       "parallel.pp_style=file",
                                       "parallel.scheduler_nodes=s.json"};
    static const struct {
        const char *set;
        int is_good;
    } one[] = {
        {"parallel.num_model_chunks=2", 1},
        {"parallel.num_model_chunks=3", 0},
        {"parallel.num_layers_per_stage=1,1,1,1", 1},
        {"parallel.num_layers_per_stage=4", 0},
        {"schedule.c_cost=1,1,1,1", 1},
        {"schedule.c_cost=1,1", 0},
    };

    for (size_t i = 0; i < ZB_COUNT_OF(one); i++) {
        const char *set[] = {base[0], base[1], base[2], one[i].set};
        struct zb_conf *conf = NULL;

        ZBT_OK(zb_conf_load(NULL, set, ZB_COUNT_OF(set), &conf));
        CU_ASSERT_EQUAL(zb_conf_set_model_chunks(conf, 2),
                        one[i].is_good ? ZB_OK : ZB_ECONFIG);
        if (!one[i].is_good) {
            CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "--set"));
        }
        zb_conf_free(conf);
    }
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(defaults_are_those_of_the_interface),
        ZBT_CASE(derived_defaults_follow_other_keys),
        ZBT_CASE(interleaved_chunks_are_two_or_as_set),
        ZBT_CASE(file_values_of_all_kinds_are_read),
        ZBT_CASE(unknown_names_are_errors_with_line_and_suggestion),
        ZBT_CASE(repeated_key_is_error_with_both_lines),
        ZBT_CASE(malformed_lines_are_errors_with_line),
        ZBT_CASE(nul_bytes_and_sizes_are_errors_with_line),
        ZBT_CASE(long_lines_are_read_whole),
        ZBT_CASE(every_range_holds_at_its_ends),
        ZBT_CASE(values_that_are_no_numbers_are_errors),
        ZBT_CASE(overrides_replace_and_last_one_wins),
        ZBT_CASE(missing_features_are_refused_by_name),
        ZBT_CASE(budget_auto_is_not_a_budget_of_0),
        ZBT_CASE(values_that_ask_for_nothing_are_accepted),
        ZBT_CASE(keys_against_each_other_are_checked),
        ZBT_CASE(lists_are_checked_against_chunks_of_schedule_file),
        ZBT_CASE(layout_divides_devices),
        ZBT_CASE(paths_are_relative_to_file_and_output_dir),
        ZBT_CASE(cost_cache_is_a_path_auto_or_none),
        ZBT_CASE(file_that_can_not_be_read_is_error),
        ZBT_CASE(nearest_finds_typos_only),
    };

    zb_log_set_level(ZB_LOG_ERROR);
    return zbt_run("conf", cases, ZB_COUNT_OF(cases));
}
