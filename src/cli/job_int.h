/* SPDX-License-Identifier: MIT
 *
 * The data of a job.
 *
 * Threads: the main thread only.
 */
#ifndef ZB_CLI_JOB_INT_H
#define ZB_CLI_JOB_INT_H

#include "cli/job.h"

/* Before there is a model: what files there are, and of array data how long its
 * rows are, which becomes data.seq_len. ZB_ECONFIG. */
enum zb_status zbrun_data_find(struct zbrun_job *job) ZB_CHECKED;
/* 1: some of it is array data with an attention_mask. */
int zbrun_data_has_mask(const struct zbrun_job *job);
/* Open the data sets that the action needs, and the tokenizer. */
enum zb_status zbrun_data_open(struct zbrun_job *job) ZB_CHECKED;

#endif
