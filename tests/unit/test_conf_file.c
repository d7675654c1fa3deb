/* SPDX-License-Identifier: MIT
 *
 * The configuration as files: printed and read back, the manual page, failing
 * allocations, and hostile input.
 */
#include "config.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conf/conf_int.h"
#include "zb/conf.h"
#include "zb/log.h"
#include "zb/mem.h"
#include "zbt.h"

/* A value of every kind, none of them the default. */
static const char *const all_kinds =
    "[model]\nmodel_type = gpt2\nn_layer = 4\n"
    "task = {\"a\": [1, 2], \"b\": \"c\"}\ninit_std = 0.03125\n"
    "[data]\ntrain = a.txt, b c.txt\nvalid = v.txt\nformat = text\n"
    "seq_len = 17\nshuffle = false\n"
    "[parallel]\npp_size = 3\nzero_stage = 0\npp_style = get_v_schedule\n"
    "num_microbatches = 5\nnum_layers_per_stage = 1, 0, 2, 3, 4, 5\n"
    "enable_metadata_cache = no\n"
    "[schedule]\ncosts = given\nf_cost = 1, 2, 3, 4, 5, 0.1\nb_cost = 3e-7\n"
    "w_cost = 0\nc_cost = 0.1\nmax_mem = 1.25x\ndevice_mem = 12345678901\n"
    "[optimizer]\nlr = 0.1234567890123\nbeta2 = 0.95\nlr_schedule = wsd\n"
    "warmup_steps = 3\npost_validation = false\n"
    "[train]\nsteps = 77\nseed = 18446744073709551615\neval_interval = 7\n"
    "threads_per_device = 2\nloss_average = microbatch\nwatchdog_s = off\n"
    "[checkpoint]\nresume = never\n"
    "[output]\ndir = out\nlog = none\ntrace = t.json\n";

static const char *write_text(const char *name, const char *text, size_t n)
{
    const char *path = zbt_scratch_path(name);
    FILE *f = fopen(path, "w");

    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    CU_ASSERT_EQUAL(fwrite(text, 1, n, f), n);
    fclose(f);
    return path;
}

/* The whole file as a string, to be freed. */
static char *read_text(const char *path)
{
    FILE *f = fopen(path, "r");
    char *text = calloc(1, 1 << 20);

    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    CU_ASSERT(fread(text, 1, (1 << 20) - 1, f) > 0);
    fclose(f);
    return text;
}

/* Print a configuration to a scratch file; the path of it. */
static const char *print_to(const char *name, const struct zb_conf *conf,
                            enum zb_conf_print_what what)
{
    const char *path = zbt_scratch_path(name);
    FILE *f = fopen(path, "w");

    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    ZBT_OK(zb_conf_print(conf, f, what));
    fclose(f);
    return path;
}

/* Print, load the result, print again: the same text. */
static void check_round_trip(const struct zb_conf *conf)
{
    const char *first = print_to("first.ini", conf, ZB_CONF_PRINT_ALL);
    const char *second;
    struct zb_conf *again = NULL;
    char *text, *text_again;

    ZBT_OK(zb_conf_load(first, NULL, 0, &again));
    second = print_to("sub-second.ini", again, ZB_CONF_PRINT_ALL);
    text = read_text(first);
    text_again = read_text(second);
    CU_ASSERT_STRING_EQUAL(text, text_again);
    free(text);
    free(text_again);
    zb_conf_free(again);
}

static void printed_values_load_back(void)
{
    const char *path = write_text("kinds.ini", all_kinds, strlen(all_kinds));
    struct zb_conf *conf = NULL, *again = NULL;

    ZBT_OK(zb_conf_load(path, NULL, 0, &conf));
    check_round_trip(conf);
    ZBT_OK(zb_conf_load(zbt_scratch_path("first.ini"), NULL, 0, &again));
    CU_ASSERT_EQUAL(again->optimizer.lr, conf->optimizer.lr);
    CU_ASSERT_EQUAL(again->schedule.b_cost.item[0], 3e-7);
    CU_ASSERT_EQUAL(again->train.seed, UINT64_MAX);
    CU_ASSERT_EQUAL_FATAL(again->model.n_kv, 2);
    CU_ASSERT_STRING_EQUAL(again->model.kv[1].value, conf->model.kv[1].value);
    CU_ASSERT_STRING_EQUAL(again->data.train.item[1], conf->data.train.item[1]);
    CU_ASSERT_PTR_NULL(again->output.log);
    zb_conf_free(again);
    zb_conf_free(conf);
    CU_ASSERT_EQUAL(zb_mem_live(), 0);
}

