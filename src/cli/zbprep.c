/* SPDX-License-Identifier: MIT
 *
 * zbprep: make dataset files that zbrun maps, and say what files are.
 */
#include "config.h"
#include "cli/zbprep.h"

enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

static int report(enum zb_status st)
{
    if (st == ZB_OK) {
        return EXIT_DONE;
    }
    fflush(stdout);
    fprintf(stderr, "zbprep: %s\n", zb_error_text());
    return st == ZB_EINVAL || st == ZB_ECONFIG ? EXIT_USAGE : EXIT_FAILED;
}

static enum zb_status run(const struct zbprep_opts *o)
{
    switch (o->mode) {
    case ZBPREP_HELP:
        zbprep_opts_help(stdout);
        return ZB_OK;
    case ZBPREP_VERSION:
        printf("zbprep %s\n", PACKAGE_VERSION);
        return ZB_OK;
    case ZBPREP_TEXT:
        return zbprep_text(o);
    case ZBPREP_ROWS:
        return zbprep_rows(o);
    case ZBPREP_TOKENS:
        return zbprep_tokens(o);
    case ZBPREP_ARRAYS:
        return zbprep_arrays(o);
    default:
        return zbprep_info(o);
    }
}

int main(int argc, char **argv)
{
    struct zbprep_opts o;
    enum zb_status st = zbprep_opts_parse(&o, argc, argv);

    if (st != ZB_OK) {
        report(st);
        zbprep_opts_usage(stderr);
        return EXIT_USAGE;
    }
    st = run(&o);
    if (st == ZB_OK && (fflush(stdout) != 0 || ferror(stdout))) {
        st = zb_fail(ZB_EIO, "standard output: cannot write");
    }
    return report(st);
}
