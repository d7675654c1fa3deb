/* SPDX-License-Identifier: MIT
 *
 * Tables of rope angles. Pair k of a head of `dims` rotated elements turns by
 * theta_k = base^(-2k/dims) per position; scaling changes theta_k.
 */
#include "config.h"
#include "model/model_int.h"

#include <math.h>
#include <string.h>

#include "zb/mem.h"

#define PI 3.14159265358979323846

/* Angles in a table: 1 GiB each. */
#define MAX_TABLE ((int64_t)1 << 28)

struct scaling {
    const char *key; /* rope_scaling or rope_parameters: for messages */
    const json_t *object;
    double base;
    double factor, low, high, original; /* llama3; factor 1: none */
    int is_llama3;
};

static enum zb_status read_number(const struct zb_config *c,
                                  const struct scaling *s, const char *name,
                                  double *out)
{
    const json_t *v = json_object_get(s->object, name);

    if (v == NULL) {
        return zb_config_fail(c, s->key, "'%s' is missing", name);
    }
    if (!json_is_number(v) || !(json_number_value(v) > 0)) {
        return zb_config_fail(c, s->key, "'%s' must be a positive number",
                              name);
    }
    *out = json_number_value(v);
    return ZB_OK;
}

/* Names that may stand in the object. */
static enum zb_status check_names(const struct zb_config *c,
                                  const struct scaling *s)
{
    static const char *const known[] = {
        "type",
        "rope_type",
        "rope_theta",
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    };
    const char *name;
    json_t *v;

    json_object_foreach((json_t *)s->object, name, v) {
        int is_known = json_is_null(v);

        for (size_t i = 0; i < ZB_COUNT_OF(known); i++) {
            is_known |= strcmp(known[i], name) == 0;
        }
        if (!is_known) {
            return zb_config_fail(c, s->key, "'%s' is not supported", name);
        }
    }
    return ZB_OK;
}

static enum zb_status read_type(const struct zb_config *c, struct scaling *s)
{
    const json_t *v = json_object_get(s->object, "rope_type");
    const char *type;

    if (v == NULL) {
        v = json_object_get(s->object, "type");
    }
    type = v == NULL ? "default" : json_string_value(v);
    if (type != NULL && strcmp(type, "default") == 0) {
        return ZB_OK;
    }
    if (type != NULL && strcmp(type, "linear") == 0) {
        return read_number(c, s, "factor", &s->factor);
    }
    if (type == NULL || strcmp(type, "llama3") != 0) {
        return zb_config_fail(c, s->key,
                              "rope type '%s' is not supported (default, "
                              "linear, llama3)",
                              type != NULL ? type : "(no word)");
    }
    s->is_llama3 = 1;
    ZB_TRY(read_number(c, s, "factor", &s->factor));
    ZB_TRY(read_number(c, s, "low_freq_factor", &s->low));
    ZB_TRY(read_number(c, s, "high_freq_factor", &s->high));
    ZB_TRY(read_number(c, s, "original_max_position_embeddings",
                       &s->original));
    return s->high > s->low
               ? ZB_OK
               : zb_config_fail(c, s->key,
                                "high_freq_factor must be larger than "
                                "low_freq_factor");
}

/* Both dialects: rope_theta beside rope_scaling, or all in rope_parameters. */
static enum zb_status read_scaling(const struct zb_config *c,
                                   struct scaling *s)
{
    const json_t *old = zb_config_object(c, "rope_scaling");
    const json_t *now = zb_config_object(c, "rope_parameters");

    *s = (struct scaling){
        .key = now != NULL ? "rope_parameters" : "rope_scaling",
        .object = now != NULL ? now : old,
        .base = zb_config_real(c, "rope_theta"),
        .factor = 1,
    };
    if (old != NULL && now != NULL && !json_equal(old, now)) {
        return zb_config_fail(c, "rope_scaling",
                              "given together with another rope_parameters");
    }
    if (s->object == NULL) {
        return ZB_OK;
    }
    ZB_TRY(check_names(c, s));
    if (json_object_get(s->object, "rope_theta") != NULL) {
        ZB_TRY(read_number(c, s, "rope_theta", &s->base));
    }
    return read_type(c, s);
}

static double angle_step(const struct scaling *s, int64_t k, int64_t dims)
{
    double theta = pow(s->base, -2.0 * (double)k / (double)dims);
    double wave = 2 * PI / theta, t;

    if (!s->is_llama3) {
        return theta / s->factor;
    }
    if (wave > s->original / s->low) {
        return theta / s->factor;
    }
    if (wave < s->original / s->high) {
        return theta;
    }
    t = (s->original / wave - s->low) / (s->high - s->low);
    return (1 - t) * theta / s->factor + t * theta;
}

static enum zb_status make_tables(struct zb_builder *b, const struct scaling *s,
                                  int64_t dims, int64_t n_pos,
                                  struct zb_rope_tables *out)
{
    int64_t half = dims / 2, shape[] = {n_pos, half};
    zb_real *cos_value, *sin_value;

    if (n_pos > MAX_TABLE / half) {
        return zb_config_fail(b->config, "max_position_embeddings",
                              "tables of %lld rotary positions are too large",
                              (long long)n_pos);
    }
    cos_value = zb_alloc_array((size_t)(n_pos * half), sizeof(*cos_value));
    sin_value = zb_alloc_array((size_t)(n_pos * half), sizeof(*sin_value));
    if (cos_value == NULL || sin_value == NULL) {
        zb_free(cos_value);
        zb_free(sin_value);
        return ZB_ENOMEM;
    }
    for (int64_t k = 0; k < half; k++) {
        double step = angle_step(s, k, dims);

        for (int64_t t = 0; t < n_pos; t++) {
            cos_value[t * half + k] = (zb_real)cos((double)t * step);
            sin_value[t * half + k] = (zb_real)sin((double)t * step);
        }
    }
    out->cos = zb_g_const(b->g, "rope.cos", 2, shape, cos_value);
    out->sin = zb_g_const(b->g, "rope.sin", 2, shape, sin_value);
    zb_free(cos_value);
    zb_free(sin_value);
    return ZB_OK;
}

enum zb_status zb_build_rope(struct zb_builder *b, int64_t dims, int64_t n_pos,
                             struct zb_rope_tables *out)
{
    struct scaling s;

    ZB_TRY(read_scaling(b->config, &s));
    return make_tables(b, &s, dims, n_pos, out);
}

enum zb_status zb_build_rope_of(struct zb_builder *b, double base, int64_t dims,
                                int64_t n_pos, struct zb_rope_tables *out)
{
    const struct scaling s = {.base = base, .factor = 1};

    return make_tables(b, &s, dims, n_pos, out);
}