static void printed_defaults_are_a_valid_file(void)
{
    struct zb_conf *conf = NULL, *again = NULL;
    const char *path;
    char *text;

    ZBT_OK(zb_conf_load(NULL, NULL, 0, &conf));
    path = print_to("first.ini", conf, ZB_CONF_PRINT_ALL);
    text = read_text(path);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "\npost_validation = true\n"));
    free(text);
    ZBT_OK(zb_conf_load(path, NULL, 0, &again));
    check_round_trip(again);
    zb_conf_free(again);
    zb_conf_free(conf);
}

static void no_default_lacks_its_feature(void)
{
    struct zb_conf *conf = NULL;
    FILE *f;

    ZBT_OK(zb_conf_load(NULL, NULL, 0, &conf));
    f = fopen(print_to("not_yet", conf, ZB_CONF_PRINT_NOT_YET), "r");
    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    CU_ASSERT_EQUAL(fgetc(f), EOF);
    fclose(f);
    zb_conf_free(conf);
}

static void path_that_no_file_can_hold_is_refused(void)
{
    const char *text = "[data]\ntrain = a.txt\n";
    char dir[256], path[300];
    struct zb_conf *conf = NULL;
    FILE *f;

    snprintf(dir, sizeof(dir), "%s", zbt_scratch_path("a, b ;c"));
    snprintf(path, sizeof(path), "mkdir '%s'", dir);
    CU_ASSERT_EQUAL_FATAL(system(path), 0);
    snprintf(path, sizeof(path), "%s/x.ini", dir);
    f = fopen(path, "w");
    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    fputs(text, f);
    fclose(f);
    ZBT_OK(zb_conf_load(path, NULL, 0, &conf));
    f = fopen(zbt_scratch_path("out"), "w");
    CU_ASSERT_EQUAL(zb_conf_print(conf, f, ZB_CONF_PRINT_ALL), ZB_ECONFIG);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "data.train"));
    fclose(f);
    zb_conf_free(conf);
}

/* One ".It Cm name , name No = default" of the page, section by section. */
struct page {
    char *text;
    char *line;
    char section[32];
};

/* The next item line, its names in `words` with the default (or NULL). */
static int page_next(struct page *page, char **words, char **def_out)
{
    while (page->line != NULL && *page->line != '\0') {
        char *line = page->line, *end = strchr(line, '\n');

        page->line = end == NULL ? NULL : end + 1;
        if (end != NULL) {
            *end = '\0';
        }
        if (sscanf(line, ".Ss Section %31s", page->section) == 1) {
            continue;
        }
        if (strncmp(line, ".It Cm ", 7) == 0) {
            char *equals = strstr(line, " No = ");

            *words = line + 7;
            *def_out = equals == NULL ? NULL : equals + 6;
            if (equals != NULL) {
                *equals = '\0';
                *def_out += 2 * (strncmp(*def_out, "\\&", 2) == 0);
            }
            return 1;
        }
    }
    return 0;
}

static void manual_page_has_every_key_and_no_other(void)
{
    struct page page = {.section = ""};
    char *words, *def;
    size_t n, n_found = 0;

    zb_conf_table(&n);
    page.text = read_text(zbt_source_path("man/zbrun.ini.5"));
    page.line = page.text;
    while (page_next(&page, &words, &def)) {
        for (char *name = strtok(words, " ,"); name != NULL;
             name = strtok(NULL, " ,")) {
            const struct zb_conf_opt *opt =
                zb_conf_opt_find(page.section, name);
            int is_good =
                opt != NULL && strcmp(opt->def, def == NULL ? "" : def) == 0;

            if (!is_good) {
                printf("\nzbrun.ini.5: [%s] %s = %s\n", page.section, name,
                       def == NULL ? "" : def);
            }
            CU_ASSERT(is_good);
            n_found++;
        }
    }
    CU_ASSERT_EQUAL(n_found, n);
    free(page.text);
}

