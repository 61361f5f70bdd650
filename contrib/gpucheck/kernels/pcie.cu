// Copies between host and GPU, in both directions at once: asks for the PCIe link,
// and for no SM.
#include "harness.cuh"

static const size_t BYTES = (size_t)8 << 20; // a unit of work, each way
static const int BUFFERS = 4;
static char *to_host, *from_host, *on_gpu[2];
static cudaStream_t in, out;

static double setup(const Args &, const cudaDeviceProp &)
{
	CHECK(cudaMallocHost(&to_host, BYTES * BUFFERS));
	CHECK(cudaMallocHost(&from_host, BYTES * BUFFERS));
	memset(from_host, 1, BYTES * BUFFERS);
	for (int i = 0; i < 2; i++)
		CHECK(cudaMalloc(&on_gpu[i], BYTES * BUFFERS));
	CHECK(cudaStreamCreateWithFlags(&in, cudaStreamNonBlocking));
	CHECK(cudaStreamCreateWithFlags(&out, cudaStreamNonBlocking));
	return 2.0 * BUFFERS * (double)(BYTES >> 20);
}

static void work(long long units)
{
	for (long long u = 0; u < units; u++) {
		size_t at = (size_t)(u % BUFFERS) * BYTES;
		CHECK(cudaMemcpyAsync(on_gpu[0] + at, from_host + at, BYTES, cudaMemcpyHostToDevice, in));
		CHECK(cudaMemcpyAsync(to_host + at, on_gpu[1] + at, BYTES, cudaMemcpyDeviceToHost, out));
	}
	CHECK(cudaStreamSynchronize(in));
	CHECK(cudaStreamSynchronize(out));
}

int main(int argc, char **argv)
{
	return program(argc, argv, Program{setup, work, 2e-6 * (double)BYTES});
}
