/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "cli/zbrun_opts.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "zb/mem.h"

#define DEVICES_MAX 1024
#define COUNT_MAX 1000000000
#define TEMPERATURE_MAX 1e6
#define NOT_SAID (-1.0)

/* Values of options without a letter, above all letters. */
enum {
    OPT_TRACE = 256,
    OPT_REPORT,
    OPT_DUMP_GRADS,
    OPT_PRINT_CONFIG,
    OPT_LIST_MODELS,
    OPT_GENERATE,
    OPT_TEMPERATURE,
    OPT_TOP_P,
    OPT_MAX_TOKENS
};

struct row {
    int key; /* letter, or one of the above */
    const char *name;
    int has_arg;
    const char *arg; /* how help shows it */
    const char *help;
};

static const struct row rows[] = {
    {'g', "gpus", required_argument, "N|LIST",
     "how many devices, or which GPUs they are (0,2,3\n"
     "or 2, or 0,0, which share one);\n"
     "the default is pp_size * tp_size * sp_size"},
    {'b', "backend", required_argument, "NAME",
     "auto (default), cuda, cpu, check, or sim, which\n"
     "computes nothing and takes the planned time"},
    {'s', "set", required_argument, "SEC.KEY=VALUE",
     "override one configuration key (repeatable)"},
    {'r', "resume", optional_argument, "[DIR]",
     "continue from the newest good checkpoint in DIR, or\n"
     "in checkpoint.dir; DIR may be a checkpoint itself"},
    {'e', "eval", no_argument, NULL,
     "only evaluate on data.valid; prints the loss"},
    {OPT_GENERATE, "generate", required_argument, "TEXT",
     "print text that the model writes behind TEXT"},
    {OPT_TEMPERATURE, "temperature", required_argument, "X",
     "... from likeliest (0) to as the model says\n"
     "(1, default), or flatter"},
    {OPT_TOP_P, "top-p", required_argument, "X",
     "... only of the likeliest tokens, which have this\n"
     "probability together (default: 1, all)"},
    {OPT_MAX_TOKENS, "max-tokens", required_argument, "N",
     "... at most so many tokens; the default is 128, or\n"
     "what data.seq_len leaves"},
    {'n', "dry-run", no_argument, NULL,
     "check everything; print layout, memory and bubble;\n"
     "touches no device, writes nothing"},
    {OPT_TRACE, "trace", required_argument, "FILE",
     "Chrome trace of what ran, next to what was planned"},
    {OPT_REPORT, "report", required_argument, "FILE",
     "one self-contained HTML page about the run"},
    {OPT_DUMP_GRADS, "dump-grads", required_argument, "DIR",
     "write the first step's gradients and loss to\n"
     "DIR/grads.safetensors"},
    {OPT_PRINT_CONFIG, "print-config", no_argument, NULL,
     "print every key with value, meaning and range, as a\n"
     "valid INI file"},
    {OPT_LIST_MODELS, "list-models", no_argument, NULL,
     "print the model families and what each supports"},
    {'q', "quiet", no_argument, NULL, "errors and warnings only"},
    {'v', "verbose", no_argument, NULL, "say more"},
    {'h', "help", no_argument, NULL, "print this help"},
    {'V', "version", no_argument, NULL,
     "print the version and what was built in"},
};

#define N_ROWS ZB_COUNT_OF(rows)

size_t zbrun_opts_names(const char **names, size_t max)
{
    for (size_t i = 0; i < N_ROWS && i < max; i++) {
        names[i] = rows[i].name;
    }
    return N_ROWS;
}

void zbrun_opts_usage(FILE *f)
{
    fputs("usage: zbrun [options] config.ini\n"
          "Try 'zbrun --help'.\n",
          f);
}

