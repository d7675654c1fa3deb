/* SPDX-License-Identifier: MIT
 *
 * Dynamic loss scaling, as in ColossalAI's DynamicGradScaler: overflows count
 * until the scale grows, not until a step without one. Where that would lower
 * the scale and leave it at min_scale, this one fails; what hysteresis
 * forgives, it forgives there too.
 */
#include "config.h"
#include "zb/optim.h"

#include <math.h>

static enum zb_status refuse(const char *name, double value, const char *want)
{
    return zb_fail(ZB_ECONFIG, "%s = %g is not %s", name, value, want);
}

enum zb_status zb_scaler_init(struct zb_scaler *s,
                              const struct zb_scaler_opts *o)
{
    if (!(o->min_scale > 0) || !isfinite(o->min_scale)) {
        return refuse("min_scale", o->min_scale, "a number above 0");
    }
    if (!(o->initial_scale >= o->min_scale) || !isfinite(o->initial_scale)) {
        return refuse("initial_scale", o->initial_scale,
                      "a number of at least min_scale");
    }
    if (!(o->max_scale >= o->initial_scale) || !isfinite(o->max_scale)) {
        return refuse("max_scale", o->max_scale,
                      "a number of at least initial_scale");
    }
    if (!(o->growth_factor > 1) || !isfinite(o->growth_factor)) {
        return refuse("growth_factor", o->growth_factor, "a number above 1");
    }
    if (!(o->backoff_factor > 0 && o->backoff_factor < 1)) {
        return refuse("backoff_factor", o->backoff_factor, "between 0 and 1");
    }
    if (o->growth_interval < 1) {
        return refuse("growth_interval", (double)o->growth_interval,
                      "at least 1");
    }
    if (o->hysteresis < 1) {
        return refuse("hysteresis", (double)o->hysteresis, "at least 1");
    }
    *s = (struct zb_scaler){.o = *o, .scale = o->initial_scale};
    return ZB_OK;
}

static void grow(struct zb_scaler *s)
{
    s->n_good = 0;
    s->n_overflows = 0;
    s->scale = fmin(s->scale * s->o.growth_factor, s->o.max_scale);
}

enum zb_status zb_scaler_update(struct zb_scaler *s, int is_overflow)
{
    if (!is_overflow) {
        if (++s->n_good == s->o.growth_interval) {
            grow(s);
        }
        return ZB_OK;
    }
    if (s->n_overflows + 1 >= s->o.hysteresis && s->scale <= s->o.min_scale) {
        return zb_fail(ZB_EDEVICE,
                       "gradients overflow at the least loss scale "
                       "(precision.min_scale = %g)",
                       s->o.min_scale);
    }
    s->n_good = 0;
    if (++s->n_overflows >= s->o.hysteresis) {
        s->scale = fmax(s->scale * s->o.backoff_factor, s->o.min_scale);
    }
    return ZB_OK;
}
