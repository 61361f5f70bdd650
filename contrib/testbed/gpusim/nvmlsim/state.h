/*
 * The simulated machine's state file, as its users share it through mmap.
 *
 * layout.go is the same description in Go; a test compiles this header and
 * compares every offset. Change both together and raise SIM_VERSION.
 *
 * Writers: gpusim (Go) only, under an exclusive flock of the whole file; the
 * kernel drops the lock of a process that dies. What changes while a device is
 * in use lies in two copies of struct sim_dyn: a writer fills the one that is
 * not current and then stores its number in `cur`, so that a writer killed half
 * way leaves the old state whole. Readers take a shared flock.
 *
 * Times are in GPU seconds: (CLOCK_MONOTONIC - t0_ns) * scale.
 */
#ifndef GPUSIM_STATE_H
#define GPUSIM_STATE_H

#include <stdint.h>

#define SIM_MAGIC "GPUSIMv\0"
#define SIM_VERSION 4u

#define SIM_MAX_DEVICES 16
#define SIM_SLOTS 64   /* processes a device, MPS servers counted */
#define SIM_POINTS 512 /* phases of one process's demand */
#define SIM_CHANGES 256 /* of its utilisation that a device remembers */
#define SIM_FAULTS 32
#define SIM_INSTANCES 8 /* MIG instances a device */

struct sim_header {
	char magic[8];
	uint32_t version;
	uint32_t devices;
	uint64_t size;  /* of the file, bytes */
	double scale;   /* GPU seconds a real second */
	int64_t t0_ns;  /* CLOCK_MONOTONIC when the file was made */
	char driver[32];
	int32_t cuda;   /* as cuDriverGetVersion: 12020 = 12.2 */
	uint32_t check; /* FNV-1a of the bytes before this field */
};

/* What a process is. */
enum { SIM_OWN = 1, SIM_CLIENT = 2, SIM_SERVER = 3 };

/* How a process fares. */
enum {
	SIM_FREE = 0,
	SIM_RUNNING = 1,
	SIM_PAUSED = 2,   /* stopped by a signal: holds memory, asks for nothing */
	SIM_FINISHED = 3, /* its work is done; holds nothing any more */
	SIM_OOM = 4,      /* an allocation failed; holds nothing any more */
	SIM_FAULT = 5,    /* its context was destroyed; holds nothing any more */
};

/* What a card reports, struct sim_device.caps. */
enum {
	SIM_CAP_ENERGY = 1 << 0,   /* total energy counter (Volta and later) */
	SIM_CAP_MPS_LIST = 1 << 1, /* MPS clients as processes of their own (Volta and later) */
	SIM_CAP_GPM = 1 << 2,      /* GPU performance monitoring (Hopper and later) */
	SIM_CAP_MIG = 1 << 3,      /* MIG can be switched on (A100 and later) */
};

/* One phase of a process's demand when it runs alone. */
struct sim_point {
	double until; /* solo work at which the phase ends, s */
	double gpu;   /* fraction of time a kernel runs, 0..1 */
	double core;  /* fraction of the SMs busy, 0..1 */
	double pcie;  /* MB/s, both directions */
	double mem;   /* MiB held */
};

/* What of a process does not change while it lives. */
struct sim_slot {
	int32_t pid;
	uint32_t uid;
	uint64_t start; /* the process's start time, clock ticks since boot */
	int32_t server; /* pid of its MPS server, 0 = none */
	uint32_t kind;
	uint32_t points;
	uint32_t instance; /* MIG instance + 1, 0 = the whole card */
	double duration; /* solo, s */
	double step;     /* one iteration alone, s; 0 = unknown */
	char app[64];
	struct sim_point point[SIM_POINTS];
};

/* What of a process changes. */
struct sim_member {
	uint32_t status;
	uint32_t point; /* the phase it is in */
	double done;    /* solo work done, s */
	double slowdown;
	double start_t, end_t;
	double mem_max;   /* MiB */
};

/* From t on the device's utilisation was gpu. */
struct sim_change {
	double t, gpu;
};

