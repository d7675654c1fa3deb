/* SPDX-License-Identifier: MIT
 *
 * The part of the CUDA runtime that zbrun uses, emulated on the CPU for tests:
 * same names, signatures and numbers as CUDA 13's; what is not here is not
 * emulated. What differs from a GPU:
 *
 * - every stream is a thread that works after random delays; copies from and
 *   to any host memory are asynchronous, pageable memory too;
 * - device memory is not host memory: the addresses that cudaMalloc() gives
 *   fault on the host;
 * - there is no default stream: every call names one;
 * - misuse is reported: see fake_cuda.h.
 */
#ifndef FAKE_CUDA_RUNTIME_API_H
#define FAKE_CUDA_RUNTIME_API_H

#include <stddef.h>

#define CUDART_VERSION 13000
#define CUDARTAPI

#ifdef __cplusplus
extern "C" {
#endif

/* Name, number and text of each error. */
#define FAKE_CUDA_ERROR_MAP(X)                                                 \
    X(cudaSuccess, 0, "no error")                                              \
    X(cudaErrorInvalidValue, 1, "invalid argument")                            \
    X(cudaErrorMemoryAllocation, 2, "out of memory")                           \
    X(cudaErrorInitializationError, 3, "initialization error")                 \
    X(cudaErrorCudartUnloading, 4, "driver shutting down")                     \
    X(cudaErrorInvalidConfiguration, 9, "invalid configuration argument")      \
    X(cudaErrorInvalidDevicePointer, 17, "invalid device pointer")             \
    X(cudaErrorInvalidMemcpyDirection, 21, "invalid copy direction")           \
    X(cudaErrorInsufficientDriver, 35, "driver older than the runtime")        \
    X(cudaErrorDevicesUnavailable, 46, "devices busy or unavailable")          \
    X(cudaErrorInvalidDeviceFunction, 98, "invalid device function")           \
    X(cudaErrorNoDevice, 100, "no CUDA-capable device is detected")            \
    X(cudaErrorInvalidDevice, 101, "invalid device ordinal")                   \
    X(cudaErrorNoKernelImageForDevice, 209, "no kernel for this device")       \
    X(cudaErrorECCUncorrectable, 214, "uncorrectable ECC error")               \
    X(cudaErrorPeerAccessUnsupported, 217, "peer access not supported")        \
    X(cudaErrorInvalidResourceHandle, 400, "invalid resource handle")          \
    X(cudaErrorNotReady, 600, "device not ready")                              \
    X(cudaErrorIllegalAddress, 700, "illegal memory access")                   \
    X(cudaErrorLaunchOutOfResources, 701, "too many resources requested")      \
    X(cudaErrorLaunchTimeout, 702, "the launch timed out")                     \
    X(cudaErrorPeerAccessAlreadyEnabled, 704, "peer access already enabled")   \
    X(cudaErrorPeerAccessNotEnabled, 705, "peer access not enabled")           \
    X(cudaErrorTooManyPeers, 711, "too many peers")                            \
    X(cudaErrorHostMemoryAlreadyRegistered, 712, "already registered")         \
    X(cudaErrorHostMemoryNotRegistered, 713, "host memory not registered")     \
    X(cudaErrorHardwareStackError, 714, "hardware stack error")                \
    X(cudaErrorLaunchFailure, 719, "unspecified launch failure")               \
    X(cudaErrorNotSupported, 801, "operation not supported")                   \
    X(cudaErrorSystemDriverMismatch, 803, "driver and libraries differ")       \
    X(cudaErrorUnknown, 999, "unknown error")

enum cudaError {
#define FAKE_CUDA_X(name, number, text) name = number,
    FAKE_CUDA_ERROR_MAP(FAKE_CUDA_X)
#undef FAKE_CUDA_X
};
typedef enum cudaError cudaError_t;

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;

#define cudaStreamDefault 0x00
#define cudaStreamNonBlocking 0x01
#define cudaEventDefault 0x00
#define cudaEventBlockingSync 0x01
#define cudaEventDisableTiming 0x02
#define cudaHostAllocDefault 0x00
#define cudaHostAllocPortable 0x01

/* ---- devices ------------------------------------------------------------ */

/* Those fields of CUDA's struct that may be used. */
struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem;
    int major, minor;
    int multiProcessorCount;
    int pciBusID, pciDeviceID, pciDomainID;
};

enum cudaDeviceAttr {
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrPciBusId = 33,
    cudaDevAttrPciDeviceId = 34,
    cudaDevAttrPciDomainId = 50,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76
};

cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr,
                                   int device);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device);
cudaError_t cudaDeviceGetPCIBusId(char *pciBusId, int len, int device);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaDriverGetVersion(int *driverVersion);
cudaError_t cudaRuntimeGetVersion(int *runtimeVersion);
cudaError_t cudaDeviceCanAccessPeer(int *canAccessPeer, int device,
                                    int peerDevice);
cudaError_t cudaDeviceEnablePeerAccess(int peerDevice, unsigned int flags);
cudaError_t cudaDeviceDisablePeerAccess(int peerDevice);

cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);
const char *cudaGetErrorName(cudaError_t error);
const char *cudaGetErrorString(cudaError_t error);

/* ---- memory ------------------------------------------------------------- */

enum cudaMemcpyKind {
    cudaMemcpyHostToHost = 0,
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3,
    cudaMemcpyDefault = 4
};

cudaError_t cudaMemGetInfo(size_t *free, size_t *total);
cudaError_t cudaMalloc(void **devPtr, size_t size);
cudaError_t cudaFree(void *devPtr);
cudaError_t cudaHostAlloc(void **pHost, size_t size, unsigned int flags);
cudaError_t cudaFreeHost(void *ptr);

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count,
                            enum cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemcpyPeerAsync(void *dst, int dstDevice, const void *src,
                                int srcDevice, size_t count,
                                cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *devPtr, int value, size_t count,
                            cudaStream_t stream);

/* ---- streams and events ------------------------------------------------- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *pStream,
                                      unsigned int flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *pStream,
                                         unsigned int flags, int priority);
cudaError_t cudaDeviceGetStreamPriorityRange(int *leastPriority,
                                             int *greatestPriority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned int flags);

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);

/* ---- graphs: of kernels and products of one stream ----------------------- */

typedef struct CUgraph_st *cudaGraph_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;

enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal = 0,
    cudaStreamCaptureModeThreadLocal = 1,
    cudaStreamCaptureModeRelaxed = 2
};

cudaError_t cudaStreamBeginCapture(cudaStream_t stream,
                                   enum cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *pGraph);
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *pGraphExec,
                                          cudaGraph_t graph,
                                          unsigned long long flags);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graphExec);
cudaError_t cudaGraphLaunch(cudaGraphExec_t graphExec, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
