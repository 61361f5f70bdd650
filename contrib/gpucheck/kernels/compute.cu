// Arithmetic in registers: asks for SMs and for nothing else. --sms F under 1 uses
// that part of them: one block is launched for each SM to be used, with so much
// shared memory that no second one fits there.
#include "harness.cuh"

static int blocks;
static size_t shared_bytes;
static float *out;

// A unit of work, for each thread.
static const int FMAS = 2048;

static const int THREADS = 512; // of a block

__global__ void multiply_add(float *out, long long units)
{
	float a = 0.5f + threadIdx.x * 1e-6f, b = 0.6f, c = 0.7f, d = 0.8f;
	const float x = 0.999999f, y = 1e-7f;
	for (long long u = 0; u < units; u++) {
#pragma unroll 16
		for (int i = 0; i < FMAS / 4; i++) {
			a = fmaf(a, x, y);
			b = fmaf(b, x, y);
			c = fmaf(c, x, y);
			d = fmaf(d, x, y);
		}
	}
	// Never true, which the compiler can't know.
	if (a + b + c + d < -1e30f)
		out[0] = a;
}

static double setup(const Args &a, const cudaDeviceProp &card)
{
	blocks = card.multiProcessorCount * (card.maxThreadsPerMultiProcessor / THREADS);
	if (a.sms < 1) {
		blocks = (int)fmax(1, round(a.sms * card.multiProcessorCount));
		// More than half of what an SM has, where a block may have that (from Volta on).
		shared_bytes = card.sharedMemPerMultiprocessor / 2 + 1024;
		if (shared_bytes > card.sharedMemPerBlockOptin)
			shared_bytes = card.sharedMemPerBlockOptin;
	}
	CHECK(cudaFuncSetAttribute(multiply_add, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes));
	CHECK(cudaMalloc(&out, sizeof *out));
	return 0;
}

static void work(long long units)
{
	multiply_add<<<blocks, THREADS, shared_bytes>>>(out, units);
	CHECK(cudaGetLastError());
	CHECK(cudaDeviceSynchronize());
}

int main(int argc, char **argv)
{
	return program(argc, argv, Program{setup, work, 0});
}
