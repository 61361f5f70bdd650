/* The state file as the library's functions see it. */
#ifndef GPUSIM_SIM_H
#define GPUSIM_SIM_H

#include <nvml.h>

#include "state.h" /* made of ../layout.go, which describes it */

#define EXPORT __attribute__((visibility("default")))
#pragma GCC visibility push(hidden)

/* Not libm's: the library needs nothing but libc. */
static inline double least(double a, double b) { return a < b ? a : b; }
static inline double most(double a, double b) { return a > b ? a : b; }

/* A handle: which device, or which MIG instance of it. */
struct nvmlDevice_st {
	unsigned int index;
	unsigned int instance; /* + 1; 0 = the device itself */
};

/* What a device does at this moment, its dead processes left out. */
struct live {
	double t;         /* GPU seconds */
	int died;         /* a process did, and the state doesn't know yet */
	struct sim_dyn y; /* the state as it was stored at y.t, but for its figures and sums, which are brought to now */
	double inst_mem[SIM_INSTANCES];
	unsigned int count; /* processes that are there */
	struct {
		const struct sim_slot *slot;
		double mem, busy;
	} p[SIM_SLOTS];
};

extern const struct sim_file_header *sim_header; /* once nvmlInit has been called */
nvmlReturn_t sim_open(void);
nvmlReturn_t sim_close(void);
nvmlDevice_t sim_handle(unsigned int index, unsigned int instance);

/* The state, locked for reading unless r says why not. */
struct sim_entry {
	nvmlReturn_t r;
	const struct sim_device_rec *d;
	const struct sim_instance *in; /* the handle's MIG instance; NULL = the device itself */
};

/* Which handles a function answers: all, those of devices, those of devices not in MIG mode. */
enum sim_scope { ANY, DEVICE, WHOLE };

/* Refuses what is not to be answered: no such device, GPU lost, a fault set for `figure`. */
struct sim_entry sim_enter(nvmlDevice_t h, int figure, enum sim_scope scope);
void sim_leave(struct sim_entry *e);

/* Returns from the function where it can't go on; the state is unlocked at the function's end. */
#define ENTER(h, figure, scope)                                                                 \
	__attribute__((cleanup(sim_leave))) struct sim_entry e = sim_enter(h, figure, scope);   \
	if (e.r != NVML_SUCCESS)                                                                \
		return e.r;                                                                     \
	const struct sim_device_rec *d = e.d;                                                   \
	(void)d
#define LOOK(l)        \
	struct live l; \
	sim_look(d, &l)
#define NEEDS(cap)              \
	if (!(d->caps & (cap))) \
		return NVML_ERROR_NOT_SUPPORTED

void sim_look(const struct sim_device_rec *d, struct live *l);
/* How many of n there are in the caller's array of *count, which becomes n. */
nvmlReturn_t sim_filled(unsigned int *count, unsigned int n);

/* A figure as the device's faults bend it; max is the largest its type holds. */
unsigned long long sim_figure(const struct sim_device_rec *d, int figure, double v, unsigned long long max);
unsigned int sim_figure32(const struct sim_device_rec *d, int figure, double v);
unsigned long long sim_wall_us(void);

/* Copies a string of the state file; NVML_ERROR_INSUFFICIENT_SIZE when it doesn't fit. */
nvmlReturn_t sim_string(char *dst, unsigned int len, const char *src, size_t max);

#define MIB 1048576.0
#define NO_INSTANCE 0xFFFFFFFFu /* GPU and compute instance of a process without MIG */

#pragma GCC visibility pop

#endif
