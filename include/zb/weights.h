/* SPDX-License-Identifier: MIT
 *
 * The weights of one model: one safetensors file, or a directory as Hugging
 * Face has them, with model.safetensors or with several files and
 * model.safetensors.index.json.
 *
 *     struct zb_weights *w;
 *     ZB_TRY(zb_weights_open("models/gpt2", &w));
 *     ZB_TRY_GOTO(st, zb_weights_check(w, want, n), out);
 *     struct zb_weight x = zb_weights_find(w, "transformer.wte.weight");
 *     ... zb_st_read_part(x.file, x.tensor, first, n, out) ...
 *     zb_weights_close(w);
 *
 * Names. Files of base models lack the prefix of the model with a head
 * ("transformer.", "model.", "bert."), or have it where the model has none: a
 * tensor is looked up by its exact name, then with a prefix added or taken
 * away. Old files call the weight and bias of a LayerNorm gamma and beta.
 *
 * Files are mapped: nothing is read before it is asked for.
 *
 * Threads: opened weights may be read by any number of threads.
 */
#ifndef ZB_WEIGHTS_H
#define ZB_WEIGHTS_H

#include "zb/ckpt.h"

#define ZB_WEIGHTS_FILE "model.safetensors"
#define ZB_WEIGHTS_INDEX "model.safetensors.index.json"
/* Adapters in PEFT's layout: names begin with the prefix. */
#define ZB_ADAPTER_FILE "adapter_model.safetensors"
#define ZB_ADAPTER_PREFIX "base_model.model."

struct zb_weights;

/* A tensor and the file it is in; tensor == NULL: there is none. */
struct zb_weight {
    const struct zb_st_file *file;
    const struct zb_st_tensor *tensor;
};

/* Open a file, or what is in a directory (ZB_WEIGHTS_FILE before the index,
 * that before ZB_ADAPTER_FILE).
 * ZB_ECONFIG, naming the file: a directory without weights, an index that is
 * no JSON, that names a file outside the directory or a tensor that its file
 * lacks, a tensor in two files, and what zb_st_open() refuses. ZB_EIO when a
 * file cannot be read. */
enum zb_status zb_weights_open(const char *path,
                               struct zb_weights **w_out) ZB_CHECKED;
void zb_weights_close(struct zb_weights *w); /* NULL is legal */

/* As given to zb_weights_open(). */
const char *zb_weights_path(const struct zb_weights *w);

/* Leaves the error text alone. The second one takes the exact name only. */
struct zb_weight zb_weights_find(const struct zb_weights *w, const char *name);
struct zb_weight zb_weights_get(const struct zb_weights *w, const char *name);

/* A tensor that a model needs. */
struct zb_weight_want {
    const char *name;
    int n_dims;
    int64_t dims[ZB_ST_MAX_DIMS];
    int is_optional; /* 1: it may be missing */
};

/* ZB_ECONFIG unless the files have all of the list, in these shapes and in a
 * type that can be read as real numbers, and no tensor beside them. The text
 * names the first ones that are missing, have another shape or another type,
 * or are not the model's. What other programs store and nobody needs is not
 * minded: causal masks (attn.bias), rotary frequencies, position ids, an
 * output matrix where the model ties it to its embedding, bert's other heads. */
enum zb_status zb_weights_check(const struct zb_weights *w,
                                const struct zb_weight_want *want,
                                size_t n) ZB_CHECKED;

#endif
