/* SPDX-License-Identifier: MIT */
#ifndef FAKE_CUDA_RUNTIME_H
#define FAKE_CUDA_RUNTIME_H

#include "cuda_runtime_api.h"

#endif
