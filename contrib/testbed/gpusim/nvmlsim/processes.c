/* What runs on a card. */
#include "sim.h"

/*
 * The processes as NVML shows them. Before Volta the clients of an MPS server
 * are invisible: the server holds everything.
 */
static void look(const struct sim_device_rec *d, struct live *l)
{
	sim_look(d, l);
	if (d->caps & SIM_CAP_MPS_LIST)
		return;
	unsigned int n = 0;
	for (unsigned int i = 0; i < l->count; i++)
		for (unsigned int k = 0; k < l->count; k++)
			if (l->p[i].slot->server == l->p[k].slot->pid) {
				l->p[k].mem += l->p[i].mem;
				l->p[k].busy += l->p[i].busy;
			}
	for (unsigned int i = 0; i < l->count; i++)
		if (l->p[i].slot->kind != SIM_CLIENT)
			l->p[n++] = l->p[i];
	l->count = n;
}

static nvmlReturn_t list(nvmlDevice_t device, int figure, unsigned int *count, nvmlProcessInfo_t *infos)
{
	unsigned int n = 0;
	ENTER(device, figure, ANY);
	if (figure == SIM_F_MPS_PROCESSES)
		NEEDS(SIM_CAP_MPS_LIST);
	struct live l;
	look(d, &l);
	for (unsigned int k = 0; k < l.count; k++) {
		const struct sim_slot *s = l.p[k].slot;
		if (figure == SIM_F_MPS_PROCESSES && s->kind != SIM_CLIENT)
			continue;
		if ((e.in && s->instance != device.handle->instance) || n++ >= *count)
			continue;
		infos[n - 1] = (nvmlProcessInfo_t){
			.pid = s->pid,
			.usedGpuMemory = sim_figure(d, figure, l.p[k].mem * MIB, ~0ULL >> 1),
			.gpuInstanceId = s->instance ? d->instance[s->instance - 1].gpuinstance : NO_INSTANCE,
			.computeInstanceId = s->instance ? 0 : NO_INSTANCE,
		};
	}
	return sim_filled(count, n);
}

#define LIST_GETTER(name, figure)                                                                   \
	EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos) \
	{                                                                                            \
		return list(device, figure, count, infos);                                           \
	}

LIST_GETTER(nvmlDeviceGetComputeRunningProcesses_v3, SIM_F_PROCESSES)
LIST_GETTER(nvmlDeviceGetMPSComputeRunningProcesses_v3, SIM_F_MPS_PROCESSES)

EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
						    unsigned int *count, unsigned long long last_seen)
{
	const int figure = SIM_F_PROCESS_UTILIZATION;
	ENTER(device, figure, WHOLE);
	struct live l;
	look(d, &l);
	unsigned long long now = sim_wall_us();
	if (last_seen >= now || l.count == 0)
		return NVML_ERROR_NOT_FOUND;
	if (!samples)
		*count = 0;
	for (unsigned int k = 0; k < l.count && k < *count; k++)
		samples[k] = (nvmlProcessUtilizationSample_t){
			.pid = l.p[k].slot->pid,
			.timeStamp = sim_figure(d, figure, now, ~0ULL >> 1),
			.smUtil = sim_figure32(d, figure, l.p[k].busy * 100),
			.memUtil = sim_figure32(d, figure, l.p[k].busy * 60),
		};
	return sim_filled(count, l.count);
}