static void examples_of_the_manual_page_load(void)
{
    char *text = read_text(zbt_source_path("man/zbrun.ini.5"));
    char *pos = text;
    int n_examples = 0;

    while ((pos = strstr(pos, ".Bd -literal")) != NULL) {
        char *begin = strchr(pos, '\n') + 1, *end = strstr(begin, ".Ed");
        struct zb_conf *conf = NULL;

        CU_ASSERT_PTR_NOT_NULL_FATAL(end);
        ZBT_OK(zb_conf_load(
            write_text("example.ini", begin, (size_t)(end - begin)), NULL, 0,
            &conf));
        zb_conf_free(conf);
        n_examples++;
        pos = end;
    }
    CU_ASSERT_EQUAL(n_examples, 2);
    free(text);
}

static void failing_allocation_leaves_nothing(void)
{
    char path[256];
    const char *set[2] = {"model.n_head=3", "train.steps=88"};
    uint64_t k;

    snprintf(path, sizeof(path), "%s",
             write_text("kinds.ini", all_kinds, strlen(all_kinds)));
    for (k = 1;; k++) {
        struct zb_conf *conf = NULL;
        enum zb_status st;
        int failed;

        zb_mem_fail_at(k);
        st = zb_conf_load(path, set, 2, &conf);
        failed = zb_mem_failed();
        zb_mem_fail_at(0);
        CU_ASSERT_EQUAL(st, failed ? ZB_ENOMEM : ZB_OK);
        zb_conf_free(conf);
        CU_ASSERT_EQUAL(zb_mem_live(), 0);
        if (!failed) {
            break;
        }
    }
    CU_ASSERT(k > 100);
}

/* One load of hostile text: any message is fine, silence is not. */
static int load_any(const char *text, size_t n, int *n_ok)
{
    const char *path = write_text("fuzz.ini", text, n);
    struct zb_conf *conf = NULL;
    enum zb_status st = zb_conf_load(path, NULL, 0, &conf);
    int is_good = st == ZB_OK ||
                  (st == ZB_ECONFIG && strstr(zb_error_text(), "fuzz.ini"));

    if (st == ZB_OK) {
        FILE *f = fopen("/dev/null", "w");

        is_good = zb_conf_print(conf, f, ZB_CONF_PRINT_ALL) == ZB_OK;
        fclose(f);
        (*n_ok)++;
    }
    if (!is_good) {
        printf("\n%d '%s'\n", st, zb_error_text());
    }
    zb_conf_free(conf);
    return is_good && zb_mem_live() == 0;
}

/* Change a text of n bytes a few times at random; the new size. */
static size_t mutate(struct zbt_rng *rng, char *text, size_t n, size_t max)
{
    static const char *const bits[] = {
        "=",     "[",           "]",
        "\n",    ";",           " ;",
        ",",     ".",           "-1",
        "1e999", "nan",         "\r",
        "none",  "auto",        "x",
        "0",     "\n[train]\n", "\nsteps = ",
        " ",     "\t",          "99999999999999999999",
        ":",     "#",           "\"",
        "{",     "\xff\xfe",    "%s%n",
    };
    long n_changes = zbt_rand_in(rng, 1, 6);

    while (n_changes-- > 0 && n > 0) {
        size_t at = (size_t)zbt_rand_in(rng, 0, (long)n - 1);
        size_t left = n - at, len;
        const char *bit;

        switch (zbt_rand_in(rng, 0, 3)) {
        case 0:
            text[at] = (char)zbt_rand(rng);
            break;
        case 1: /* cut some bytes out */
            len = (size_t)zbt_rand_in(rng, 1, left < 40 ? (long)left : 40);
            memmove(text + at, text + at + len, left - len);
            n -= len;
            break;
        case 2: /* put some bytes of syntax in */
            bit = bits[zbt_rand_in(rng, 0, (long)ZB_COUNT_OF(bits) - 1)];
            len = strlen(bit);
            if (n + len < max) {
                memmove(text + at + len, text + at, left);
                memcpy(text + at, bit, len);
                n += len;
            }
            break;
        default: /* repeat a piece */
            len = left < 300 ? left : 300;
            if (n + len < max) {
                memmove(text + at + len, text + at, left);
                n += len;
            }
            break;
        }
    }
    return n;
}

