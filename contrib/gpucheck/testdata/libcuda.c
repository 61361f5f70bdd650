// As much of the driver's library as cuda.go calls, on a machine without a GPU: device memory is the host's, a kernel runs
// in its launch, and a unit of multiply_add sleeps for 0.1 ms. CUDA_TEST_REFUSES=CALL=CODE makes a call fail.
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int sticky; // of the context
static uint64_t held;

static int refused(const char *call)
{
	const char *how = getenv("CUDA_TEST_REFUSES"), *is = how ? strchr(how, '=') : NULL;
	size_t n = strlen(call);
	return is && (size_t)(is - how) == n && !strncmp(how, call, n) ? atoi(is + 1) : 0;
}

int cuInit(unsigned flags) { return flags ? 1 : refused("cuInit"); }
int cuDriverGetVersion(int *to) { *to = 12020; return 0; }
int cuGetErrorName(int code, const char **to)
{
	*to = code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : NULL;
	return *to ? 0 : 1;
}
int cuDeviceGetCount(int *to) { *to = 1; return 0; }
int cuDeviceGet(int *to, int ordinal) { *to = 7; return ordinal; }
int cuDeviceGetUuid(unsigned char *to, int device)
{
	for (int i = 0; i < 16; i++)
		to[i] = (unsigned char)(0x10 + i);
	return device != 7;
}
int cuDeviceGetAttribute(int *to, int attribute, int device)
{
	*to = attribute == 16 ? 4 : attribute == 39 ? 2048 : attribute == 81 ? 102400 : attribute == 97 ? 101376 : 0;
	return device != 7;
}
int cuCtxCreate_v2(void **to, unsigned flags, int device)
{
	sticky = 0;
	*to = &sticky;
	return flags || device != 7 ? 1 : refused("cuCtxCreate");
}
int cuCtxSynchronize(void) { return sticky; }
int cuMemGetInfo_v2(size_t *left, size_t *total) { *total = 1024u << 20; *left = *total - held; return 0; }
int cuMemAlloc_v2(uint64_t *to, size_t bytes)
{
	if (held + bytes > 1024u << 20)
		return 2;
	held += bytes;
	*to = (uint64_t)(uintptr_t)malloc(bytes);
	return 0;
}
int cuMemAllocHost_v2(void **to, size_t bytes) { *to = malloc(bytes); return 0; }
int cuMemsetD8_v2(uint64_t at, unsigned char value, size_t bytes) { memset((void *)(uintptr_t)at, value, bytes); return sticky; }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) { memcpy(to, (void *)(uintptr_t)from, bytes); return sticky; }
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) { return cuMemcpyDtoH_v2(to, from, bytes) || !stream; }
int cuMemcpyHtoDAsync_v2(uint64_t to, void *from, size_t bytes, void *stream)
{
	memcpy((void *)(uintptr_t)to, from, bytes);
	return sticky || !stream;
}
int cuStreamCreate(void **to, unsigned flags) { *to = &held; return flags != 1; }

static const char *names[] = {"multiply_add", "copy_half", "congruential", "store"};

/* CUDA_TEST_TARGET: the only one that it takes. */
int cuModuleLoadData(void **to, const char *image)
{
	const char *target = getenv("CUDA_TEST_TARGET");
	*to = names;
	return strstr(image, target ? target : ".target sm_50\n") ? 0 : 222;
}
int cuModuleGetFunction(void **to, void *module, const char *name)
{
	for (int i = 0; i < 4; i++)
		if (!strcmp(name, names[i])) {
			*to = &names[i];
			return module != names;
		}
	return 500;
}
int cuFuncSetAttribute(void *function, int attribute, int value) { return function != &names[0] || attribute != 8 || value > 101376; }

int cuLaunchKernel(const char **function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream, uint64_t **params, void **extra)
{
	if (gy != 1 || gz != 1 || by != 1 || bz != 1 || stream || extra || shared > 101376)
		return 1;
	uint64_t a = *params[0];
	if (!strcmp(*function, "multiply_add")) {
		struct timespec t = {0, 100000};
		for (uint64_t u = *params[1]; u; u--)
			nanosleep(&t, NULL);
	} else if (!strcmp(*function, "congruential")) {
		for (uint32_t i = 0; i < gx * bx; i++) {
			uint32_t x = (uint32_t)*params[1] + i;
			for (uint64_t r = 0; r < *params[2]; r++)
				x = x * 1664525u + 1013904223u;
			((uint32_t *)(uintptr_t)a)[i] = x;
		}
	} else if (!strcmp(*function, "copy_half")) {
		memcpy((char *)(uintptr_t)a + *params[1] * 16, (void *)(uintptr_t)a, 4096);
	} else {
		sticky = 700;
	}
	return 0;
}