/* "  -g, --gpus=N|LIST" in a column of its own, then the help lines. */
static void print_row(const struct row *row, FILE *f)
{
    char left[64], letter[8] = "    ";
    const char *line = row->help;
    const char *equals = row->arg == NULL     ? ""
                         : row->arg[0] == '[' ? "[="
                                              : " ";

    if (row->key < OPT_TRACE) {
        snprintf(letter, sizeof(letter), "-%c, ", row->key);
    }
    snprintf(left, sizeof(left), "%s--%s%s%s", letter, row->name, equals,
             row->arg == NULL ? "" : row->arg + (row->arg[0] == '['));
    while (line != NULL) {
        const char *end = strchr(line, '\n');
        int len = end == NULL ? (int)strlen(line) : (int)(end - line);

        fprintf(f, "  %-25s %.*s\n", line == row->help ? left : "", len, line);
        line = end == NULL ? NULL : end + 1;
    }
}

void zbrun_opts_help(FILE *f)
{
    fputs("usage: zbrun [options] config.ini\n"
          "Train a transformer on one machine with a zero-bubble pipeline.\n"
          "\n",
          f);
    for (size_t i = 0; i < N_ROWS; i++) {
        print_row(&rows[i], f);
    }
    fputs("\n"
          "Exit status: 0 done; 1 the run failed; 2 usage, configuration or\n"
          "input files; 75 stopped by SIGINT or SIGTERM after saving.\n"
          "See zbrun(1), and zbrun.ini(5) for the keys of config.ini.\n",
          f);
}

static enum zb_status bad_devices(const char *text)
{
    return zb_fail(ZB_ECONFIG,
                   "--gpus %.60s: expected a number from 1 to %d, or a list of "
                   "GPU numbers such as 0,2,3",
                   text, DEVICES_MAX);
}

/* A number at *pos, which goes behind it; -1 when there is none. */
static int device_number(const char **pos)
{
    char *end;
    long n;

    if (**pos < '0' || **pos > '9') {
        return -1;
    }
    errno = 0;
    n = strtol(*pos, &end, 10);
    *pos = end;
    return errno != 0 || n > DEVICES_MAX ? -1 : (int)n;
}

static enum zb_status parse_devices(const char *text, struct zbrun_opts *opts)
{
    const char *pos = text;
    int n = device_number(&pos);

    zb_free(opts->device);
    opts->device = NULL;
    opts->n_devices = 0;
    if (*pos == '\0' && n > 0) {
        opts->n_devices = n;
        return ZB_OK;
    }
    opts->device = zb_alloc_array(DEVICES_MAX, sizeof(*opts->device));
    if (opts->device == NULL) {
        return ZB_ENOMEM;
    }
    while (*pos == ',' || *pos == '\0') {
        if (n < 0 || opts->n_devices == DEVICES_MAX) {
            return bad_devices(text);
        }
        opts->device[opts->n_devices++] = n;
        if (*pos == '\0' || pos[1] == '\0') {
            /* "2," is a list of one; "0" alone is no number of devices. */
            return *pos == '\0' && opts->n_devices == 1 ? bad_devices(text)
                                                        : ZB_OK;
        }
        pos++;
        n = device_number(&pos);
    }
    return bad_devices(text);
}

static enum zb_status add_set(const char *text, struct zbrun_opts *opts,
                              size_t *cap)
{
    ZB_TRY(zb_grow(&opts->set, opts->n_set, cap, sizeof(*opts->set)));
    opts->set[opts->n_set++] = text;
    return ZB_OK;
}

static enum zb_status set_action(enum zbrun_action action, const char *option,
                                 struct zbrun_opts *opts)
{
    if (opts->action != ZBRUN_TRAIN && opts->action != action) {
        return zb_fail(ZB_ECONFIG,
                       "%s: only one of --eval, --generate, --dry-run, "
                       "--print-config and --list-models",
                       option);
    }
    opts->action = action;
    return ZB_OK;
}

static enum zb_status set_verbosity(int verbosity, struct zbrun_opts *opts)
{
    if (opts->verbosity == -verbosity) {
        return zb_fail(ZB_ECONFIG, "--quiet and --verbose contradict");
    }
    opts->verbosity = verbosity;
    return ZB_OK;
}

