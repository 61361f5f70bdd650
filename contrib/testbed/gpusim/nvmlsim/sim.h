/* The state file as the library's functions see it. */
#ifndef GPUSIM_SIM_H
#define GPUSIM_SIM_H

#include <stddef.h>

#include "api.h"
#include "state.h"

#define EXPORT __attribute__((visibility("default")))
#pragma GCC visibility push(hidden)

/* Not libm's: the library needs nothing but libc. */
static inline double least(double a, double b) { return a < b ? a : b; }
static inline double most(double a, double b) { return a > b ? a : b; }

/* A handle: which device, or which MIG instance of it. */
struct device {
	unsigned int index;
	unsigned int instance; /* + 1; 0 = the device itself */
};

/* What a device does at this moment, its dead processes left out. */
struct live {
	double t;                         /* GPU seconds */
	int died;                         /* somebody did, and the state doesn't know yet */
	double gpu, core, pcie, mem, power; /* as in struct sim_dyn, brought to now */
	double busy_s, core_s, pcie_mb, energy_j;
	double inst_mem[SIM_INSTANCES], inst_busy_s[SIM_INSTANCES], inst_core_s[SIM_INSTANCES];
	unsigned int count; /* processes that are there */
	struct {
		const struct sim_slot *slot;
		const struct sim_member *member;
		const struct sim_point *now;
		double busy; /* fraction of time its own kernels run */
	} p[SIM_SLOTS];
};

nvmlReturn_t sim_open(void);
nvmlReturn_t sim_close(void);
const struct sim_header *sim_header(void);
nvmlDevice_t sim_handle(unsigned int index, unsigned int instance);

/*
 * Locks the state for reading and returns the handle's device, unless it is not
 * to be answered: library not initialised, no such device, GPU lost, a fault set
 * for `figure`, or the handle is a MIG instance's. After NVML_SUCCESS the caller
 * unlocks.
 */
nvmlReturn_t sim_enter(nvmlDevice_t h, int figure, const struct sim_device **d);
/* The same for what MIG instances answer too; *in is NULL for the device itself. */
nvmlReturn_t sim_enter_any(nvmlDevice_t h, int figure, const struct sim_device **d, const struct sim_instance **in);
/* The same for what a device in MIG mode does not answer. */
nvmlReturn_t sim_enter_whole(nvmlDevice_t h, int figure, const struct sim_device **d);
unsigned int sim_instances(const struct sim_device *d);
void sim_leave(void);
/* The same for what concerns no device. */
nvmlReturn_t sim_lock(void);

nvmlReturn_t sim_look(const struct sim_device *d, struct live *l);
double sim_scale(void);
/* CLOCK_MONOTONIC as GPU seconds. */
double sim_seconds(int64_t ns);
/* Writing, for what root may set. */
nvmlReturn_t sim_set_accounting(nvmlDevice_t h, unsigned int on);
nvmlReturn_t sim_clear_accounting(nvmlDevice_t h);

/* A figure as the device's faults bend it; max is the largest its type holds. */
unsigned long long sim_figure(const struct sim_device *d, int figure, double v, unsigned long long max);
unsigned int sim_figure32(const struct sim_device *d, int figure, double v);
unsigned long long sim_wall_us(void);

/* Copies a string of the state file; NVML_ERROR_INSUFFICIENT_SIZE when it doesn't fit. */
nvmlReturn_t sim_string(char *dst, unsigned int len, const char *src, size_t max);

#define MIB 1048576.0

#pragma GCC visibility pop

#endif
