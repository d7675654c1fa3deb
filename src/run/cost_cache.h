/* SPDX-License-Identifier: MIT
 *
 * Measured numbers kept from run to run: one small file per key in a folder.
 * A cache may be lost, broken or of another program at any time; then what it
 * holds is measured again, with a line in the log.
 *
 *     ZB_TRY(zb_cost_key(&r, "layers", &key));
 *     ZB_TRY(zb_cost_cache_load(dir, key, v, n, &is_found));
 *     if (!is_found) { measure; ZB_TRY(zb_cost_cache_store(dir, key, v, n)); }
 *
 * Threads: any, also of several processes: files are replaced as a whole.
 */
#ifndef ZB_RUN_COST_CACHE_H
#define ZB_RUN_COST_CACHE_H

#include "run/profile.h"

/* Everything the numbers depend on, as text: program and version, backend,
 * processor, cores, devices and their threads, optimizer, microbatch, kinds of
 * layers. Freed by the caller. */
enum zb_status zb_cost_key(const struct zb_profile_request *r,
                           const char *backend, const char *what,
                           char **key_out) ZB_CHECKED;

/* The path of a key's file. Freed by the caller. */
char *zb_cost_cache_path(const char *dir, const char *key);

/* The n numbers kept for `key` (NAN possible). Only ZB_ENOMEM is an error;
 * `dir` NULL holds nothing. */
enum zb_status zb_cost_cache_load(const char *dir, const char *key, double *v,
                                  size_t n, int *is_found_out) ZB_CHECKED;

/* Keep them; what can not be written is only logged. */
enum zb_status zb_cost_cache_store(const char *dir, const char *key,
                                   const double *v, size_t n) ZB_CHECKED;

#endif
