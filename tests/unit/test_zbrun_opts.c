/* SPDX-License-Identifier: MIT */
#include "config.h"
#include <stdio.h>
#include <string.h>

#include "cli/zbrun_opts.h"
#include "zb/mem.h"
#include "zbt.h"

#define WORDS_MAX 16

/* Parse a command line given as words separated by blanks. */
static enum zb_status parse(const char *line, struct zbrun_opts *opts_out)
{
    /* The strings of the options point into it until the next call. */
    static char text[512];
    char *argv[WORDS_MAX + 2] = {"zbrun"};
    int argc = 1;

    snprintf(text, sizeof(text), "%s", line);
    for (char *word = strtok(text, " "); word != NULL && argc < WORDS_MAX;
         word = strtok(NULL, " ")) {
        argv[argc++] = word;
    }
    return zbrun_opts_parse(argc, argv, opts_out);
}

static struct zbrun_opts parse_ok(const char *line)
{
    struct zbrun_opts opts = {0};

    ZBT_OK(parse(line, &opts));
    return opts;
}

static int parse_fails(const char *line, const char *word)
{
    struct zbrun_opts opts = {0};
    enum zb_status st = parse(line, &opts);
    int is_good = st == ZB_ECONFIG && strstr(zb_error_text(), word) != NULL &&
                  zb_mem_live() == 0;

    if (!is_good) {
        printf("\n%s: %d '%s'\n", line, st, zb_error_text());
    }
    zbrun_opts_release(&opts);
    return is_good;
}

static void plain_command_trains_with_defaults(void)
{
    struct zbrun_opts opts = parse_ok("run.ini");

    CU_ASSERT_EQUAL(opts.action, ZBRUN_TRAIN);
    CU_ASSERT_STRING_EQUAL(opts.config, "run.ini");
    CU_ASSERT_STRING_EQUAL(opts.backend, "auto");
    CU_ASSERT_EQUAL(opts.n_devices, 0);
    CU_ASSERT_PTR_NULL(opts.device);
    CU_ASSERT_EQUAL(opts.n_set, 0);
    CU_ASSERT_EQUAL(opts.verbosity, 0);
    zbrun_opts_release(&opts);
}

static void all_options_are_read_in_any_order(void)
{
    struct zbrun_opts opts =
        parse_ok("--set a.b=1 -g 4 run.ini -b check --trace t.json "
                 "--dump-grads=d -s c.d=2 -v");

    CU_ASSERT_EQUAL(opts.n_devices, 4);
    CU_ASSERT_PTR_NULL(opts.device);
    CU_ASSERT_STRING_EQUAL(opts.backend, "check");
    CU_ASSERT_STRING_EQUAL(opts.trace, "t.json");
    CU_ASSERT_STRING_EQUAL(opts.dump_grads, "d");
    CU_ASSERT_EQUAL_FATAL(opts.n_set, 2);
    CU_ASSERT_STRING_EQUAL(opts.set[0], "a.b=1");
    CU_ASSERT_STRING_EQUAL(opts.set[1], "c.d=2");
    CU_ASSERT_EQUAL(opts.verbosity, 1);
    CU_ASSERT_STRING_EQUAL(opts.config, "run.ini");
    zbrun_opts_release(&opts);
    CU_ASSERT_EQUAL(zb_mem_live(), 0);
}

static void device_lists_name_the_gpu_of_each_device(void)
{
    struct zbrun_opts opts = parse_ok("-g 0,2,13 x.ini");

    CU_ASSERT_EQUAL_FATAL(opts.n_devices, 3);
    CU_ASSERT_EQUAL(opts.device[0], 0);
    CU_ASSERT_EQUAL(opts.device[1], 2);
    CU_ASSERT_EQUAL(opts.device[2], 13);
    zbrun_opts_release(&opts);
    opts = parse_ok("--gpus=2, x.ini");
    CU_ASSERT_EQUAL_FATAL(opts.n_devices, 1);
    CU_ASSERT_EQUAL(opts.device[0], 2);
    zbrun_opts_release(&opts);
    opts = parse_ok("-g 1,0,1 x.ini");
    CU_ASSERT_EQUAL_FATAL(opts.n_devices, 3);
    CU_ASSERT_EQUAL(opts.device[0], 1);
    CU_ASSERT_EQUAL(opts.device[2], 1);
    zbrun_opts_release(&opts);
    CU_ASSERT(parse_fails("-g 0 x.ini", "--gpus 0"));
    CU_ASSERT(parse_fails("-g -1 x.ini", "--gpus -1"));
    CU_ASSERT(parse_fails("-g 1025 x.ini", "1 to 1024"));
    CU_ASSERT(parse_fails("-g 1,,2 x.ini", "--gpus"));
    CU_ASSERT(parse_fails("-g ,1 x.ini", "--gpus"));
    CU_ASSERT(parse_fails("-g 4x x.ini", "--gpus"));
    CU_ASSERT(parse_fails("-g 1,2x x.ini", "--gpus"));
    CU_ASSERT(parse_fails("-g two x.ini", "--gpus two"));
    CU_ASSERT(parse_fails("-g 99999999999999999999 x.ini", "--gpus"));
}

