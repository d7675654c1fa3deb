/* SPDX-License-Identifier: MIT
 *
 * Optimizer steps of one element, and normal random numbers.
 */
#ifndef ZB_KERN_UPDATE_H
#define ZB_KERN_UPDATE_H

#include "kern/fmath.h"
#include "kern/philox.h"

/* What AdamW's step is made of, computed once per launch in double. */
struct zb_adamw_coef {
    zb_real grad_scale, beta1, beta2, one_minus_beta1, one_minus_beta2;
    zb_real decay;   /* 1 - lr weight_decay */
    zb_real step;    /* lr / c1 */
    zb_real root_c2; /* 1 / sqrt(c2) */
    zb_real eps;
};

ZB_KERN_FN void zb_adamw_step(const struct zb_adamw_coef *c, zb_real grad,
                              zb_real *param, zb_real *m, zb_real *v)
{
    zb_real g = c->grad_scale * grad;
    zb_real m_new = c->beta1 * *m + c->one_minus_beta1 * g;
    zb_real v_new = c->beta2 * *v + c->one_minus_beta2 * g * g;

    *m = m_new;
    *v = v_new;
    *param = c->decay * *param -
             c->step * m_new / (zb_sqrt(v_new) * c->root_c2 + c->eps);
}

/* The four standard normal numbers of a block: Box and Muller, on numbers of 24
 * bits in (0, 1), so that they are the same in float and double. */
ZB_KERN_FN void zb_normal_pair(uint32_t a, uint32_t b, zb_real *ZB_RESTRICT z)
{
    zb_real u = ((zb_real)(int32_t)(a >> 9) + ZB_R(0.5)) * ZB_R(0x1p-23);
    zb_real w = ((zb_real)(int32_t)(b >> 9) + ZB_R(0.5)) * ZB_R(0x1p-23);
    zb_real radius = zb_sqrt(ZB_R(-2) * zb_log(u));
    zb_real s, c;

    zb_sincos_turn(w, &s, &c);
    z[0] = radius * c;
    z[1] = radius * s;
}

ZB_KERN_FN void zb_normal_block(uint64_t seed, uint64_t key, uint64_t block,
                                zb_real *ZB_RESTRICT z)
{
    struct zb_philox_out x = zb_philox(zb_philox_key_of(seed), block, key);

    zb_normal_pair(x.x0, x.x1, z);
    zb_normal_pair(x.x2, x.x3, z + 2);
}

#endif
