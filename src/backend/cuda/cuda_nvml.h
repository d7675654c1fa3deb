/* SPDX-License-Identifier: MIT
 *
 * What NVIDIA's management library, a part of the driver, says of GPUs. It is
 * loaded when it is first asked, and every part of it may be missing: then
 * there is nothing to tell, and no error.
 *
 * Threads: one at a time, any.
 */
#ifndef ZB_CUDA_NVML_H
#define ZB_CUDA_NVML_H

#include "zb/backend.h"

struct zb_nvml;

/* ZB_NVML_LIBRARY in the environment names another library than
 * libnvidia-ml.so.1; empty: none. */
enum zb_status zb_nvml_new(struct zb_nvml **nvml_out) ZB_CHECKED;
void zb_nvml_free(struct zb_nvml *nvml);

/* Fill in what is known of the GPU with this address on the PCI bus
 * ("0000:65:00.0"), but for state->gpu. 0: it is not known at all. */
int zb_nvml_read(struct zb_nvml *nvml, const char *pci,
                 struct zb_gpu_state *state);

#endif
