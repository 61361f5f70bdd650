// Copies within the GPU's memory: asks for its bandwidth. It holds --mem-mib of it,
// all written once, and walks through it 256 MiB a time, more than a cache has.
#include "harness.cuh"

static const size_t CHUNK = (size_t)256 << 20;
static int blocks;
static char **chunks;
static size_t count;
static size_t next_chunk;

__global__ void copy_half(float4 *base, size_t half)
{
	size_t step = (size_t)gridDim.x * blockDim.x;
	for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < half; i += step) {
		float4 v = base[i];
		v.x += 1;
		base[half + i] = v;
	}
}

static double setup(const Args &a, const cudaDeviceProp &card)
{
	blocks = card.multiProcessorCount * (card.maxThreadsPerMultiProcessor / 512);
	count = (size_t)fmax(1, round(a.mem_mib / (double)(CHUNK >> 20)));
	chunks = (char **)calloc(count, sizeof *chunks);
	if (!chunks) {
		fprintf(stderr, "out of host memory\n");
		exit(1);
	}
	for (size_t i = 0; i < count; i++) {
		CHECK(cudaMalloc(&chunks[i], CHUNK));
		CHECK(cudaMemset(chunks[i], 0, CHUNK));
	}
	CHECK(cudaDeviceSynchronize());
	return (double)(count * (CHUNK >> 20));
}

static void work(long long units)
{
	for (long long u = 0; u < units; u++) {
		copy_half<<<blocks, 512>>>((float4 *)chunks[next_chunk], CHUNK / 2 / sizeof(float4));
		next_chunk = (next_chunk + 1) % count;
	}
	CHECK(cudaGetLastError());
	CHECK(cudaDeviceSynchronize());
}

int main(int argc, char **argv)
{
	return program(argc, argv, Program{setup, work, 0});
}