static enum zb_status parse_path(const char *option, const char *text,
                                 const char **path_out)
{
    if (text[0] == '\0') {
        return zb_fail(ZB_ECONFIG, "%s: empty name", option);
    }
    *path_out = text;
    return ZB_OK;
}

/* The lowest is left out where `is_open`. */
static enum zb_status parse_real(const char *option, const char *text,
                                 double lo, int is_open, double hi,
                                 double *value_out)
{
    char *end;
    double x = strtod(text, &end);

    if (end == text || *end != '\0' || !(is_open ? x > lo : x >= lo) ||
        !(x <= hi)) {
        return zb_fail(ZB_ECONFIG,
                       "%s %.60s: expected a number from %g to %g%s", option,
                       text, lo, hi, is_open ? ", but not the first" : "");
    }
    *value_out = x;
    return ZB_OK;
}

static enum zb_status parse_count(const char *option, const char *text,
                                  int64_t *value_out)
{
    char *end;
    long long n;

    errno = 0;
    n = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || n < 1 || n > COUNT_MAX) {
        return zb_fail(ZB_ECONFIG,
                       "%s %.60s: expected a whole number from 1 to %d", option,
                       text, COUNT_MAX);
    }
    *value_out = n;
    return ZB_OK;
}

/* What getopt_long() did not understand; optopt is 0 for an unknown or
 * ambiguous long option, which is then the word before optind. */
static enum zb_status bad_option(int c, char **argv)
{
    const char *word = argv[optind - 1];

    if (c == ':') {
        for (size_t i = 0; i < N_ROWS; i++) {
            if (rows[i].key == optopt) {
                return zb_fail(ZB_ECONFIG, "--%s needs a value %s",
                               rows[i].name, rows[i].arg);
            }
        }
    }
    for (size_t i = 0; i < N_ROWS; i++) {
        if (optopt == rows[i].key && strncmp(word, "--", 2) == 0) {
            return zb_fail(ZB_ECONFIG, "--%s takes no value", rows[i].name);
        }
    }
    if (optopt == 0 || strncmp(word, "--", 2) == 0) {
        return zb_fail(ZB_ECONFIG, "unknown or ambiguous option '%.60s'", word);
    }
    return zb_fail(ZB_ECONFIG, "unknown option '-%c'", optopt);
}

static enum zb_status apply(int c, char **argv, struct zbrun_opts *opts,
                            size_t *cap)
{
    switch (c) {
    case 'g':
        return parse_devices(optarg, opts);
    case 'b':
        return parse_path("--backend", optarg, &opts->backend);
    case 's':
        return add_set(optarg, opts, cap);
    case 'r':
        opts->wants_resume = 1;
        return optarg == NULL ? ZB_OK
                              : parse_path("--resume", optarg, &opts->resume);
    case 'e':
        return set_action(ZBRUN_EVAL, "--eval", opts);
    case 'n':
        return set_action(ZBRUN_DRY_RUN, "--dry-run", opts);
    case OPT_GENERATE:
        opts->generate = optarg;
        return set_action(ZBRUN_GENERATE, "--generate", opts);
    case OPT_TEMPERATURE:
        return parse_real("--temperature", optarg, 0, 0, TEMPERATURE_MAX,
                          &opts->temperature);
    case OPT_TOP_P:
        return parse_real("--top-p", optarg, 0, 1, 1, &opts->top_p);
    case OPT_MAX_TOKENS:
        return parse_count("--max-tokens", optarg, &opts->max_tokens);
    case OPT_TRACE:
        return parse_path("--trace", optarg, &opts->trace);
    case OPT_REPORT:
        return parse_path("--report", optarg, &opts->report);
    case OPT_DUMP_GRADS:
        return parse_path("--dump-grads", optarg, &opts->dump_grads);
    case OPT_PRINT_CONFIG:
        return set_action(ZBRUN_PRINT_CONFIG, "--print-config", opts);
    case OPT_LIST_MODELS:
        return set_action(ZBRUN_LIST_MODELS, "--list-models", opts);
    case 'q':
        return set_verbosity(-1, opts);
    case 'v':
        return set_verbosity(1, opts);
    default:
        return bad_option(c, argv);
    }
}

