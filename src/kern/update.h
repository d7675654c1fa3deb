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

/* On the host. */
static inline struct zb_adamw_coef
zb_adamw_coef_of(int64_t t, double lr, double beta1, double beta2, double eps,
                 double weight_decay, double grad_scale)
{
    double c1 = 1.0 - pow(beta1, (double)t);
    double c2 = 1.0 - pow(beta2, (double)t);
    struct zb_adamw_coef c;

    c.grad_scale = (zb_real)grad_scale;
    c.beta1 = (zb_real)beta1;
    c.beta2 = (zb_real)beta2;
    c.one_minus_beta1 = (zb_real)(1.0 - beta1);
    c.one_minus_beta2 = (zb_real)(1.0 - beta2);
    c.decay = (zb_real)(1.0 - lr * weight_decay);
    c.step = (zb_real)(lr / c1);
    c.root_c2 = (zb_real)(1.0 / sqrt(c2));
    c.eps = (zb_real)eps;
    return c;
}

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

/* The same for SGD; momentum 0 in the first step, when buf holds nothing yet,
 * not even a number. */
struct zb_sgd_coef {
    zb_real grad_scale, momentum, decay, lr;
};

static inline struct zb_sgd_coef zb_sgd_coef_of(int64_t t, double lr,
                                                double momentum,
                                                double weight_decay,
                                                double grad_scale)
{
    struct zb_sgd_coef c;

    c.grad_scale = (zb_real)grad_scale;
    c.momentum = t == 1 ? ZB_R(0) : (zb_real)momentum;
    c.decay = (zb_real)(1.0 - lr * weight_decay);
    c.lr = (zb_real)lr;
    return c;
}

ZB_KERN_FN void zb_sgd_step(const struct zb_sgd_coef *c, zb_real grad,
                            zb_real *param)
{
    *param = c->decay * *param - c->lr * (c->grad_scale * grad);
}

ZB_KERN_FN void zb_sgd_momentum_step(const struct zb_sgd_coef *c, zb_real grad,
                                     zb_real *param, zb_real *buf)
{
    zb_real g = c->momentum * *buf + c->grad_scale * grad;

    *buf = g;
    *param = c->decay * *param - c->lr * g;
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