struct sim_dyn {
	double t; /* the device is advanced up to this time */
	/* integrals since the file was made */
	double busy_s;     /* utilisation x seconds */
	double core_s;     /* SM activity x seconds */
	double mem_mib_s;  /* MiB x seconds */
	double pcie_mb;    /* MB moved */
	double energy_j;
	double occupied_s; /* seconds with at least one process that computes */
	double mem_max;    /* most memory ever held, MiB */
	/* at this moment */
	double gpu, core, pcie, mem, power; /* 0..1, 0..1, MB/s, MiB, W */
	uint64_t started, finished, oom, killed, faults;
	/* the same of each MIG instance, as fractions of the card */
	double inst_busy_s[SIM_INSTANCES], inst_core_s[SIM_INSTANCES], inst_gpu[SIM_INSTANCES], inst_core[SIM_INSTANCES];
	uint32_t changes; /* ever; the next one's place is their number modulo SIM_CHANGES */
	uint32_t pad;
	struct sim_change change[SIM_CHANGES];
	struct sim_member member[SIM_SLOTS];
};

/* How one NVML figure misbehaves, struct sim_fault.mode. */
enum {
	SIM_FAULT_NONE = 0,
	SIM_FAULT_RETURN = 1,    /* the call returns `value` */
	SIM_FAULT_ZERO = 2,      /* the figures read 0 */
	SIM_FAULT_HUGE = 3,      /* the figures read near their type's largest */
	SIM_FAULT_BACKWARDS = 4, /* the figures fall as time passes */
};

/* Which NVML figures a fault is for: the index into sim_device.fault. */
enum {
	SIM_F_HANDLE,
	SIM_F_NAME,
	SIM_F_UUID,
	SIM_F_PCI,
	SIM_F_MINOR,
	SIM_F_ARCH,
	SIM_F_CORES,
	SIM_F_MEMORY,
	SIM_F_UTILIZATION,
	SIM_F_PCIE_THROUGHPUT,
	SIM_F_PCIE_LINK,
	SIM_F_POWER,
	SIM_F_ENERGY,
	SIM_F_TEMPERATURE,
	SIM_F_PROCESSES,
	SIM_F_MPS_PROCESSES,
	SIM_F_PROCESS_UTILIZATION,
	SIM_F_ACCOUNTING,
	SIM_F_SAMPLES,
	SIM_F_GPM,
	SIM_F_MIG,
	SIM_F_COUNT
};

struct sim_fault {
	uint32_t mode;
	int32_t value;
};

/* A MIG instance: a GPU instance with one compute instance that is all of it. */
struct sim_instance {
	char uuid[48];
	char profile[16]; /* "1g.5gb" */
	uint32_t gpu_instance, compute_instance;
	uint32_t slices, sms;
	double mem_total; /* MiB */
};

struct sim_device {
	char uuid[48];
	char name[64];
	char model[16]; /* as in gres.conf's Type */
	uint32_t minor;
	uint32_t arch; /* nvmlDeviceArchitecture_t */
	uint32_t cc_major, cc_minor;
	uint32_t cores, sms;
	uint32_t bus, pci_id;
	uint32_t pcie_gen, pcie_width;
	uint32_t caps;
	uint32_t max_clients; /* MPS clients at a time */
	uint32_t same_user;   /* 1: before Volta */
	uint32_t lost;        /* 1: the GPU has fallen off the bus */
	uint32_t accounting;  /* 1: accounting mode is on */
	uint32_t mig;         /* 1: MIG mode is on */
	double mem_total;     /* MiB */
	double mem_reserved;  /* MiB the driver keeps */
	double mem_context;   /* MiB an MPS server takes for itself */
	double pcie_mbps;     /* what the link carries, both directions, MB/s */
	double power_idle;   /* W, no process there */
	double power_active; /* W, a context is open and no kernel runs */
	double power_max;    /* W */
	double temp_idle, temp_max;   /* C, at idle and at full power */
	uint32_t bus_bits; /* width of the memory bus */
	uint32_t instances;
	struct sim_instance instance[SIM_INSTANCES];
	struct sim_fault fault[SIM_FAULTS];
	int64_t looked_ns; /* CLOCK_MONOTONIC when dead processes were last looked for */
	uint32_t cur; /* which of dyn is current: 0 or 1 */
	uint32_t pad;
	struct sim_dyn dyn[2];
	struct sim_slot slot[SIM_SLOTS];
};

/* The file: one struct sim_header, padded to SIM_HEADER_SIZE, then the devices. */
#define SIM_HEADER_SIZE 4096u

#endif
