/* SPDX-License-Identifier: MIT
 *
 * The 16-bit types that numbers are stored in: bf16, the upper half of a float,
 * and fp16, IEEE 754's binary16. To a float is exact; from a float rounds to
 * the nearest, ties to even, and what is too large becomes infinite. A NaN
 * stays one. No branch, so that loops of them vectorise.
 */
#ifndef ZB_KERN_HALF_H
#define ZB_KERN_HALF_H

#include "kern/kern.h"

ZB_KERN_FN float zb_float_of_bf16(uint16_t x)
{
    return zb_float_of_bits((uint32_t)x << 16);
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800

/* A GPU has instructions for the rest. */
ZB_KERN_FN uint16_t zb_bf16_of_float(float x)
{
    uint16_t y;

    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}

ZB_KERN_FN float zb_float_of_f16(uint16_t x)
{
    float y;

    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}

ZB_KERN_FN uint16_t zb_f16_of_float(float x)
{
    uint16_t y;

    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}

#else

ZB_KERN_FN uint16_t zb_bf16_of_float(float x)
{
    uint32_t bits = zb_bits_of_float(x);
    uint32_t rounded = bits + 0x7fffu + (bits >> 16 & 1u);
    uint32_t quiet = bits | 0x400000u;

    return (uint16_t)(((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded) >>
                      16);
}

/* The exponent's bias is 15, a float's 127; below 2^-14 units of 2^-24 are
 * counted. */
ZB_KERN_FN float zb_float_of_f16(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000u) << 16;
    uint32_t size = (uint32_t)(x & 0x7fffu) << 13;
    uint32_t small = zb_bits_of_float((float)(int32_t)(x & 0x3ffu) * 0x1p-24f);
    uint32_t bits = size + (112u << 23);

    bits = size >= 0xf800000u ? size | 0x7f800000u : bits;
    bits = size < 0x800000u ? small : bits;
    return zb_float_of_bits(sign | bits);
}

/* From 65520 on the nearest number is infinite. Below 2^-14, adding 1/2 leaves
 * the units of 2^-24, rounded, in the low bits. */
ZB_KERN_FN uint16_t zb_f16_of_float(float x)
{
    uint32_t sign = zb_bits_of_float(x) >> 16 & 0x8000u;
    uint32_t size = zb_bits_of_float(x) & 0x7fffffffu;
    uint32_t rounded = (size - (112u << 23) + 0xfffu + (size >> 13 & 1u)) >> 13;
    uint32_t small =
        zb_bits_of_float(zb_float_of_bits(size) + 0.5f) - 0x3f000000u;
    uint32_t nan = 0x7e00u | (size >> 13 & 0x3ffu);
    uint32_t bits = size < 0x38800000u ? small : rounded;

    bits = size >= 0x477ff000u ? 0x7c00u : bits;
    bits = size > 0x7f800000u ? nan : bits;
    return (uint16_t)(sign | bits);
}

#endif

#endif
