// What every program here has in common: its arguments, how it finds out how much
// work an iteration takes, and what it says on standard output.
//
// An iteration is a busy part (work units of the program's own kind, run to their
// end) and, where --duty is under 1, a pause of the host of (1 - duty) * period.
// The work is fixed beforehand, so that an iteration beside others takes as much
// longer as they slow it.
//
//   PROGRAM --duty D --period-ms P --seconds S            finds the work, measures
//           for S seconds, prints {"work":W,"rate":iterations a second} and ends
//   PROGRAM --duty D --period-ms P --work W --iterations N  prints {"ready":true},
//           waits for a line on standard input, iterates N times and ends
//
// Meanwhile it prints {"n":iterations,"at":seconds,"busy_s":seconds} five times a
// second and, with "done":true, "moved_mb" and "held_mib", at the end. "at" is
// CLOCK_MONOTONIC, which all processes share. It ends early when its standard input
// is closed: whoever started it has gone, or has seen enough.
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
	long long work = 0, iterations = 0; // work 0 = to be found
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
		else if (ok && !strcmp(name, "--iterations"))
			a.iterations = (long long)v;
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

struct Counts {
	long long n = 0;
	double busy = 0;
};

static void iterate(const Program &p, const Args &a, Counts &c)
{
	double from = now_s();
	p.work(a.work);
	c.busy += now_s() - from;
	c.n++;
	sleep_s((1 - a.duty) * a.period_ms / 1e3);
}

static int program(int argc, char **argv, const Program &p)
{
	Args a = parse(argc, argv);
	setvbuf(stdout, nullptr, _IOLBF, 0);
	cudaDeviceProp card;
	CHECK(cudaSetDevice(0));
	CHECK(cudaGetDeviceProperties(&card, 0));
	double held = p.setup(a, card);
	Counts c;
	if (a.work == 0) {
		a.work = find_work(p, a.duty * a.period_ms / 1e3);
		double from = now_s();
		while (now_s() - from < a.seconds || c.n < 3)
			iterate(p, a, c);
		printf("{\"work\":%lld,\"rate\":%.9g}\n", a.work, (double)c.n / (now_s() - from));
		return 0;
	}
	p.work(1); // compiles, where that is still to be done
	printf("{\"ready\":true}\n");
	char line[8];
	if (!fgets(line, sizeof line, stdin))
		return 0;
	double said = now_s();
	printf("{\"n\":0,\"at\":%.6f,\"busy_s\":0}\n", said);
	while (c.n < a.iterations) {
		iterate(p, a, c);
		double t = now_s();
		if (t - said < 0.2 || c.n == a.iterations)
			continue;
		said = t;
		printf("{\"n\":%lld,\"at\":%.6f,\"busy_s\":%.6f}\n", c.n, t, c.busy);
		if (left_alone())
			break;
	}
	printf("{\"done\":true,\"n\":%lld,\"at\":%.6f,\"busy_s\":%.6f,\"moved_mb\":%.6f,\"held_mib\":%.3f}\n", c.n, now_s(), c.busy,
	       (double)c.n * (double)a.work * p.moved_mb_a_unit, held);
	return 0;
}
