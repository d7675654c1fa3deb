/* SPDX-License-Identifier: MIT
 *
 * The command line of zbrun.
 *
 *     struct zbrun_opts opts;
 *     st = zbrun_opts_parse(argc, argv, &opts);
 *     if (st != ZB_OK) {
 *         ... print zb_error_text() and zbrun_opts_usage(); exit status 2 ...
 *     }
 *     switch (opts.action) { ... }
 *     zbrun_opts_release(&opts);
 *
 * Threads: before any are started; getopt_long() keeps state of its own.
 */
#ifndef ZB_CLI_ZBRUN_OPTS_H
#define ZB_CLI_ZBRUN_OPTS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "zb/status.h"

enum zbrun_action {
    ZBRUN_TRAIN,
    ZBRUN_EVAL,
    ZBRUN_GENERATE,
    ZBRUN_DRY_RUN,
    ZBRUN_PRINT_CONFIG,
    ZBRUN_LIST_MODELS,
    ZBRUN_HELP,
    ZBRUN_VERSION
};

/* Strings point into argv. */
struct zbrun_opts {
    enum zbrun_action action;
    const char *config;  /* NULL only for PRINT_CONFIG, LIST_MODELS, HELP and
                            VERSION */
    int n_devices;       /* 0: not said, as many as the layout needs */
    int *device;         /* [n_devices] GPU of each; NULL: 0 .. n_devices-1 */
    const char *backend; /* "auto" unless given; the registry knows the rest */
    size_t n_set;
    const char **set;       /* "SEC.KEY=VALUE", in order; for zb_conf_load() */
    const char *trace;      /* NULL: none */
    const char *report;     /* NULL: none */
    const char *dump_grads; /* NULL: none */
    const char *generate;   /* the prompt */
    double temperature;     /* 1, unless given; >= 0 */
    double top_p;           /* 1, unless given; in (0, 1] */
    int64_t max_tokens;     /* new ones; 0: not said */
    int wants_resume;       /* 1: --resume */
    const char *resume;     /* its folder; NULL: checkpoint.dir */
    int verbosity;          /* -1 with -q, 0, 1 with -v */
};

/* Parse the command line; argv may be reordered. ZB_ECONFIG when it is wrong or
 * when options contradict each other: the text names the option. With
 * -h or -V nothing else is looked at. Release with zbrun_opts_release(). */
enum zb_status zbrun_opts_parse(int argc, char **argv,
                                struct zbrun_opts *opts_out) ZB_CHECKED;
void zbrun_opts_release(struct zbrun_opts *opts);

/* One line, "usage: ...", and a hint at --help. */
void zbrun_opts_usage(FILE *f);

/* What --help prints. */
void zbrun_opts_help(FILE *f);

/* The long names of all options, for the test of the manual page: fills names
 * (room for `max`) and returns how many there are. */
size_t zbrun_opts_names(const char **names, size_t max);

#endif