static enum zb_status parse_all(int argc, char **argv, struct zbrun_opts *opts)
{
    struct option longs[N_ROWS + 1];
    char shorts[3 * N_ROWS + 2] = ":";
    size_t cap = 0;
    int c;

    memset(longs, 0, sizeof(longs));
    for (size_t i = 0; i < N_ROWS; i++) {
        longs[i].name = rows[i].name;
        longs[i].has_arg = rows[i].has_arg;
        longs[i].val = rows[i].key;
        if (rows[i].key < OPT_TRACE) {
            size_t len = strlen(shorts);

            shorts[len] = (char)rows[i].key;
            memcpy(shorts + len + 1, "::", (size_t)rows[i].has_arg);
        }
    }
    optind = 0; /* glibc: begin anew, also after an earlier command line */
    while ((c = getopt_long(argc, argv, shorts, longs, NULL)) != -1) {
        if (c == 'h' || c == 'V') {
            opts->action = c == 'h' ? ZBRUN_HELP : ZBRUN_VERSION;
            return ZB_OK;
        }
        ZB_TRY(apply(c, argv, opts, &cap));
    }
    if (argc - optind > 1) {
        return zb_fail(ZB_ECONFIG, "one configuration file, not also '%.60s'",
                       argv[optind + 1]);
    }
    opts->config = optind < argc ? argv[optind] : NULL;
    return ZB_OK;
}

static enum zb_status check(const struct zbrun_opts *opts)
{
    int is_train = opts->action == ZBRUN_TRAIN;
    int needs_config = is_train || opts->action == ZBRUN_EVAL ||
                       opts->action == ZBRUN_GENERATE ||
                       opts->action == ZBRUN_DRY_RUN;

    if (needs_config && opts->config == NULL) {
        return zb_fail(ZB_ECONFIG, "no configuration file is given");
    }
    if (opts->action != ZBRUN_GENERATE &&
        (opts->temperature >= 0 || opts->top_p >= 0 || opts->max_tokens > 0)) {
        return zb_fail(ZB_ECONFIG,
                       "--temperature, --top-p and --max-tokens are "
                       "for --generate only");
    }
    if (!is_train && opts->trace != NULL) {
        return zb_fail(ZB_ECONFIG, "--trace is for training runs only");
    }
    if (!is_train && opts->report != NULL) {
        return zb_fail(ZB_ECONFIG, "--report is for training runs only");
    }
    if (!is_train && opts->dump_grads != NULL) {
        return zb_fail(ZB_ECONFIG, "--dump-grads is for training runs only");
    }
    return ZB_OK;
}

enum zb_status zbrun_opts_parse(int argc, char **argv,
                                struct zbrun_opts *opts_out)
{
    struct zbrun_opts opts = {.action = ZBRUN_TRAIN,
                              .backend = "auto",
                              .temperature = NOT_SAID,
                              .top_p = NOT_SAID};
    enum zb_status st = parse_all(argc, argv, &opts);

    if (st == ZB_OK && opts.action != ZBRUN_HELP &&
        opts.action != ZBRUN_VERSION) {
        st = check(&opts);
    }
    if (st != ZB_OK) {
        zbrun_opts_release(&opts);
        return st;
    }
    opts.temperature = opts.temperature == NOT_SAID ? 1 : opts.temperature;
    opts.top_p = opts.top_p == NOT_SAID ? 1 : opts.top_p;
    *opts_out = opts;
    return ZB_OK;
}

void zbrun_opts_release(struct zbrun_opts *opts)
{
    zb_free(opts->device);
    zb_free(opts->set);
    memset(opts, 0, sizeof(*opts));
}
