/* SPDX-License-Identifier: MIT
 *
 * The parts of zbprep: its options, the files it writes, its commands.
 *
 * Threads: the main thread only.
 */
#ifndef ZB_CLI_ZBPREP_H
#define ZB_CLI_ZBPREP_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "zb/file.h"
#include "zb/status.h"

enum zbprep_mode {
    ZBPREP_HELP,
    ZBPREP_VERSION,
    ZBPREP_TEXT,
    ZBPREP_ROWS,
    ZBPREP_TOKENS,
    ZBPREP_ARRAYS,
    ZBPREP_INFO
};

struct zbprep_opts {
    enum zbprep_mode mode;
    const char *tokenizer; /* NULL: bytes */
    const char *begin;     /* token before each document; NULL: none */
    const char *append;    /* token after it; likewise */
    const char *pad;       /* token behind documents; NULL: 0 */
    int64_t length;        /* of rows, in tokens; 0: not given */
    const char *field;     /* of each line, which is JSON; NULL: plain text */
    const char *output;
    int is_quiet;
    int n_files;
    char **files; /* into argv */
};

/* ZB_EINVAL with a message for options that make no sense. */
enum zb_status zbprep_opts_parse(struct zbprep_opts *o, int argc,
                                 char **argv) ZB_CHECKED;
void zbprep_opts_usage(FILE *f);
void zbprep_opts_help(FILE *f);

/* A token file in the making, of the kind that its name says: .bin (llm.c),
 * .npy, .u16 or .u32. */
struct zbprep_out {
    struct zb_sink sink;
    const struct zbprep_kind *kind;
    int width; /* bytes of a token: 2 or 4 */
    int64_t n_tokens;
    int64_t row_len; /* of .npy: it has two dimensions, rows of so many; 0: one */
};

/* Begin a file for ids below id_limit. ZB_EINVAL for a name of no kind, or of
 * one whose numbers are too small. */
enum zb_status zbprep_out_open(struct zbprep_out *out, const char *path,
                               int64_t id_limit) ZB_CHECKED;
/* The same of rows, for .npy files only. */
enum zb_status zbprep_out_open_rows(struct zbprep_out *out, const char *path,
                                    int64_t id_limit,
                                    int64_t row_len) ZB_CHECKED;
/* Append ids; has the form of a zb_ids_fn. ZB_ECONFIG when they are too many
 * for the format. */
enum zb_status zbprep_out_put(void *out, const int32_t *ids,
                              size_t n) ZB_CHECKED;
/* Finish after the writer came to `st`, as zb_sink_close(). */
enum zb_status zbprep_out_close(struct zbprep_out *out,
                                enum zb_status st) ZB_CHECKED;

/* The documents of text files on their way to `put`: ids, as they come, and the
 * end of each document (`end` may be NULL). */
struct zbprep_docs {
    const struct zbprep_opts *o;
    enum zb_status (*put)(void *to, const int32_t *ids, size_t n);
    enum zb_status (*end)(void *to);
    void *to;
    struct zb_tokenizer *tok; /* NULL: bytes */
    struct zb_encoder *enc;
    int32_t begin, append; /* -1: nothing */
    int64_t id_limit; /* all ids are below it */
    int64_t n_documents, n_bytes;
};

/* Release with zbprep_docs_close() in any case. */
enum zb_status zbprep_docs_open(struct zbprep_docs *d) ZB_CHECKED;
/* The id of --pad, which is below d->id_limit then, too. */
enum zb_status zbprep_docs_limit(struct zbprep_docs *d,
                                 int32_t *pad_out) ZB_CHECKED;
enum zb_status zbprep_docs_put(struct zbprep_docs *d) ZB_CHECKED;
void zbprep_docs_close(struct zbprep_docs *d);

enum zb_status zbprep_text(const struct zbprep_opts *o) ZB_CHECKED;
enum zb_status zbprep_rows(const struct zbprep_opts *o) ZB_CHECKED;
enum zb_status zbprep_tokens(const struct zbprep_opts *o) ZB_CHECKED;
enum zb_status zbprep_arrays(const struct zbprep_opts *o) ZB_CHECKED;
enum zb_status zbprep_info(const struct zbprep_opts *o) ZB_CHECKED;

#endif