static void resume_takes_a_folder_or_none(void)
{
    struct zbrun_opts opts = parse_ok("x.ini");

    CU_ASSERT_EQUAL(opts.wants_resume, 0);
    zbrun_opts_release(&opts);
    opts = parse_ok("-r x.ini");
    CU_ASSERT_EQUAL(opts.wants_resume, 1);
    CU_ASSERT_PTR_NULL(opts.resume);
    CU_ASSERT_STRING_EQUAL(opts.config, "x.ini");
    zbrun_opts_release(&opts);
    opts = parse_ok("--resume=a/b x.ini");
    CU_ASSERT_EQUAL(opts.wants_resume, 1);
    CU_ASSERT_STRING_EQUAL(opts.resume, "a/b");
    zbrun_opts_release(&opts);
    CU_ASSERT(parse_fails("a.ini --resume=", "--resume: empty name"));
}

static void sampling_is_read_and_checked(void)
{
    struct zbrun_opts opts = parse_ok("--generate= x.ini");

    CU_ASSERT_STRING_EQUAL(opts.generate, "");
    CU_ASSERT_EQUAL(opts.temperature, 1);
    CU_ASSERT_EQUAL(opts.top_p, 1);
    CU_ASSERT_EQUAL(opts.max_tokens, 0);
    zbrun_opts_release(&opts);
    opts = parse_ok("--top-p=.5 --temperature 0 --max-tokens 7 --generate a x");
    CU_ASSERT_STRING_EQUAL(opts.generate, "a");
    CU_ASSERT_EQUAL(opts.temperature, 0);
    CU_ASSERT_EQUAL(opts.top_p, 0.5);
    CU_ASSERT_EQUAL(opts.max_tokens, 7);
    zbrun_opts_release(&opts);
    CU_ASSERT(parse_fails("--generate a", "no configuration file"));
    CU_ASSERT(parse_fails("--generate a -e x", "only one of"));
    CU_ASSERT(parse_fails("--temperature 1 x", "--generate only"));
    CU_ASSERT(parse_fails("-e --max-tokens 1 x", "--generate only"));
    CU_ASSERT(parse_fails("--generate a --temperature -1 x", "0 to 1e+06"));
    CU_ASSERT(parse_fails("--generate a --temperature nan x", "nan"));
    CU_ASSERT(parse_fails("--generate a --top-p 0 x", "--top-p 0"));
    CU_ASSERT(parse_fails("--generate a --top-p 1.1 x", "--top-p 1.1"));
    CU_ASSERT(parse_fails("--generate a --top-p .5x x", "--top-p .5x"));
    CU_ASSERT(parse_fails("--generate a --max-tokens 0 x", "--max-tokens 0"));
    CU_ASSERT(parse_fails("--generate a --max-tokens 2.5 x", "2.5"));
    CU_ASSERT(parse_fails("--generate a --trace t x", "--trace"));
}

static void actions_are_recognised(void)
{
    static const struct {
        const char *line;
        enum zbrun_action action;
    } cases[] = {
        {"-e x.ini", ZBRUN_EVAL},
        {"--eval x.ini", ZBRUN_EVAL},
        {"--generate a x.ini", ZBRUN_GENERATE},
        {"-n x.ini", ZBRUN_DRY_RUN},
        {"--dry-run x.ini", ZBRUN_DRY_RUN},
        {"--print-config", ZBRUN_PRINT_CONFIG},
        {"--print-config x.ini", ZBRUN_PRINT_CONFIG},
        {"-h", ZBRUN_HELP},
        {"-e x --help", ZBRUN_HELP},
        {"-V", ZBRUN_VERSION},
        {"--version", ZBRUN_VERSION},
    };

    for (size_t i = 0; i < ZB_COUNT_OF(cases); i++) {
        struct zbrun_opts opts = parse_ok(cases[i].line);

        CU_ASSERT_EQUAL(opts.action, cases[i].action);
        zbrun_opts_release(&opts);
    }
}

