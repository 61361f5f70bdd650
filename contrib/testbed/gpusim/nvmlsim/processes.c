/* What runs on a card. */
#include "sim.h"

#include <string.h>

/*
 * Whether NVML shows process k in the list of compute processes. Before Volta
 * the clients of an MPS server are invisible: the server holds everything.
 */
static int shown(const struct sim_device *d, const struct live *l, unsigned int k)
{
	return l->p[k].slot->kind != SIM_CLIENT || (d->caps & SIM_CAP_MPS_LIST);
}

/* Memory and busy time NVML charges to process k. */
static void charge(const struct sim_device *d, const struct live *l, unsigned int k, double *mem, double *busy)
{
	*mem = l->p[k].member->mem;
	*busy = l->p[k].member->busy;
	if (l->p[k].slot->kind != SIM_SERVER || (d->caps & SIM_CAP_MPS_LIST))
		return;
	for (unsigned int i = 0; i < l->count; i++)
		if (l->p[i].slot->server == l->p[k].slot->pid) {
			*mem += l->p[i].member->mem;
			*busy += l->p[i].member->busy;
		}
}

enum list { COMPUTE = SIM_F_PROCESSES, MPS = SIM_F_MPS_PROCESSES };

static nvmlReturn_t list(nvmlDevice_t device, enum list what, unsigned int *count, nvmlProcessInfo_t *infos)
{
	unsigned int n = 0;
	ENTER(device, what, ANY);
	if (what == MPS)
		NEEDS(SIM_CAP_MPS_LIST);
	LOOK(l);
	for (unsigned int k = 0; k < l.count; k++) {
		double mem, busy;
		unsigned int at = l.p[k].slot->instance;
		if ((what == MPS ? l.p[k].slot->kind != SIM_CLIENT : !shown(d, &l, k)) || (e.in && at != device.handle->instance))
			continue;
		if (n++ >= *count)
			continue;
		charge(d, &l, k, &mem, &busy);
		nvmlProcessInfo_t *p = &infos[n - 1];
		p->pid = (unsigned int)l.p[k].slot->pid;
		p->usedGpuMemory = sim_figure(d, what, mem * MIB, ~0ULL >> 1);
		p->gpuInstanceId = p->computeInstanceId = NO_INSTANCE;
		if (at) {
			p->gpuInstanceId = d->instance[at - 1].gpuinstance;
			p->computeInstanceId = d->instance[at - 1].compute_instance;
		}
	}
	return sim_filled(count, n);
}

#define LIST_GETTER(name, what)                                                                     \
	EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos) \
	{                                                                                            \
		return list(device, what, count, infos);                                             \
	}

LIST_GETTER(nvmlDeviceGetComputeRunningProcesses_v3, COMPUTE)
LIST_GETTER(nvmlDeviceGetMPSComputeRunningProcesses_v3, MPS)

EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
						    unsigned int *count, unsigned long long last_seen)
{
	const int figure = SIM_F_PROCESS_UTILIZATION;
	unsigned int n = 0;
	ENTER(device, figure, WHOLE);
	LOOK(l);
	unsigned long long now = sim_wall_us();
	for (unsigned int k = 0; last_seen < now && k < l.count; k++) {
		double mem, busy;
		if (!shown(d, &l, k) || n++ >= *count || !samples)
			continue;
		charge(d, &l, k, &mem, &busy);
		samples[n - 1] = (nvmlProcessUtilizationSample_t){
			.pid = (unsigned int)l.p[k].slot->pid,
			.timeStamp = sim_figure(d, figure, (double)now, ~0ULL >> 1),
			.smUtil = sim_figure32(d, figure, busy * 100),
			.memUtil = sim_figure32(d, figure, busy * 60),
		};
	}
	if (n == 0)
		return NVML_ERROR_NOT_FOUND;
	if (!samples)
		*count = 0;
	return sim_filled(count, n);
}
