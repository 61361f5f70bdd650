// What every program here has in common: its arguments, how it finds out how much
// work an iteration takes, and what it says on standard output.
//
// An iteration is a busy part (work units of the program's own kind, run to their
// end) and, where --duty is under 1, a pause of the host of (1 - duty) * period.
// The work is fixed beforehand, so that an iteration next to other kernels takes as
// much longer as they slow it.
//
//   PROGRAM --duty D --period-ms P --seconds S --work W
//
// finds the work where W is 0, prints {"ready":true,"work":W}, waits for a line on
// standard input and iterates for S seconds. At the end it prints
// {"n":iterations,"seconds":s,"busy_s":seconds,"moved_mb":MB,"held_mib":MiB}. The first tenth
// of S, in which clocks rise, doesn't count. It ends early when its standard input is
// closed: the program that started it has gone, or gives up.
#pragma once

#include <cuda_runtime.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHECK(call)                                                                       \
	do {                                                                              \
		cudaError_t check_ = (call);                                              \
		if (check_ != cudaSuccess) {                                              \
			fprintf(stderr, "%s: %s (%s)\n", #call, cudaGetErrorString(check_), cudaGetErrorName(check_)); \
			exit(1);                                                          \
		}                                                                         \
	} while (0)

struct Args {
	double duty = 1, period_ms = 5, seconds = 2, mem_mib = 0, sms = 1;
	long long work = 0; // 0 = to be found
};

// A program: its kind of work.
struct Program {
	// Called once; returns MiB of device memory that it holds.
	double (*setup)(const Args &, const cudaDeviceProp &);
	// Does so many units of work and waits for their end.
	void (*work)(long long units);
	double moved_mb_a_unit; // over PCIe, both directions, MB of 1e6 bytes
};

static double now_s()
{
	timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void sleep_s(double s)
{
	if (s <= 0)
		return;
	timespec t;
	t.tv_sec = (time_t)s;
	t.tv_nsec = (long)((s - (double)t.tv_sec) * 1e9);
	nanosleep(&t, nullptr);
}

// Whether standard input was closed. The line that said go has been read.
static bool left_alone()
{
	pollfd p = {STDIN_FILENO, POLLIN, 0};
	if (poll(&p, 1, 0) <= 0)
		return false;
	char c;
	return (p.revents & (POLLHUP | POLLERR | POLLNVAL)) || read(STDIN_FILENO, &c, 1) == 0;
}

static Args parse(int argc, char **argv)
{
	Args a;
	for (int i = 1; i < argc; i += 2) {
		const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
		char *end = nullptr;
		double v = strtod(value, &end);
		bool ok = *value && !*end && isfinite(v) && v >= 0 && v < 1e15;
		if (ok && !strcmp(name, "--duty") && v > 0 && v <= 1)
			a.duty = v;
		else if (ok && !strcmp(name, "--period-ms") && v > 0)
			a.period_ms = v;
		else if (ok && !strcmp(name, "--seconds") && v > 0)
			a.seconds = v;
		else if (ok && !strcmp(name, "--mem-mib"))
			a.mem_mib = v;
		else if (ok && !strcmp(name, "--sms") && v > 0 && v <= 1)
			a.sms = v;
		else if (ok && !strcmp(name, "--work"))
			a.work = (long long)v;
		else {
			fprintf(stderr, "%s: %s %s makes no sense\n", argv[0], name, value);
			exit(2);
		}
	}
	return a;
}

// The units of work whose busy part takes the target's seconds. What the first
// calls cost (compiling for this card, clocks that rise) is gone through before.
static long long find_work(const Program &p, double target)
{
	for (double from = now_s(); now_s() - from < 0.5;)
		p.work(1);
	long long units = 1;
	double took = 0;
	for (;;) {
		double from = now_s();
		p.work(units);
		took = now_s() - from;
		if (took >= target / 2 || units >= 1LL << 40)
			break;
		units *= 2;
	}
	long long found = llround((double)units * target / took);
	return found < 1 ? 1 : found;
}

static int program(int argc, char **argv, const Program &p)
{
	Args a = parse(argc, argv);
	setvbuf(stdout, nullptr, _IOLBF, 0);
	cudaDeviceProp card;
	CHECK(cudaSetDevice(0));
	CHECK(cudaGetDeviceProperties(&card, 0));
	double held = p.setup(a, card);
	if (a.work == 0)
		a.work = find_work(p, a.duty * a.period_ms / 1e3);
	else
		p.work(1); // compiles, where that is still to be done
	printf("{\"ready\":true,\"work\":%lld}\n", a.work);
	char text[8];
	if (!fgets(text, sizeof text, stdin))
		return 0;
	long long n = 0;
	double begin = now_s(), from = begin, to = begin, busy = 0;
	while (to - begin < a.seconds && !left_alone()) {
		if (to - begin < a.seconds / 10) { // what was so far doesn't count
			n = 0;
			busy = 0;
			from = to;
		}
		double at = now_s();
		p.work(a.work);
		busy += now_s() - at;
		n++;
		sleep_s((1 - a.duty) * a.period_ms / 1e3);
		to = now_s();
	}
	printf("{\"n\":%lld,\"seconds\":%.6f,\"busy_s\":%.6f,\"moved_mb\":%.6f,\"held_mib\":%.3f}\n", n, to - from, busy,
	       (double)n * (double)a.work * p.moved_mb_a_unit, held);
	return 0;
}
