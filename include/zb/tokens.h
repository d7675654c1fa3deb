/* SPDX-License-Identifier: MIT
 *
 * Files of tokens: one row of numbers each, mapped and never copied as a whole.
 *
 *     ZB_TRY(zb_tokens_open("train.bin", ZB_DATA_AUTO, &t));
 *     info = zb_tokens_info(t);
 *     ZB_TRY(zb_tokens_read(t, first, n, vocab_size, ids));
 *     zb_tokens_close(t);
 *
 * What is read, in the order in which it is tried:
 *
 * - llm.c: 256 int32, the first 20240520 (version 1, uint16 follow) or 20240801
 *   (version 7, uint32), the third the number of tokens.
 * - Megatron: NAME.idx with NAME.bin beside it, either may be named; its
 *   sequences one after the other.
 * - NumPy's .npy, versions 1 to 3: integers of one dimension.
 * - Raw: names that end with .bin, .u16 or .uint16 (uint16), .u32 or .uint32
 *   (uint32).
 * - Text: anything else; a token is a byte.
 *
 * All numbers have the least byte first. Files are untrusted: sizes and
 * positions are checked before they are used, messages name the file and the
 * byte in it.
 *
 * Threads: an open file is read-only; any thread may use it.
 */
#ifndef ZB_TOKENS_H
#define ZB_TOKENS_H

#include <stddef.h>
#include <stdint.h>

#include "zb/status.h"

enum zb_data_format {
    ZB_DATA_AUTO,  /* as the list says; known to be no data: refused */
    ZB_DATA_TEXT,  /* text, whatever it looks like */
    ZB_DATA_TOKENS /* as the list says, but text is refused */
};

struct zb_tokens;

struct zb_tokens_info {
    const char *format; /* "llm.c version 1", "text", ... */
    const char *type;   /* of a token: "uint16", ... */
    int is_text;        /* tokens are the bytes of text */
    int64_t n_tokens;
    int64_t n_sequences; /* as Megatron counts them; -1: unknown */
    int64_t n_documents; /* likewise */
    int64_t offset;      /* of the first token in its file, in bytes */
    int64_t id_limit;    /* ids are below this whatever the file holds */
};

/* Map `path`. ZB_ECONFIG, naming it, when it can not be read, is no regular
 * file, is damaged, or is recognised as something that holds no tokens. */
enum zb_status zb_tokens_open(const char *path, enum zb_data_format format,
                              struct zb_tokens **t_out) ZB_CHECKED;

/* Unmap and release; NULL is legal. */
void zb_tokens_close(struct zb_tokens *t);

struct zb_tokens_info zb_tokens_info(const struct zb_tokens *t);

/* The file that holds the tokens, as messages name it. */
const char *zb_tokens_path(const struct zb_tokens *t);

/* The bytes of text, NULL for an empty file; ZB_BUG_IF() it is none. */
const char *zb_tokens_text(const struct zb_tokens *t);

/* ZB_EIO when the file became shorter than what is mapped: touching the lost
 * part would be fatal. */
enum zb_status zb_tokens_check(const struct zb_tokens *t) ZB_CHECKED;

/* Tokens first .. first + n - 1, which exist. ZB_ECONFIG, naming the byte, for
 * an id that is negative or >= limit (limit <= 2^31). Reads no more than that,
 * and does not call zb_tokens_check(). */
enum zb_status zb_tokens_read(const struct zb_tokens *t, int64_t first,
                              int64_t n, int64_t limit,
                              int32_t *ids_out) ZB_CHECKED;

#endif
