// As much of CUDA's runtime as kernels/harness.cuh calls, for a machine without CUDA.
#pragma once

#include <stddef.h>

typedef int cudaError_t;
static const cudaError_t cudaSuccess = 0;
struct cudaDeviceProp {
	int multiProcessorCount;
};

static cudaError_t cudaSetDevice(int) { return cudaSuccess; }
static cudaError_t cudaGetDeviceProperties(cudaDeviceProp *, int) { return cudaSuccess; }
static const char *cudaGetErrorString(cudaError_t) { return ""; }
static const char *cudaGetErrorName(cudaError_t) { return ""; }
