/* SPDX-License-Identifier: MIT
 *
 * What the reader and the writer of safetensors files share.
 */
#ifndef ZB_CKPT_SAFETENSORS_INT_H
#define ZB_CKPT_SAFETENSORS_INT_H

#include "zb/ckpt.h"

/* The data in a file is little-endian and is used without a conversion. */
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "safetensors files can only be read on a little-endian machine"
#endif

#define ZB_ST_LENGTH_BYTES 8
#define ZB_ST_META_KEY "__metadata__"

/* Names in messages are cut here: a file may hold one of 100 MB. */
#define ZB_ST_NAME_FMT "%.200s"

/* zb_st_write(), and the checksum and size of what is in the file. */
enum zb_status zb_st_write_summed(const char *path,
                                  const struct zb_st_out *tensors, size_t n,
                                  const struct zb_st_meta *meta, size_t n_meta,
                                  uint64_t *sum_out,
                                  uint64_t *bytes_out) ZB_CHECKED;

/* Bytes and name of an element type other than ZB_ST_OTHER. */
size_t zb_st_dtype_bytes(enum zb_st_dtype t);
const char *zb_st_dtype_text(enum zb_st_dtype t);

#endif
