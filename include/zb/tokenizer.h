/* SPDX-License-Identifier: MIT
 *
 * Text to token ids and back, as a tokenizer.json of Hugging Face's
 * `tokenizers` says.
 *
 *     ZB_TRY(zb_tokenizer_load("tokenizer.json", &tok));
 *     ZB_TRY(zb_encoder_new(tok, &enc));
 *     ZB_TRY(zb_encode(enc, text, n, take_ids, &where));
 *     ZB_TRY(zb_decode(tok, ids, n_ids, 1, &text));
 *
 * The ids are those of that library's encode(text, add_special_tokens = false):
 * added and special tokens are found in the text, the post-processor (which
 * would add a first and a last token) is not applied.
 *
 * Models: BPE; with bytes as characters (GPT-2, Llama-3, Qwen2, Falcon, BLOOM)
 * or with spaces written U+2581 and bytes to fall back on (Llama-2, Mistral).
 * Normalizers: Prepend, Replace of a string, NFC, NFD, NFKC, NFKD (Unicode's
 * tables are those of utf8proc). Pre-tokenizers: ByteLevel, Split, Metaspace,
 * Digits, Punctuation, WhitespaceSplit. Patterns are run by PCRE2; escapes that
 * mean something else there are refused. Decoders: ByteLevel, Metaspace,
 * Replace of a string, ByteFallback, Fuse, Strip. Everything else is refused by
 * name.
 *
 * Threads: a tokenizer is read-only; any thread may use it. An encoder belongs
 * to one thread at a time.
 */
#ifndef ZB_TOKENIZER_H
#define ZB_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "zb/status.h"

struct zb_tokenizer;

/* Read a tokenizer.json. The file is untrusted. ZB_ECONFIG, naming the file and
 * what is wrong in it or not supported. Free with zb_tokenizer_free(). */
enum zb_status zb_tokenizer_load(const char *path,
                                 struct zb_tokenizer **tok_out) ZB_CHECKED;

/* The same from n bytes of JSON; `name` is for messages. */
enum zb_status zb_tokenizer_parse(const char *json, size_t n, const char *name,
                                  struct zb_tokenizer **tok_out) ZB_CHECKED;

/* NULL is legal. */
void zb_tokenizer_free(struct zb_tokenizer *tok);

/* All ids are below this. */
int32_t zb_tokenizer_n_ids(const struct zb_tokenizer *tok);

/* The id of a token as the file spells it (for bytes as characters with that
 * alphabet), added tokens first; -1 when there is none. */
int32_t zb_tokenizer_find(const struct zb_tokenizer *tok, const char *token);

struct zb_encoder;

/* What one thread needs to encode: room, and a cache of words (4 MiB). Keeps
 * `tok`. */
enum zb_status zb_encoder_new(const struct zb_tokenizer *tok,
                              struct zb_encoder **enc_out) ZB_CHECKED;
void zb_encoder_free(struct zb_encoder *enc);

/* Takes the next ids, at least one; a failure ends the encoding with it. */
typedef enum zb_status (*zb_ids_fn)(void *arg, const int32_t *ids, size_t n);

/* The ids of the text (NULL is legal when n is 0) in order, some thousands at a
 * time. The text is encoded as one: where it is cut matters. ZB_ECONFIG for
 * text that is not UTF-8, naming the byte. Time grows with n log n at worst;
 * memory with n where the tokenizer normalizes or has no pre-tokenizer that
 * splits, else with the longest word. */
enum zb_status zb_encode(struct zb_encoder *enc, const char *text, size_t n,
                         zb_ids_fn take, void *arg) ZB_CHECKED;

/* The text of ids, as the library's decode(): NUL-terminated, to be freed with
 * zb_free(). Special tokens are left out when asked for. Ids without a token
 * are left out. ZB_ECONFIG, naming it, for a decoder that is not supported. */
enum zb_status zb_decode(const struct zb_tokenizer *tok, const int32_t *ids,
                         size_t n, int skip_special,
                         char **text_out) ZB_CHECKED;

#endif
