/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "cli/zbprep.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    enum zbprep_mode mode;
} modes[] = {{"text", ZBPREP_TEXT},
             {"rows", ZBPREP_ROWS},
             {"tokens", ZBPREP_TOKENS},
             {"arrays", ZBPREP_ARRAYS},
             {"info", ZBPREP_INFO}};

static const struct option longs[] = {
    {"tokenizer", required_argument, NULL, 't'},
    {"begin", required_argument, NULL, 'b'},
    {"append", required_argument, NULL, 'a'},
    {"json", required_argument, NULL, 'j'},
    {"length", required_argument, NULL, 'l'},
    {"pad", required_argument, NULL, 'p'},
    {"output", required_argument, NULL, 'o'},
    {"quiet", no_argument, NULL, 'q'},
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, 'V'},
    {NULL, 0, NULL, 0}};

void zbprep_opts_usage(FILE *f)
{
    fputs("usage: zbprep text [-t TOKENIZER.json] [-b TOKEN] [-a TOKEN] "
          "[-j FIELD]\n"
          "              -o OUTPUT FILE...\n"
          "       zbprep rows -l LENGTH [-p TOKEN] [-t TOKENIZER.json] "
          "[-b TOKEN] [-a TOKEN]\n"
          "              [-j FIELD] -o FOLDER FILE...\n"
          "       zbprep tokens -o OUTPUT FILE...\n"
          "       zbprep arrays -o OUTPUT.npy FILE.npy...\n"
          "       zbprep info FILE...\n",
          f);
}

void zbprep_opts_help(FILE *f)
{
    zbprep_opts_usage(f);
    fputs(
        "\nMake dataset files that zbrun maps, or say what files are.\n\n"
        "  -t, --tokenizer FILE  tokenizer.json (a token is a byte)\n"
        "  -b, --begin TOKEN     this token, or its id, before each document\n"
        "  -a, --append TOKEN    this token, or its id, after each document\n"
        "  -j, --json FIELD      a line is a JSON object, its FIELD a "
        "document\n"
        "                        (a file is a document)\n"
        "  -l, --length N        tokens of a row; documents go on in the next "
        "one\n"
        "  -p, --pad TOKEN       what rows are filled with (0)\n"
        "  -o, --output FILE     .bin (llm.c), .npy, .u16 or .u32\n"
        "  -q, --quiet           no summary\n"
        "  -h, --help\n"
        "  -V, --version\n",
        f);
}

static enum zb_status take_length(struct zbprep_opts *o, const char *text)
{
    char *end;
    long n = strtol(text, &end, 10);

    if (end == text || *end != '\0' || n < 1 || n > 1 << 24) {
        return zb_fail(ZB_EINVAL, "--length %s: no whole number from 1 to %d",
                       text, 1 << 24);
    }
    o->length = n;
    return ZB_OK;
}

static enum zb_status take_option(struct zbprep_opts *o, int key, char **argv)
{
    switch (key) {
    case 't':
        o->tokenizer = optarg;
        return ZB_OK;
    case 'b':
        o->begin = optarg;
        return ZB_OK;
    case 'a':
        o->append = optarg;
        return ZB_OK;
    case 'j':
        o->field = optarg;
        return ZB_OK;
    case 'l':
        return take_length(o, optarg);
    case 'p':
        o->pad = optarg;
        return ZB_OK;
    case 'o':
        o->output = optarg;
        return ZB_OK;
    case 'q':
        o->is_quiet = 1;
        return ZB_OK;
    case 'h':
        o->mode = ZBPREP_HELP;
        return ZB_OK;
    case 'V':
        o->mode = ZBPREP_VERSION;
        return ZB_OK;
    case ':':
        return zb_fail(ZB_EINVAL, "option '%s' needs a value",
                       argv[optind - 1]);
    default:
        return zb_fail(ZB_EINVAL, "unknown or ambiguous option '%s'",
                       argv[optind - 1]);
    }
}

static enum zb_status find_mode(const char *name, enum zbprep_mode *mode)
{
    for (size_t i = 0; i < ZB_COUNT_OF(modes); i++) {
        if (strcmp(name, modes[i].name) == 0) {
            *mode = modes[i].mode;
            return ZB_OK;
        }
    }
    if (strcmp(name, "images") == 0) {
        return zb_fail(ZB_EINVAL, "images: this version does not have it yet");
    }
    return zb_fail(ZB_EINVAL,
                   "unknown command '%s': it is text, rows, tokens, arrays or "
                   "info",
                   name);
}

static enum zb_status check(const struct zbprep_opts *o)
{
    if (o->n_files == 0) {
        return zb_fail(ZB_EINVAL, "no file is given");
    }
    if (o->mode != ZBPREP_TEXT && o->mode != ZBPREP_ROWS &&
        (o->tokenizer != NULL || o->begin != NULL || o->append != NULL ||
         o->field != NULL)) {
        return zb_fail(ZB_EINVAL, "-t, -b, -a and -j are for text and rows");
    }
    if (o->mode != ZBPREP_ROWS && (o->length > 0 || o->pad != NULL)) {
        return zb_fail(ZB_EINVAL, "-l and -p are for rows");
    }
    if (o->mode == ZBPREP_ROWS && o->length == 0) {
        return zb_fail(ZB_EINVAL, "rows needs their length: -l LENGTH");
    }
    if (o->mode == ZBPREP_INFO) {
        return o->output == NULL
                   ? ZB_OK
                   : zb_fail(ZB_EINVAL, "info writes no file: leave out -o");
    }
    return o->output != NULL ? ZB_OK
                             : zb_fail(ZB_EINVAL, "give the file to write: "
                                                  "-o OUTPUT");
}

enum zb_status zbprep_opts_parse(struct zbprep_opts *o, int argc, char **argv)
{
    int key, has_mode = 0;

    memset(o, 0, sizeof(*o));
    o->mode = ZBPREP_INFO;
    opterr = 0;
    optind = 1;
    while ((key = getopt_long(argc, argv, ":t:b:a:j:l:p:o:qhV", longs, NULL)) !=
           -1) {
        ZB_TRY(take_option(o, key, argv));
        has_mode |= o->mode == ZBPREP_HELP || o->mode == ZBPREP_VERSION;
    }
    if (has_mode) {
        return ZB_OK;
    }
    if (optind == argc) {
        return zb_fail(ZB_EINVAL, "no command is given");
    }
    ZB_TRY(find_mode(argv[optind], &o->mode));
    o->files = argv + optind + 1;
    o->n_files = argc - optind - 1;
    return check(o);
}