static void wrong_command_lines_say_why(void)
{
    CU_ASSERT(parse_fails("", "no configuration file"));
    CU_ASSERT(parse_fails("-e", "no configuration file"));
    CU_ASSERT(parse_fails("a.ini b.ini", "b.ini"));
    CU_ASSERT(parse_fails("--frobnicate a.ini", "'--frobnicate'"));
    CU_ASSERT(parse_fails("-Z a.ini", "'-Z'"));
    CU_ASSERT(parse_fails("-vZ a.ini", "'-Z'"));
    CU_ASSERT(parse_fails("a.ini --set", "--set needs a value"));
    CU_ASSERT(parse_fails("a.ini -g", "--gpus needs a value"));
    CU_ASSERT(parse_fails("a.ini --eval=3", "--eval takes no value"));
    CU_ASSERT(parse_fails("a.ini --trace=", "--trace: empty"));
    CU_ASSERT(parse_fails("a.ini -q -v", "contradict"));
    CU_ASSERT(parse_fails("a.ini -e -n", "only one of"));
    CU_ASSERT(parse_fails("a.ini -e --trace t", "--trace"));
    CU_ASSERT(parse_fails("a.ini -n --dump-grads d", "--dump-grads"));
    CU_ASSERT(parse_fails("a.ini -e --report r.html", "--report"));
    CU_ASSERT(parse_fails("a.ini --report=", "--report: empty"));
    CU_ASSERT(parse_fails("-s a.b=1 -s c.d=2 -g 1,2 --bad x", "--bad"));
}

static void help_shows_every_option(void)
{
    static char text[8192];
    const char *names[64];
    size_t n = zbrun_opts_names(names, 64);
    FILE *f = fmemopen(text, sizeof(text), "w");

    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    zbrun_opts_help(f);
    zbrun_opts_usage(f);
    fclose(f);
    CU_ASSERT(n > 10);
    for (size_t i = 0; i < n; i++) {
        char option[64];

        snprintf(option, sizeof(option), "--%s", names[i]);
        CU_ASSERT_PTR_NOT_NULL(strstr(text, option));
    }
    for (const char *line = text; *line != '\0';) {
        size_t len = strcspn(line, "\n");

        CU_ASSERT(len <= 80);
        line += len + (line[len] == '\n');
    }
}

/* The names behind "Fl Fl" in item lines of zbrun.1. */
static void manual_page_has_every_option_and_no_other(void)
{
    const char *names[64];
    size_t n = zbrun_opts_names(names, 64), n_found = 0;
    FILE *f = fopen(zbt_source_path("man/zbrun.1"), "r");
    char line[256];

    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    while (fgets(line, sizeof(line), f) != NULL) {
        char *name = strstr(line, "Fl Fl ");
        int is_known = 0;

        if (strncmp(line, ".It ", 4) != 0 || name == NULL) {
            continue;
        }
        name += strlen("Fl Fl ");
        name[strcspn(name, " \n")] = '\0';
        for (size_t i = 0; i < n; i++) {
            is_known = is_known || strcmp(names[i], name) == 0;
        }
        CU_ASSERT(is_known);
        n_found++;
    }
    fclose(f);
    CU_ASSERT_EQUAL(n_found, n);
}

static void failing_allocation_leaves_nothing(void)
{
    for (uint64_t k = 1;; k++) {
        struct zbrun_opts opts = {0};
        enum zb_status st;
        int failed;

        zb_mem_fail_at(k);
        st = parse("-g 0,1 -s a.b=1 -s b.c=2 x.ini", &opts);
        failed = zb_mem_failed();
        zb_mem_fail_at(0);
        CU_ASSERT_EQUAL(st, failed ? ZB_ENOMEM : ZB_OK);
        zbrun_opts_release(&opts);
        CU_ASSERT_EQUAL(zb_mem_live(), 0);
        if (!failed) {
            break;
        }
    }
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(plain_command_trains_with_defaults),
        ZBT_CASE(all_options_are_read_in_any_order),
        ZBT_CASE(device_lists_name_the_gpu_of_each_device),
        ZBT_CASE(resume_takes_a_folder_or_none),
        ZBT_CASE(sampling_is_read_and_checked),
        ZBT_CASE(actions_are_recognised),
        ZBT_CASE(wrong_command_lines_say_why),
        ZBT_CASE(help_shows_every_option),
        ZBT_CASE(manual_page_has_every_option_and_no_other),
        ZBT_CASE(failing_allocation_leaves_nothing),
    };

    return zbt_run("zbrun_opts", cases, ZB_COUNT_OF(cases));
}
