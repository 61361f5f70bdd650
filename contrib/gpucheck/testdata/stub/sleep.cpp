// A program for the harness whose unit of work is to sleep for 0.1 ms.
#include "harness.cuh"

static double setup(const Args &a, const cudaDeviceProp &) { return a.mem_mib; }

static void work(long long units) { sleep_s((double)units * 1e-4); }

int main(int argc, char **argv) { return program(argc, argv, Program{setup, work, 0.5}); }
