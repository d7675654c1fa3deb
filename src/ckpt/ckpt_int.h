/* SPDX-License-Identifier: MIT
 *
 * What the writer and the reader of checkpoints share: names of files, and
 * state.json. */
#ifndef ZB_CKPT_CKPT_INT_H
#define ZB_CKPT_CKPT_INT_H

#include "zb/checkpoint.h"

#define ZB_CKPT_CONFIG "config.json"
#define ZB_CKPT_ADAPTER_CONFIG "adapter_config.json"
#define ZB_CKPT_TOKENIZER "tokenizer.json"
#define ZB_CKPT_STATE_DIR "state"
#define ZB_CKPT_STATE "state/state.json"
#define ZB_CKPT_OPTIM "state/optim.safetensors"

/* A file of a checkpoint with its checksum; `path` is relative to it. */
struct zb_ckpt_file {
    char *path;
    uint64_t bytes, sum;
};

struct zb_ckpt_files {
    struct zb_ckpt_file *file;
    size_t n, cap;
};
enum zb_status zb_ckpt_files_add(struct zb_ckpt_files *f, const char *path,
                                 uint64_t bytes, uint64_t sum) ZB_CHECKED;
void zb_ckpt_files_release(struct zb_ckpt_files *f);

/* ckpt_state.c: the text of state.json (to be freed), and back. It has a
 * checksum of its own. */
enum zb_status zb_ckpt_state_print(const struct zb_ckpt_state *state,
                                   const struct zb_ckpt_files *files,
                                   char **text_out) ZB_CHECKED;
enum zb_status zb_ckpt_state_read(const char *path,
                                  struct zb_ckpt_state *state_out,
                                  struct zb_ckpt_files *files_out) ZB_CHECKED;

/* ckpt_dir.c: "DIR/step-N", to be freed; a folder with all that is in it; the
 * rename of a folder inside another, and what was renamed, last. */
char *zb_ckpt_path(const char *dir, int64_t step);
enum zb_status zb_remove_tree(const char *path) ZB_CHECKED;
enum zb_status zb_sync_dir(const char *path) ZB_CHECKED;
/* Remove all but the `keep` newest; 0 keeps all. */
enum zb_status zb_ckpt_prune(const char *dir, int keep) ZB_CHECKED;

#endif