static void mutated_files_never_crash(void)
{
    static char text[32768];
    const char *seeds[2] = {all_kinds, NULL};
    struct zb_conf *conf = NULL;
    struct zbt_rng rng = {20260701};
    size_t n_bytes = 0, goal = zbt_is_long() ? 14 << 20 : 1 << 20;
    char *printed;
    int n_ok = 0, n_loads = 0;

    ZBT_OK(zb_conf_load(NULL, NULL, 0, &conf));
    printed = read_text(print_to("first.ini", conf, ZB_CONF_PRINT_ALL));
    zb_conf_free(conf);
    seeds[1] = printed;
    while (n_bytes < goal) {
        const char *seed = seeds[n_loads % 4 == 0];
        size_t n = strlen(seed);

        memcpy(text, seed, n);
        n = mutate(&rng, text, n, sizeof(text));
        CU_ASSERT_FATAL(load_any(text, n, &n_ok));
        n_bytes += n;
        n_loads++;
    }
    /* Some changes only touch comments or values: both outcomes are met. */
    CU_ASSERT(n_ok > 0 && n_ok < n_loads);
    free(printed);
}

static void random_files_never_crash(void)
{
    static const char syntax[] = "[]=;#:, \n\n\n\tabcp_.0129-+x{}\"";
    static char text[4096];
    struct zbt_rng rng = {7};
    size_t n_bytes = 0, goal = zbt_is_long() ? 6 << 20 : 256 << 10;
    int n_ok = 0;

    while (n_bytes < goal) {
        size_t n = (size_t)zbt_rand_in(&rng, 1, sizeof(text));
        int is_syntax = zbt_rand(&rng) % 2 == 0;

        for (size_t i = 0; i < n; i++) {
            text[i] = is_syntax ? syntax[zbt_rand(&rng) % (sizeof(syntax) - 1)]
                                : (char)zbt_rand(&rng);
        }
        CU_ASSERT_FATAL(load_any(text, n, &n_ok));
        n_bytes += n;
    }
}

/* The same through --set. */
static void random_overrides_never_crash(void)
{
    struct zbt_rng rng = {99};
    size_t n_rows;
    const struct zb_conf_opt *table = zb_conf_table(&n_rows);
    int n_loads = zbt_is_long() ? 100000 : 4000;

    for (int i = 0; i < n_loads; i++) {
        const struct zb_conf_opt *opt =
            &table[zbt_rand(&rng) % (unsigned long long)n_rows];
        struct zb_conf *conf = NULL;
        char text[128];
        const char *override = text;
        int n = snprintf(text, sizeof(text), "%s.%s=", opt->section, opt->name);
        int n_value = (int)zbt_rand_in(&rng, 0, 20);
        enum zb_status st;

        while (n_value-- > 0) {
            static const char letters[] = "0123456789.,-+exnaif GKi;\n";

            text[n++] = letters[zbt_rand(&rng) % (sizeof(letters) - 1)];
        }
        text[n] = '\0';
        st = zb_conf_load(NULL, &override, 1, &conf);
        CU_ASSERT(st == ZB_OK || (st == ZB_ECONFIG &&
                                  strstr(zb_error_text(), "--set") != NULL));
        zb_conf_free(conf);
    }
    CU_ASSERT_EQUAL(zb_mem_live(), 0);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(printed_values_load_back),
        ZBT_CASE(printed_defaults_are_a_valid_file),
        ZBT_CASE(no_default_lacks_its_feature),
        ZBT_CASE(path_that_no_file_can_hold_is_refused),
        ZBT_CASE(manual_page_has_every_key_and_no_other),
        ZBT_CASE(examples_of_the_manual_page_load),
        ZBT_CASE(failing_allocation_leaves_nothing),
        ZBT_CASE(mutated_files_never_crash),
        ZBT_CASE(random_files_never_crash),
        ZBT_CASE(random_overrides_never_crash),
    };

    zb_log_set_level(ZB_LOG_ERROR);
    return zbt_run("conf_file", cases, ZB_COUNT_OF(cases));
}
