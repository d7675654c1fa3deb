/* SPDX-License-Identifier: MIT
 *
 * What of a model is trained: patterns of frozen parameters, and low-rank
 * adapters beside frozen weights (Hu et al. 2021, "LoRA").
 */
#include "config.h"
#include "model/model_int.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "zb/conf.h"
#include "zb/mem.h"

/* A pattern of the user's, and whether anything had that name. */
struct zb_pattern {
    char *text;
    int is_used;
};

static enum zb_status add_pattern(struct zb_patterns *p, const char *text,
                                  size_t len)
{
    ZB_TRY(zb_grow(&p->item, p->n, &p->cap, sizeof(*p->item)));
    p->item[p->n] =
        (struct zb_pattern){.text = zb_format("%.*s", (int)len, text)};
    return p->item[p->n++].text != NULL ? ZB_OK : ZB_ENOMEM;
}

static void release(struct zb_patterns *p)
{
    for (size_t i = 0; i < p->n; i++) {
        zb_free(p->item[i].text);
    }
    zb_free(p->item);
}

/* The words of a list with commas. */
static enum zb_status add_words(struct zb_patterns *p, const char *words)
{
    while (*words != '\0') {
        size_t len = strcspn(words, ",");

        ZB_TRY(add_pattern(p, words, len));
        words += len + (words[len] == ',');
    }
    return ZB_OK;
}

enum zb_status zb_adapt_init(struct zb_adapt *a, const struct zb_family *family,
                             const struct zb_model_opts *o)
{
    memset(a, 0, sizeof(*a));
    a->rank = o->lora_rank;
    a->scale = o->lora_rank > 0 ? o->lora_alpha / o->lora_rank : 0;
    for (size_t i = 0; i < o->n_freeze; i++) {
        ZB_TRY(add_pattern(&a->freeze, o->freeze[i], strlen(o->freeze[i])));
    }
    for (size_t i = 0; a->rank > 0 && i < o->n_lora_targets; i++) {
        ZB_TRY(add_pattern(&a->targets, o->lora_targets[i],
                           strlen(o->lora_targets[i])));
    }
    return a->rank > 0 && o->n_lora_targets == 0
               ? add_words(&a->targets, family->lora_targets)
               : ZB_OK;
}

void zb_adapt_release(struct zb_adapt *a)
{
    release(&a->freeze);
    release(&a->targets);
}

enum zb_status zb_adapt_check(const struct zb_adapt *a, const char *where)
{
    for (size_t i = 0; i < a->freeze.n; i++) {
        if (!a->freeze.item[i].is_used) {
            return zb_fail(ZB_ECONFIG,
                           "%s: model.freeze: no parameter is called '%s'",
                           where, a->freeze.item[i].text);
        }
    }
    for (size_t i = 0; i < a->targets.n; i++) {
        if (!a->targets.item[i].is_used) {
            return zb_fail(ZB_ECONFIG,
                           "%s: model.lora_targets: no linear layer of a block "
                           "is called '%s'",
                           where, a->targets.item[i].text);
        }
    }
    return ZB_OK;
}

int zb_adapt_freezes(struct zb_adapt *a, const char *name)
{
    int is_frozen = a->rank > 0;

    for (size_t i = 0; i < a->freeze.n; i++) {
        if (fnmatch(a->freeze.item[i].text, name, 0) == 0) {
            a->freeze.item[i].is_used = 1;
            is_frozen = 1;
        }
    }
    return is_frozen;
}

/* The whole name of a layer, or its last parts. */
static int ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), n_end = strlen(end);

    return n >= n_end && strcmp(name + n - n_end, end) == 0 &&
           (n == n_end || name[n - n_end - 1] == '.');
}

static int is_target(struct zb_adapt *a, const char *name)
{
    int found = 0;

    for (size_t i = 0; i < a->targets.n; i++) {
        if (ends_with(name, a->targets.item[i].text)) {
            a->targets.item[i].is_used = 1;
            found = 1;
        }
    }
    return found;
}

/* A is drawn with the variance of PEFT's uniform numbers, B begins as 0, so
 * that the model is what it was. The factor is applied where there are least
 * numbers. */
int zb_adapt_linear(struct zb_builder *b, int x, int y,
                    const struct zb_linear *l, const char *name)
{
    struct zb_adapt *a = b->adapt;
    struct zb_linear down = {
        .n_in = l->n_in,
        .n_out = a->rank,
        .std = 1 / sqrt(3.0 * (double)l->n_in),
        .side = l->side == ZB_SIDE_IN ? ZB_SIDE_IN : ZB_SIDE_ALL,
        .n_heads = l->side == ZB_SIDE_IN ? l->n_heads : 0,
        .is_adapter = 1,
    };
    struct zb_linear up = *l;

    if (a->rank == 0 || !is_target(a, name)) {
        return y;
    }
    up.n_in = a->rank;
    up.side = l->side == ZB_SIDE_OUT ? ZB_SIDE_OUT : ZB_SIDE_ALL;
    up.in_by_out = 0;
    up.has_bias = 0;
    up.std = 0;
    up.is_adapter = 1;
    x = zb_build_linear(b, x, &down, "%s.lora_A", name);
    x = zb_build_linear(b, zb_g_scale(b->g, x, a->scale), &up, "%s.lora_B",
                        name);
    return zb_g_add(b->g, y, x);
}

json_t *zb_adapt_json(const struct zb_adapt *a, const struct zb_config *c,
                      const struct zb_model_opts *o)
{
    json_t *names = json_array(), *root;

    for (size_t i = 0; i < a->targets.n; i++) {
        json_array_append_new(names, json_string(a->targets.item[i].text));
    }
    root = json_pack("{s:s, s:s, s:i, s:f, s:f, s:o, s:s, s:b, s:b}",
                     "peft_type", "LORA", "base_model_name_or_path",
                     o->base_path != NULL ? o->base_path : "", "r", a->rank,
                     "lora_alpha", o->lora_alpha, "lora_dropout", 0.0,
                     "target_modules", names, "bias", "none", "fan_in_fan_out",
                     c->family->is_in_by_out, "inference_mode", 1);
    if (root != NULL && !c->family->sees_all) {
        json_object_set_new(root, "task_type", json_string("CAUSAL_LM"));
    }
    return root;
}
