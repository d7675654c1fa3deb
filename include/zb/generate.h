/* SPDX-License-Identifier: MIT
 *
 * Text from a model: one token after the other, each drawn from what the model
 * says about the next one behind all tokens so far.
 *
 *     struct zb_sampling how = {.temperature = 0.8, .top_p = 0.95, .seed = 1};
 *     memcpy(ids, prompt, n_prompt * sizeof(*ids));
 *     ZB_TRY(zb_generate(s, &how, n_prompt, n_max, ids, &n));
 *
 * No keys and values are kept: every token runs the whole prefix through the
 * pipeline, forward only, so that n tokens cost what n evaluations of sequences
 * of 1 to n tokens do, and any layout that trains a model samples from it. The
 * logits of one sequence are held in host memory: n_max * vocabulary numbers.
 *
 * Threads: as zb/run.h; zb_sample() any, with a `room` of its own.
 */
#ifndef ZB_GENERATE_H
#define ZB_GENERATE_H

#include <stdint.h>

#include "zb/run.h"
#include "zb/status.h"

struct zb_sampling {
    double temperature; /* >= 0; logits are divided by it; 0: the likeliest
                           token (of equals the first), no drawing */
    double top_p;       /* in (0, 1]: only the likeliest tokens are drawn from,
                           as few as have this probability together (Holtzman et
                           al. 2020) */
    uint64_t seed;
};

/* A token and its probability. */
struct zb_choice {
    double p;
    int32_t id;
};

/* The token that `u` in [0, 1) draws from n logits; equally likely u give every
 * token its probability. room: [n], overwritten. ZB_EINVAL for numbers out of
 * range, ZB_EDEVICE, naming the token, for a logit that is not a number, or
 * when none is finite. */
enum zb_status zb_sample(const zb_real *logits, int64_t n,
                         const struct zb_sampling *how, double u,
                         struct zb_choice *room, int32_t *id_out) ZB_CHECKED;

/* Go on from ids[0 .. n_prompt - 1], the prompt, until there are n_max (room of
 * `ids`) tokens or the model's end of text (zb_model_is_end()), which is kept.
 * 1 <= n_prompt <= n_max <= the max_seq of the session. What is drawn depends on
 * the seed and the place of the token alone. ZB_EUNSUPPORTED, naming it, when
 * the model needs a field that a prompt has not, or gives no logits; ZB_ECONFIG
 * for ids outside the vocabulary; else as zb_run_forward_only(). */
enum zb_status zb_generate(struct zb_session *s, const struct zb_sampling *how,
                           int64_t n_prompt, int64_t n_max, int32_t *ids,
                           int64_t *n_out) ZB_CHECKED;

#endif
